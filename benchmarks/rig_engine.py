"""An engine of no cost: fixed answers, and streams that it paces and stamps.

Every chunk of a stream carries the moment at which it was written, as "@<nanoseconds>;" of
CLOCK_MONOTONIC, which all processes of a machine share. It answers probes like SGLang.
"""

import asyncio
import json
import random
import re
import time
from typing import Any

MODEL = "rig/model-1b"
CHUNKS_PER_S = 50
DEFAULT_CHUNKS = 16
SEATS = 4096
STAMP = re.compile(rb"@(\d+);")

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": ?true')
_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')


class RigEngine:
    """`async with` serves on a free port, `port`. `max_delay_s`: whole answers and the begin of
    streams come after a random time up to that. Needs requests with a Content-Length."""

    def __init__(
        self,
        *,
        seats: int = SEATS,
        chunks_per_s: float = CHUNKS_PER_S,
        max_delay_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.port = 0
        self.interval_s = 1 / chunks_per_s
        self.max_delay_s = max_delay_s
        self.random = random.Random(seed)
        self.num_answering = 0
        self.most_at_once = 0
        self.connections: set[_Connection] = set()
        self.pages = _pages(seats)
        self._server: asyncio.AbstractServer

    async def __aenter__(self) -> "RigEngine":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", 0, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop_connections()

    def drop_connections(self) -> None:
        """As an engine does with those that are idle, after a while."""
        for connection in list(self.connections):
            connection.transport.abort()

    def began(self) -> None:
        self.num_answering += 1
        self.most_at_once = max(self.most_at_once, self.num_answering)

    def ended(self) -> None:
        self.num_answering -= 1


class _Connection(asyncio.Protocol):
    def __init__(self, engine: RigEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._num_needed = 0
        self._is_answering = False
        self._timer: asyncio.TimerHandle | None = None
        self._num_left = 0
        self._has_usage = False
        self._due = 0.0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._engine.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._engine.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._is_answering:
            self._engine.ended()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        buffer = self._buffer
        if self._is_answering or not buffer or len(buffer) < self._num_needed:
            return
        end = buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        length = _LENGTH.search(buffer, 0, end)
        self._num_needed = end + (int(length[1]) if length else 0)
        if len(buffer) < self._num_needed:
            return
        request = bytes(buffer[: self._num_needed])
        del buffer[: self._num_needed]
        self._num_needed = 0
        if request.startswith(b"GET "):
            self.transport.write(self._engine.pages.get(request.split(b" ", 2)[1], NOT_FOUND))
            self._next()
        else:
            self._answer(request, request[end:])

    def _answer(self, request: bytes, body: bytes) -> None:
        engine = self._engine
        self._is_answering = True
        engine.began()
        begin = self._write_whole
        if _STREAM.search(body):
            wanted = _MAX_TOKENS.search(body)
            self._num_left = int(wanted[1]) if wanted else DEFAULT_CHUNKS
            self._has_usage = b'"include_usage"' in body
            begin = self._write_head
        if engine.max_delay_s:
            delay_s = engine.random.uniform(0, engine.max_delay_s)
            self._timer = self._loop.call_later(delay_s, begin)
        else:
            begin()

    def _write_whole(self) -> None:
        self.transport.write(WHOLE)
        self._end()

    def _write_head(self) -> None:
        self.transport.write(STREAM_HEAD)
        self._due = self._loop.time() + self._engine.interval_s
        self._timer = self._loop.call_at(self._due, self._write_chunk)

    def _write_chunk(self) -> None:
        self.transport.write(CHUNK % time.monotonic_ns())
        self._num_left -= 1
        if self._num_left > 0:
            self._due += self._engine.interval_s
            self._timer = self._loop.call_at(self._due, self._write_chunk)
            return
        self.transport.write(STREAM_END_USAGE if self._has_usage else STREAM_END)
        self._end()

    def _end(self) -> None:
        self._timer = None
        self._is_answering = False
        self._engine.ended()
        self._next()


# ------------------------------------------------------------------------- bytes

_USAGE = {"prompt_tokens": 24, "completion_tokens": 48, "total_tokens": 72}


def _json_page(body: Any, status: str = "200 OK") -> bytes:
    content = json.dumps(body, separators=(",", ":")).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def _pages(seats: int) -> dict[bytes, bytes]:
    info = {
        "max_running_requests": seats,
        "max_total_num_tokens": 100_000_000,
        "context_length": 10_000_000,
    }
    models = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1}]}
    return {
        b"/server_info": _json_page(info),
        b"/v1/models": _json_page(models),
        b"/health": _json_page({"status": "ok"}),
    }


def _framed(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)


def _event(delta: dict[str, str] | None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "chatcmpl-rig", "object": "chat.completion.chunk", "created": 1700000000}
    chunk = {**head, "model": MODEL, "choices": choices, **more}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


_MESSAGE = {"role": "assistant", "content": "All the words of an answer. " * 8}
NOT_FOUND = _json_page({"error": {"message": "there is no such page"}}, "404 Not Found")
WHOLE = _json_page(
    {
        "id": "chatcmpl-rig",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
        "usage": _USAGE,
    }
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n" + _framed(_event({"role": "assistant", "content": ""}))
)
# A stamp has 20 digits, so that all chunks have one length.
CHUNK = _framed(_event({"content": "@" + 20 * "0" + ";"})).replace(20 * b"0", b"%020d")
_DONE = b"data: [DONE]\n\n"
_FINISH = _event({}, "stop")
STREAM_END = _framed(_FINISH, _DONE) + b"0\r\n\r\n"
STREAM_END_USAGE = _framed(_FINISH, _event(None, usage=_USAGE), _DONE) + b"0\r\n\r\n"
