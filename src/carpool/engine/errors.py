"""Errors the HTTP server answers with, in OpenAI's shape."""

import json
import math
import re
from typing import Any

from pydantic import ValidationError

from carpool.engine.client import QueueFull
from carpool.scheduling.rejection import RejectReason, RequestRejected

_MAX_SHOWN = 80


class ApiError(Exception):
    """Answered with `status` and `{"error": {"message", "type", "param", "code"}}`.

    `param` is the field at fault; `retry_after_s` becomes a Retry-After header.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """JSON, whatever the message quotes."""
        fields = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": fields}, allow_nan=False).encode("ascii")

    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.retry_after_s is None:
            return []
        return [(b"retry-after", str(max(1, self.retry_after_s)).encode("ascii"))]


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, retry_after_s: int, code: str) -> ApiError:
    return ApiError(
        503, message, type="service_unavailable", code=code, retry_after_s=retry_after_s
    )


def server_error(message: str) -> ApiError:
    return ApiError(500, message, type="server_error", code="internal_error")


def show(value: Any) -> str:
    """`value` for a sentence: as JSON writes it, at most 80 characters."""
    if isinstance(value, str):
        value = value[: _MAX_SHOWN + 1]
    elif isinstance(value, list | dict) and len(value) > _MAX_SHOWN:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,} entries"
    elif isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def from_validation(error: ValidationError) -> ApiError:
    """The first thing pydantic found wrong, as one sentence: field, value, what is allowed."""
    first = error.errors(include_url=False)[0]
    path = _path(first["loc"])
    message = _allowed(first["msg"])
    if first["type"] == "missing":
        return invalid(f"{path} is missing; the request needs it", path)
    if not path:
        return invalid(message)
    if message.startswith(path):
        return invalid(message, path)
    return invalid(f"{path} is {show(first['input'])}, but {message}", path)


def _allowed(message: str) -> str:
    """pydantic's message in the words of the other sentences."""
    message = message.removeprefix("Value error, ")
    message = re.sub(r"^(Input|String|List|Dictionary) should", "must", message)
    return re.sub(r"a valid dictionary( or instance of \w+)?", "a JSON object", message)


def from_rejection(error: RequestRejected, param: str) -> ApiError:
    """What the scheduler refused; `param` is the field that holds the prompt."""
    match error.reason:
        case RejectReason.DUPLICATE_ID:
            return invalid(error.message, "request_id", error.reason.value)
        case RejectReason.EXCEEDS_MAX_MODEL_LEN:
            return invalid(error.message, param, "context_length_exceeded")
        case _:
            return invalid(error.message, param, error.reason.value)


def from_full_queue(error: QueueFull) -> ApiError:
    return unavailable(error.message, error.retry_after_s, "queue_full")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
