"""Reads a JSON object from a request, whatever was sent instead."""

from typing import Any

from pydantic_core import from_json
from starlette.types import Receive, Scope

from carpool.engine.errors import ApiError, invalid, show

MAX_JSON_MARKS = 2**18
"""Brackets and commas. Parsing makes an object of each, while nothing else can run."""


class ClientDisconnected(Exception):
    """Nobody is there to answer."""


async def read_json_object(scope: Scope, receive: Receive, max_bytes: int) -> dict[str, Any]:
    """The request's body. NaN and infinities pass here: the field they stand in refuses them.

    Raises ApiError: 413 over `max_bytes`, 415 for another content type, 400 for what is not
    JSON (the place is in the message) or not an object. Raises ClientDisconnected.
    """
    headers = dict(scope["headers"])
    _require_json(headers.get(b"content-type", b"").decode("latin-1"))
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    return parse_json_object(await _read(receive, max_bytes))


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Raises ApiError (400). The parser stops at 200 levels and at lone surrogates."""
    if not body:
        raise invalid("the request has no body; send a JSON object")
    num_marks = sum(map(body.count, (b"[", b"{", b",")))
    if num_marks > MAX_JSON_MARKS:
        raise invalid(
            f"the request body has {num_marks:,} commas and brackets, but at most "
            f"{MAX_JSON_MARKS:,} are read; send less",
            code="request_too_large",
        )
    try:
        value = from_json(body)
    except ValueError as error:
        raise invalid(f"the request body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid(f"the request body is {show(value)}, but must be a JSON object")
    return value


def _require_json(content_type: str) -> None:
    """A web page can make a browser post forms, plain text, and what has no type to any
    address, but not JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        is_what = f"is {show(content_type)}, but" if content_type else "is missing; it"
        raise ApiError(
            415,
            f"Content-Type {is_what} must be application/json",
            code="unsupported_media_type",
        )


async def _read(receive: Receive, max_bytes: int) -> bytes:
    parts, num_bytes, has_more = [], 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        has_more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the request body is over {max_bytes:,} bytes, the most this server reads",
        code="request_too_large",
    )
