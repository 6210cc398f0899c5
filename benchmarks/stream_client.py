"""A streaming HTTP client that costs the server's machine as little as it can.

It stamps the arrival of every event and parses none but the last, which holds the usage.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass(slots=True)
class StreamTimes:
    """When a request was sent and when each of its events came, in seconds of one clock."""

    sent: float = 0.0
    events: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def ttft(self) -> float:
        return self.events[0] - self.sent

    @property
    def tpot(self) -> float:
        """Mean seconds per output token after the first."""
        return (self.events[-1] - self.events[0]) / max(1, self.num_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.events, self.events[1:], strict=False)]


class StreamFailed(Exception):
    """The server refused a request, or ended it before its end."""


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self._buffer = b""
        self._tail = b""
        self._has_head = False
        self.times = StreamTimes()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.times.sent = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._has_head:
            self._buffer += data
            head, separator, data = self._buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            self._has_head = True
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                self._fail(f"{head.decode()}\n{data.decode()}")
                return
        self._tail = (self._tail + data)[-4096:]
        num_events = data.count(b"data: {")
        if b'"usage": {' in data or b'"usage":{' in data:
            num_events -= 1
        self.times.events.extend([now] * num_events)
        if b"data: [DONE]" in self._tail and not self.done.done():
            self.times.num_tokens = _completion_tokens(self._tail)
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._fail(f"the connection ended before [DONE]: {error}")

    def _fail(self, message: str) -> None:
        if not self.done.done():
            self.done.set_exception(StreamFailed(message))


async def run_streams(
    host: str, port: int, bodies: Sequence[dict[str, Any]], path: str = "/v1/completions"
) -> list[StreamTimes]:
    """Send all `bodies` at once, each on a connection of its own; wait for the last.

    Raises StreamFailed.
    """
    loop = asyncio.get_running_loop()
    requests = [_http_request(host, path, body) for body in bodies]
    pairs = [
        await loop.create_connection(partial(_Stream, request), host, port) for request in requests
    ]
    try:
        await asyncio.gather(*(stream.done for _, stream in pairs))
    finally:
        for transport, _ in pairs:
            transport.close()
    return [stream.times for _, stream in pairs]


def _http_request(host: str, path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(
        body | {"stream": True, "stream_options": {"include_usage": True}}
    ).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def _completion_tokens(tail: bytes) -> int:
    for line in reversed(tail.split(b"\n")):
        if line.startswith(b"data: {") and b'"completion_tokens"' in line:
            return int(json.loads(line[6:])["usage"]["completion_tokens"])
    raise StreamFailed("no usage before [DONE]")
