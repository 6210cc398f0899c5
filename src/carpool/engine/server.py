"""The OpenAI-compatible HTTP server of one engine, as an ASGI application."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from carpool import __version__
from carpool.engine.chat import prepare_chat
from carpool.engine.client import EngineClient, EngineState
from carpool.engine.completions import prepare_completion
from carpool.engine.errors import ApiError, invalid, server_error, unavailable
from carpool.engine.fields import check_request_id
from carpool.engine.json_body import ClientDisconnected, read_json_object
from carpool.engine.metrics import create_registry
from carpool.engine.prepared import Prepared
from carpool.engine.request_builder import Caller
from carpool.engine.streaming import respond, send_body, send_json
from carpool.engine.tokenization import detokenize, tokenize
from carpool.serving.host_header import LocalHosts

MAX_BODY_BYTES = 8 * 1024 * 1024

_REQUEST_ID_HEADER = b"x-request-id"
_PERSON_HEADER = b"x-carpool-person"

Prepare = Callable[[EngineClient, Mapping[str, Any], Caller], Prepared]
Answer = Callable[[EngineClient, Mapping[str, Any]], dict[str, Any]]


def create_app(engine: EngineClient, *, max_body_bytes: int = MAX_BODY_BYTES) -> ASGIApp:
    """The application. It can answer /health and /ready while `engine` is still loading."""
    live_ids: set[str] = set()
    info = _Info(engine)

    def post(path: str, endpoint: "_Endpoint") -> Route:
        return Route(path, endpoint, methods=["POST"])

    def get(path: str, endpoint: Callable[[Request], Any]) -> Route:
        return Route(path, endpoint, methods=["GET"])

    routes = [
        post("/v1/chat/completions", _Generate(engine, prepare_chat, live_ids, max_body_bytes)),
        post("/v1/completions", _Generate(engine, prepare_completion, live_ids, max_body_bytes)),
        post("/tokenize", _Compute(engine, tokenize, max_body_bytes)),
        post("/detokenize", _Compute(engine, detokenize, max_body_bytes)),
        get("/v1/models", info.models),
        get("/v1/models/{name:path}", info.model),
        get("/health", info.health),
        get("/ready", info.ready),
        get("/metrics", info.metrics),
        get("/version", info.version),
    ]
    handlers: dict[Any, Any] = {
        HTTPException: _http_exception,
        ApiError: _api_error,
        Exception: _unexpected,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, middleware=[Middleware(LocalHosts)])
    # A redirection to the path without its slash would name whatever Host the client sent.
    app.router.redirect_slashes = False
    return app


class _Endpoint:
    """Reads a JSON object, answers it, and puts every ApiError into OpenAI's shape."""

    def __init__(self, engine: EngineClient, max_body_bytes: int) -> None:
        self._engine = engine
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = []
        try:
            request_id = _header_id(scope)
            headers.append((_REQUEST_ID_HEADER, request_id.encode("ascii")))
            self._require_loaded()
            body = await read_json_object(scope, receive, self._max_body_bytes)
            await self._answer(body, request_id, scope, receive, send)
        except ApiError as error:
            await send_body(send, error.status, error.body(), [*error.headers(), *headers])
        except ClientDisconnected:
            return

    def _require_loaded(self) -> None:
        engine = self._engine
        if engine.state is EngineState.LOADING:
            message = f"{engine.model_name} is loading; try again in {engine.retry_after_s} s"
            raise unavailable(message, engine.retry_after_s, "loading")
        if engine.state is EngineState.FAILED:
            raise server_error("the engine has failed; the server's log says why")

    async def _answer(
        self, body: dict[str, Any], request_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        raise NotImplementedError


class _Generate(_Endpoint):
    """Generation: a stream of events or one JSON object."""

    def __init__(
        self, engine: EngineClient, prepare: Prepare, live_ids: set[str], max_body_bytes: int
    ) -> None:
        super().__init__(engine, max_body_bytes)
        self._prepare = prepare
        self._live_ids = live_ids

    def _require_loaded(self) -> None:
        super()._require_loaded()
        if self._engine.state is EngineState.DRAINING:
            raise unavailable(
                "the server is shutting down; try again", self._engine.retry_after_s, "draining"
            )

    async def _answer(
        self, body: dict[str, Any], request_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        request_id = _body_id(body) or request_id
        if request_id in self._live_ids:
            raise invalid(
                f'request_id is "{request_id}", which a request that still runs has; '
                f"send another or none",
                "request_id",
                "duplicate_id",
            )
        self._live_ids.add(request_id)
        try:
            caller = Caller(request_id, _person_id(scope))
            prepared = await asyncio.to_thread(self._prepare, self._engine, body, caller)
            await respond(
                self._engine,
                prepared.requests,
                prepared.response,
                fields=prepared.fields,
                is_stream=prepared.is_stream,
                headers=[(_REQUEST_ID_HEADER, request_id.encode("ascii"))],
                receive=receive,
                send=send,
            )
        finally:
            self._live_ids.discard(request_id)


class _Compute(_Endpoint):
    """An answer that needs no generation."""

    def __init__(self, engine: EngineClient, answer: Answer, max_body_bytes: int) -> None:
        super().__init__(engine, max_body_bytes)
        self._compute = answer

    async def _answer(
        self, body: dict[str, Any], request_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        value = await asyncio.to_thread(self._compute, self._engine, body)
        await send_json(send, 200, value, [(_REQUEST_ID_HEADER, request_id.encode("ascii"))])


class _Info:
    """What can be asked without a body."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._registry = create_registry(engine)

    async def models(self, request: Request) -> Response:
        names = (self._engine.model_name, *self._engine.model_aliases)
        return JSONResponse({"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        names = (self._engine.model_name, *self._engine.model_aliases)
        if name not in names:
            raise ApiError(
                404,
                f'model is "{name[:80]}", but this server has {" and ".join(names)}',
                param="model",
                code="model_not_found",
            )
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        engine = self._engine
        fields: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": engine.created,
            "owned_by": "carpool",
            "root": engine.model_name,
        }
        if engine.state in (EngineState.READY, EngineState.DRAINING):
            fields["max_model_len"] = engine.max_model_len
        return fields

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        state = self._engine.state
        if state is EngineState.READY:
            return JSONResponse({"status": state.value})
        retry_after = str(max(1, self._engine.retry_after_s))
        return JSONResponse(
            {"status": state.value}, status_code=503, headers={"Retry-After": retry_after}
        )

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})


def _header_id(scope: Scope) -> str:
    """The caller's X-Request-Id, or a new one. Raises ApiError."""
    for name, value in scope["headers"]:
        if name == _REQUEST_ID_HEADER:
            return _checked_id(value.decode("latin-1"), "X-Request-Id")
    return uuid.uuid4().hex


def _body_id(body: Mapping[str, Any]) -> str | None:
    value = body.get("request_id")
    return None if value is None else _checked_id(value, "request_id")


def _checked_id(value: Any, field: str) -> str:
    try:
        return str(check_request_id(value))
    except ValueError as error:
        raise invalid(f"{field} {error}", field) from None


def _person_id(scope: Scope) -> str:
    """Whose fair share pays, as a gateway in front says. Only one on a Unix socket, which its
    owner alone can open, is believed: anybody can send a header over the network."""
    if scope.get("client"):
        return ""
    for name, value in scope["headers"]:
        if name == _PERSON_HEADER:
            return _checked_id(value.decode("latin-1"), "X-Carpool-Person")
    return ""


async def _http_exception(request: Request, error: HTTPException) -> Response:
    sentence = {
        404: f"there is nothing at {request.url.path[:200]}",
        405: f"{request.url.path[:200]} does not take {request.method[:20]} requests",
    }.get(error.status_code, error.detail)
    return _response(ApiError(error.status_code, sentence), error.headers)


async def _api_error(request: Request, error: ApiError) -> Response:
    return _response(error)


async def _unexpected(request: Request, error: Exception) -> Response:
    return _response(server_error("the server failed on this request; its log says why"))


def _response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    return Response(error.body(), error.status, headers, media_type="application/json")
