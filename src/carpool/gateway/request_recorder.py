"""Keeps the requests of keys whose holders agreed, so that they can become eval cases."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from carpool.gateway.api_kind import ApiKind
from carpool.gateway.exchange import Exchange
from carpool.gateway.outcome import Outcome
from carpool.store.errors import StoreError
from carpool.store.key_text import redact_keys
from carpool.store.recorded_requests import MAX_BODY_BYTES, RecordedRequest

FLUSH_S = 1.0
MAX_WAITING = 256

_log = logging.getLogger(__name__)

Insert = Callable[[Sequence[RecordedRequest]], None]


class RequestRecorder:
    """What cannot be written soon is let go of: nothing here may hold a request up, and a
    recording is no bookkeeping. `insert` runs in a thread and raises StoreError."""

    def __init__(self, insert: Insert, clock: Callable[[], float] = time.time) -> None:
        self._insert = insert
        self._clock = clock
        self._waiting: list[RecordedRequest] = []

    def note(self, exchange: Exchange) -> None:
        """A request that has ended. Quick; never waits."""
        until = exchange.caller.key.record_until
        if until is None or self._clock() >= until or not _is_of_use(exchange):
            return
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(
                RecordedRequest(
                    request_id=exchange.request_id,
                    recorded_at=exchange.started_at,
                    key_id=exchange.caller.key.key_id,
                    person_id=exchange.caller.person.person_id,
                    model=exchange.model.name,
                    body=redact_keys(exchange.body.text),
                )
            )

    async def run(self) -> None:
        """Write now and then, until cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            await asyncio.to_thread(self._insert, waiting)
        except StoreError as error:
            _log.warning("%d requests are not recorded: %s", len(waiting), error)


def _is_of_use(exchange: Exchange) -> bool:
    return (
        exchange.kind is ApiKind.CHAT
        and exchange.outcome is Outcome.COMPLETED
        and exchange.status == 200
        and len(exchange.body.raw) <= MAX_BODY_BYTES
    )
