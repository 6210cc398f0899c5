"""Errors within streams: writing our own, and reading an engine's that came as first event."""

import json
from dataclasses import dataclass
from typing import Any

from carpool.gateway.api_kind import ApiKind
from carpool.gateway.sse_events import data_of

# How events that say an error begin, as engines spell them.
ERROR_EVENT_STARTS = (
    b'data: {"error"',
    b'data:{"error"',
    b'data: {"object":"error"',
    b'data: {"object": "error"',
    b"event: error",
    b"event:error",
)
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "NotFoundError": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 503,
    "unavailable_error": 503,
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error that was to be the first event of a stream, as an answer of its own (JSON)."""

    status: int
    body: bytes


def error_event(kind: ApiKind, message: str, *, code: str, status: int = 502) -> bytes:
    """The event that ends a stream which went wrong, in the shape that the API's clients know."""
    error: dict[str, Any] = {"message": message, "type": "server_error", "code": code}
    match kind:
        case ApiKind.MESSAGES:
            error = {"type": "error", "error": {"type": "api_error", "message": message}}
            return b"event: error\ndata: " + _compact(error) + b"\n\n"
        case ApiKind.RESPONSES:
            event = {"type": "error", "code": code, "message": message, "param": None}
            return b"event: error\ndata: " + _compact({**event, "error": error}) + b"\n\n"
        case _:
            return b"data: " + _compact({"error": {**error, "status": status}}) + b"\n\n"


def error_answer(event: bytes) -> ErrorAnswer | None:
    """The error in a first event, or None if it is none. 502 if it does not say which status."""
    if b'error"' not in event:
        return None
    data = data_of(event)
    try:
        body = json.loads(data)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict):
        return ErrorAnswer(_status(error), data)
    if isinstance(error, str) and error:
        return ErrorAnswer(502, _compact({"error": {"message": error, "type": "server_error"}}))
    if body.get("object") == "error" or body.get("type") == "error":
        return ErrorAnswer(_status(body), _compact({"error": body}))
    return None


def _status(error: dict[str, Any]) -> int:
    for name in ("code", "status"):
        value = error.get(name)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return _STATUS_OF_TYPE.get(str(error.get("type")), 502)


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
