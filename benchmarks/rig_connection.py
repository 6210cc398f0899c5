"""HTTP connections of a load generator, which cost its core as little as they can."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import httptools


class Listener(Protocol):
    """What hears of a connection's answers: one at a time, in order."""

    def piece(self, data: bytes) -> None:
        """A part of the body."""

    def ended(self, status: int) -> None:
        """The answer is whole."""

    def lost(self) -> None:
        """The connection is gone; not called after `close`."""


class Connection(asyncio.Protocol):
    """One kept-alive HTTP/1.1 connection with one request under way at most."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._parser = httptools.HttpResponseParser(self)
        self._is_closed = False
        self._transport: Any = None

    def ask(self, request: bytes) -> None:
        self._transport.write(request)

    def close(self) -> None:
        """At once, whatever is under way."""
        self._is_closed = True
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.listener.lost()

    def on_body(self, data: bytes) -> None:
        self.listener.piece(data)

    def on_message_complete(self) -> None:
        self.listener.ended(self._parser.get_status_code())


Connect = Callable[[Listener], Awaitable[Connection]]


def connect_to(where: int | Path) -> Connect:
    """Opens connections to a port of this machine, or to a Unix socket."""

    async def connect(listener: Listener) -> Connection:
        loop = asyncio.get_running_loop()
        if isinstance(where, Path):
            _, made = await loop.create_unix_connection(lambda: Connection(listener), str(where))
        else:
            _, made = await loop.create_connection(lambda: Connection(listener), "127.0.0.1", where)
        return made

    return connect


def post(path: str, key: str, body: dict[str, Any]) -> bytes:
    """A whole request, as bytes; `key` "" sends none."""
    content = json.dumps(body, separators=(",", ":")).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    if key:
        head += f"authorization: Bearer {key}\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content
