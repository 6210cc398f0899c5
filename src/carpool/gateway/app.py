"""The gateway's HTTP side: who asks, for what, and to whom that goes."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from carpool import __version__
from carpool.gateway.allowance import Allowances
from carpool.gateway.api_kind import ApiKind, kind_of_path
from carpool.gateway.body import read_body
from carpool.gateway.books import Books
from carpool.gateway.client import Client, ClientGone
from carpool.gateway.exchange import Exchange
from carpool.gateway.exchanges import Exchanges, send_refusal
from carpool.gateway.json_object import JsonObject, JsonObjectError
from carpool.gateway.key_ring import Caller, KeyRing
from carpool.gateway.outcome import Outcome
from carpool.gateway.pages import Pages
from carpool.gateway.refusal import Refusal
from carpool.gateway.served_model import ServedModel, by_name
from carpool.serving.http_protocol import ON_DISCONNECT
from carpool.store.key import Key
from carpool.store.lane import Lane
from carpool.store.limits import Limits
from carpool.store.person import Person

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 8 * 1024 * 1024
FORWARDED_PATHS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
    )
)
_LOOPBACK = ("127.", "::1")

_log = logging.getLogger(__name__)

NOBODY = Caller(
    Key("anybody", b"", "anybody", "anybody", None, Limits(), Lane.INTERACTIVE, False, 0, None,
        None),
    Person("anybody", "anybody"),
)  # fmt: skip
"""Who asks where no keys are wanted (--no-auth): everybody is one person."""


class GatewayApp:
    """An ASGI application. `key_ring` None lets everybody in."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        key_ring: KeyRing | None,
        allowances: Allowances,
        exchanges: Exchanges,
        books: Books,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.is_draining = False
        self._reading: set[asyncio.Task[Any]] = set()
        self.num_running = 0
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._models = by_name(models)
        self._key_ring = key_ring
        self._allowances = allowances
        self._exchanges = exchanges
        self._books = books
        self._max_body_bytes = max_body_bytes
        self._created = int(time.time())
        self.all_metrics: Callable[[], Awaitable[tuple[int, bytes, bytes]]] | None = None
        """In place of those of this worker alone."""
        self.reports: Mapping[str, Callable[[Caller], Awaitable[dict[str, Any]]]] = {}
        """By path: what whoever has a key may know of themselves."""
        self._pages = Pages({"/chat": "chat.html", "/me": "me.html"})
        self._get: Mapping[str, Callable[[Scope], tuple[int, bytes, bytes]]] = {
            "/v1/models": self._list_models,
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._show_metrics,
            "/version": self._version,
        }

    def drain(self) -> None:
        """Refuse what is new, and what has yet to arrive, while what runs is finished."""
        self.is_draining = True
        for task in self._reading:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        # Told apart, not kept secret: what the system calls random would cost ten times as much.
        request_id = f"cp-{random.getrandbits(96):024x}"
        headers = [(b"x-request-id", request_id.encode())]
        if method == "POST" and path in FORWARDED_PATHS:
            await self._serve(request_id, scope, receive, send)
            return
        page = self._page(scope) if method in ("GET", "HEAD") else None
        if page is not None:
            await page(scope, receive, send)
            return
        try:
            if method == "GET" and path in self.reports:
                report = await self.reports[path](self._identify(dict(scope["headers"])))
                status, media_type, body = _json(200, report)
                headers.append((b"cache-control", b"no-store"))
            elif method != "GET" or path not in self._get:
                raise Refusal(Outcome.MODEL_UNKNOWN, f"there is no {method} {path} here")
            else:
                status, media_type, body = self._get[path](scope)
            if path == "/metrics" and self.all_metrics is not None:
                status, media_type, body = await self.all_metrics()
        except Refusal as refusal:
            await send_refusal(Client(receive, send), refusal, ApiKind.OTHER, headers)
            return
        client = Client(receive, send)
        length = (b"content-length", b"%d" % len(body))
        await client.start(status, [(b"content-type", media_type), length, *headers])
        await client.finish(body)

    # ------------------------------------------------------------------ to models

    async def _serve(self, request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_running += 1
        self.is_idle.clear()
        try:
            await self._serve_counted(request_id, scope, receive, send)
        finally:
            self.num_running -= 1
            if not self.num_running:
                self.is_idle.set()

    async def _serve_counted(
        self, request_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            exchange = await self._begin(request_id, scope, receive)
        except Refusal as refusal:
            self._books.refused(request_id, refusal)
            kind, echo = kind_of_path(scope["path"]), [(b"x-request-id", request_id.encode())]
            await send_refusal(Client(receive, send), refusal, kind, echo)
            return
        except ClientGone:
            return
        self._books.began(exchange)
        with Client(receive, send, scope.get(ON_DISCONNECT)) as client:
            try:
                allowance = self._allowances.of(exchange.caller, exchange.model)
                await self._exchanges.serve(exchange, allowance, client)
            except Refusal as refusal:
                await _refuse(exchange, refusal, client)
            except ClientGone:
                exchange.outcome, exchange.status = Outcome.CLIENT_CANCELLED, 499
            except Exception:
                _log.exception("request %s failed", request_id)
                message = "the gateway failed on this request; its log says why"
                await _refuse(exchange, Refusal(Outcome.INTERNAL_ERROR, message), client)
            finally:
                self._books.ended(exchange)

    async def _begin(self, request_id: str, scope: Scope, receive: Receive) -> Exchange:
        """Raises Refusal for whoever may not ask, or asks for what there is not."""
        arrived_at = asyncio.get_running_loop().time()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        # Before a byte of the body is taken from a stranger, and again if keys have changed by
        # the time that the body is there.
        caller, version = self._identify(headers), self._keys_version
        if self._key_ring is None:
            _check_is_json(headers)
        if self.is_draining:
            raise _draining()
        raw = await self._body(receive, headers)
        if version != self._keys_version:
            caller = self._identify(headers)
        try:
            body = JsonObject.parse(raw)
        except JsonObjectError as error:
            raise Refusal(Outcome.BAD_REQUEST, str(error)) from None
        asked_name: Any = body.fields.get("model")
        return Exchange(
            request_id=request_id,
            kind=kind_of_path(scope["path"]),
            path=scope["path"],
            headers=headers,
            raw_headers=scope["headers"],
            caller=caller,
            body=body,
            model=self._model(asked_name, caller.key),
            asked_name=asked_name,
            arrived_at=arrived_at,
            started_at=time.time(),
        )

    async def _body(self, receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is served by a task")
        self._reading.add(task)
        try:
            return await read_body(receive, headers, self._max_body_bytes)
        except asyncio.CancelledError:
            if not self.is_draining:
                raise
            task.uncancel()
            raise _draining() from None
        finally:
            self._reading.discard(task)

    @property
    def _keys_version(self) -> int:
        return 0 if self._key_ring is None else self._key_ring.version

    def _identify(self, headers: Mapping[bytes, bytes]) -> Caller:
        if self._key_ring is None:
            return NOBODY
        return self._key_ring.identify(headers, time.time())

    def _model(self, name: Any, key: Key) -> ServedModel:
        """The model called `name`. Whether a model exists that the key may not use is not told."""
        if not isinstance(name, str):
            found = "missing" if name is None else f"{name!r:.100}"
            raise Refusal(
                Outcome.BAD_REQUEST,
                f"model is {found}, but must be a name out of GET /v1/models",
                limit="model",
            )
        model = self._models.get(name)
        if not key.may_use(name):
            raise Refusal(
                Outcome.MODEL_NOT_ALLOWED,
                f"this key may not use the model {name!r:.100}; GET /v1/models lists what it may",
                limit="model",
            )
        if model is None:
            raise Refusal(
                Outcome.MODEL_UNKNOWN,
                f"there is no model {name!r:.100}; GET /v1/models lists what there is",
                limit="model",
            )
        return model

    # ----------------------------------------------------------------- about itself

    def _page(self, scope: Scope) -> Response | None:
        known = dict(scope["headers"]).get(b"if-none-match", b"").decode("latin-1")
        return self._pages.answer(scope["path"], known)

    def _list_models(self, scope: Scope) -> tuple[int, bytes, bytes]:
        key = self._identify(dict(scope["headers"])).key
        names = [name for name in self._models if key.may_use(name)]
        data = [
            {"id": name, "object": "model", "created": self._created, "owned_by": "carpool"}
            for name in names
        ]
        return _json(200, {"object": "list", "data": data})

    def _health(self, scope: Scope) -> tuple[int, bytes, bytes]:
        """The process lives: nothing a model does changes that."""
        return _json(200, {"status": "ok"})

    def _ready(self, scope: Scope) -> tuple[int, bytes, bytes]:
        """Whether some model can answer, and all of them by name."""
        states = {
            model.name: any(replica.is_ready for replica in model.replicas)
            for model in self._models.values()
        }
        is_ready = any(states.values()) and not self.is_draining
        return _json(200 if is_ready else 503, {"ready": is_ready, "models": states})

    def _show_metrics(self, scope: Scope) -> tuple[int, bytes, bytes]:
        """For who asks from this machine; others need an admin's means."""
        host = (scope.get("client") or ("127.0.0.1", 0))[0]
        if not host.startswith(_LOOPBACK):
            raise Refusal(Outcome.MODEL_NOT_ALLOWED, "/metrics is for this machine alone")
        return 200, CONTENT_TYPE_LATEST.encode(), generate_latest(self._books.metrics.registry)

    def _version(self, scope: Scope) -> tuple[int, bytes, bytes]:
        return _json(200, {"version": __version__})


def _draining() -> Refusal:
    return Refusal(Outcome.DRAINING, "the server is shutting down; try again", retry_after_s=5)


def _check_is_json(headers: Mapping[bytes, bytes]) -> None:
    """Where no key is asked for, any web page could send a form or plain text from the browser
    of somebody on this machine; JSON it could not."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and not kind.endswith(b"+json"):
        raise Refusal(
            Outcome.NOT_JSON, "send the header Content-Type: application/json", limit="content-type"
        )


async def _refuse(exchange: Exchange, refusal: Refusal, client: Client) -> None:
    exchange.outcome, exchange.status = refusal.outcome, refusal.status
    try:
        await send_refusal(client, refusal, exchange.kind, exchange.answer_headers())
    except ClientGone:
        exchange.outcome = Outcome.CLIENT_CANCELLED


def _json(status: int, body: dict[str, Any]) -> tuple[int, bytes, bytes]:
    return status, b"application/json", json.dumps(body).encode()
