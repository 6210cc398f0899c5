"""The admin API's engines: which there are, and a change of one for another without a pause.

What is started is the candidate of the lock file, never anything that a request says: whoever
has the admin key can change engines, but only whoever can write that file says to what.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from carpool.errors import CarpoolError
from carpool.gateway.admin_error import AdminError
from carpool.gateway.admin_fields import (
    EnginesQuery,
    NewEngineFields,
    NoFields,
    PromotionFields,
    read_fields,
    read_query,
)
from carpool.gateway.body import read_body
from carpool.gateway.engine_roster import EngineRoster, NoSuchEngine, RosterEngine
from carpool.gateway.refusal import Refusal
from carpool.gateway.upstream_connection import UpstreamResponse
from carpool.gateway.upstream_errors import UpstreamError

MAX_BODY_BYTES = 8 * 1024 * 1024
_HOP_HEADERS = frozenset((b"connection", b"transfer-encoding", b"content-length", b"keep-alive"))
_audit = logging.getLogger("carpool.audit")


class AdminEngines:
    def __init__(self, roster: EngineRoster) -> None:
        self._roster = roster

    def routes(self) -> list[Route]:
        one = "/engines/{engine_id}"
        return [
            Route("/engines", self.list_engines, methods=["GET"]),
            Route("/engines", self.start, methods=["POST"]),
            Route(one, self.withdraw, methods=["DELETE"]),
            Route(f"{one}/promote", self.promote, methods=["POST"]),
            Route(f"{one}/at/{{path:path}}", self.pass_on, methods=["GET", "POST"]),
        ]

    async def list_engines(self, request: Request) -> Response:
        """`lock` is where the gateway keeps what it was upgraded to; null if it keeps nothing."""
        model = read_query(request, EnginesQuery).model
        lock = self._roster.lock
        try:
            engines = [self._view(engine) for engine in self._roster.engines(model)]
        except CarpoolError as error:
            raise _conflict(error) from None
        return JSONResponse({"lock": None if lock is None else str(lock.path), "engines": engines})

    async def start(self, request: Request) -> Response:
        fields = await read_fields(request, NewEngineFields)
        try:
            engine = self._roster.start_candidate(fields.model)
        except CarpoolError as error:
            raise _conflict(error) from None
        self._log(request, f"started engine {engine.engine_id} of {engine.model}")
        return JSONResponse(self._view(engine), 201)

    async def promote(self, request: Request) -> Response:
        fields = await read_fields(request, PromotionFields)
        engine_id = request.path_params["engine_id"]
        try:
            self._roster.promote(engine_id, fields.replaces)
            view = self._view(self._roster.find(engine_id))
        except CarpoolError as error:
            raise _conflict(error) from None
        self._log(request, f"put engine {engine_id} in the place of {fields.replaces}")
        return JSONResponse(view)

    async def withdraw(self, request: Request) -> Response:
        await read_fields(request, NoFields)
        engine_id = request.path_params["engine_id"]
        try:
            await self._roster.withdraw(engine_id)
        except CarpoolError as error:
            raise _conflict(error) from None
        self._log(request, f"ended engine {engine_id}")
        return JSONResponse({})

    async def pass_on(self, request: Request) -> Response:
        """A request to one engine alone, for those who measure it: past limits, queue and
        ledger, but counted among what it has in flight."""
        try:
            engine = self._roster.find(request.path_params["engine_id"])
        except CarpoolError as error:
            raise _conflict(error) from None
        try:
            raw = await read_body(request.receive, dict(request.scope["headers"]), MAX_BODY_BYTES)
        except Refusal as refusal:
            raise AdminError(refusal.status, "too_large", refusal.message) from None
        replica = engine.seat.replica
        headers = [(b"content-type", b"application/json")] if raw else []
        if replica.api_key is not None:
            headers.append((b"authorization", b"Bearer " + replica.api_key.encode()))
        path = f"/{request.path_params['path']}"
        replica.num_in_flight += 1
        try:
            answer = await replica.upstream.send(request.method, path, headers, raw)
        except (UpstreamError, ValueError) as error:
            replica.num_in_flight -= 1
            raise AdminError(502, "engine_failed", str(error)) from None
        except BaseException:
            replica.num_in_flight -= 1
            raise
        passed = StreamingResponse(_pieces(answer, engine), answer.status)
        passed.raw_headers = [each for each in answer.headers if each[0] not in _HOP_HEADERS]
        return passed

    def _view(self, engine: RosterEngine) -> dict[str, Any]:
        replica, supervisor = engine.seat.replica, engine.seat.supervisor
        pins = self._roster.pins(engine)
        return {
            "engine_id": engine.engine_id,
            "model": engine.model,
            "name": replica.name,
            "role": engine.role.value,
            "state": replica.state.value,
            "reason": engine.mistake or supervisor.status.reason,
            "is_hopeless": engine.mistake is not None,
            "num_restarts": replica.num_restarts,
            "engine_model": replica.model,
            "in_flight": replica.num_in_flight,
            "config": asdict(engine.seat.config),
            "configured": [asdict(each) for each in self._roster.configured(engine.model)],
            "current": None if pins is None else asdict(pins.current),
            "previous": None if pins is None or pins.previous is None else asdict(pins.previous),
            "last_lines": list(supervisor.last_lines)[-10:],
        }

    def _log(self, request: Request, what: str) -> None:
        _audit.info("admin key %s: %s", request.scope["admin_key_id"], what)


async def _pieces(answer: UpstreamResponse, engine: RosterEngine) -> AsyncIterator[bytes]:
    """Ends without its end where the engine's answer does: what was cut is seen to be."""
    try:
        async with answer:
            async for piece in answer:
                yield piece
    finally:
        engine.seat.replica.num_in_flight -= 1


def _conflict(error: CarpoolError) -> AdminError:
    if isinstance(error, NoSuchEngine):
        return AdminError(404, "not_found", str(error))
    return AdminError(409, "conflict", str(error))
