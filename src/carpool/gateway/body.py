"""A request's body, read once and bounded."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from carpool.gateway.client import ClientGone
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int) -> bytes:
    """The whole body. Raises Refusal for one that is too large, before reading it if it says
    so, and ClientGone."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(int(length), max_bytes)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(len(body), max_bytes)
        return body
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > max_bytes:
            raise _too_large(num_bytes, max_bytes)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


def _too_large(num_bytes: int, max_bytes: int) -> Refusal:
    return Refusal(
        Outcome.TOO_LARGE,
        f"the body has {num_bytes:,} bytes or more, and at most {max_bytes:,} are taken; send less",
        limit="max_body_bytes",
    )
