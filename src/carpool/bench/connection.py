"""Kept-alive HTTP/1.1 connections that cost a load generator as little as they can.

No limit on their number: a request that waits for a connection would be measured as slow.
"""

import asyncio
import errno
import ssl
import time
from collections.abc import Callable
from typing import Any

import httptools

from carpool.backends.address import Address
from carpool.bench.exchange import Exchange
from carpool.bench.stamped_socket import StampedSocket, connect, is_stamped

# Servers close idle connections; uvicorn after 5 s.
KEEP_ALIVE_S = 4.0
CONNECT_TIMEOUT_S = 30.0
_clock = time.monotonic


class Connection(asyncio.Protocol):
    """At most one answer is arriving on it at a time. `release` is called when it is free."""

    __slots__ = ("_exchange", "_parser", "_release", "_transport", "freed_at", "num_answers")

    def __init__(self, release: Callable[["Connection"], None]) -> None:
        self.freed_at = 0.0
        self.num_answers = 0
        self._release = release
        self._exchange: Exchange | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._transport: asyncio.Transport | StampedSocket | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, request: bytes, exchange: Exchange) -> None:
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(exchange)
        exchange.bind(self._parser)
        exchange.sent = _clock()
        if self._transport is None:
            exchange.finish(exchange.sent, "cut", "the connection was closed")
        else:
            self._transport.write(request)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport | StampedSocket) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.received(data, _clock())

    def received(self, data: bytes, now: float) -> None:
        """`now`: when the bytes arrived, which may be a little before they were read."""
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self.abort()
            return
        exchange.now = now
        exchange.has_begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            exchange.finish(exchange.now, "malformed", f"no HTTP: {error}")
            self.abort()
            return
        if exchange.is_complete:
            self._free(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange, self._exchange, self._parser = self._exchange, None, None
        if exchange is None:
            return
        if exchange.status and not exchange.is_delimited and exc is None:
            exchange.is_complete = True
            exchange.finish(_clock())
        else:
            begun = "in the middle of its answer" if exchange.has_begun else "before it answered"
            exchange.finish(_clock(), "cut", f"the server closed the connection {begun}")

    def _free(self, exchange: Exchange) -> None:
        self._exchange = self._parser = None
        self.num_answers += 1
        if exchange.is_reusable and self.is_open:
            self.freed_at = exchange.now
            self._release(self)
        else:
            self.abort()
        exchange.finish(exchange.now)


class Connections:
    """Those to one address, in one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._tls = ssl.create_default_context() if address.is_tls else None

    async def fetch(self, request: bytes, exchange: Exchange, timeout_s: float) -> None:
        """Sends the request and waits for the answer's end or a fault: both stand in `exchange`.

        Cancelled, it closes the connection. A request is sent twice in one case: a kept
        connection turned out to be closed before a byte of an answer came.
        """
        loop = asyncio.get_running_loop()
        deadline = exchange.due + timeout_s
        connection: Connection | None = None
        try:
            async with asyncio.timeout(max(0.0, deadline - _clock())):
                connection = self._take_idle()
                if connection is not None:
                    connection.begin(request, exchange)
                    await exchange.done
                    if exchange.error != "cut" or exchange.has_begun:
                        return
                    exchange.again(loop.create_future())
                connection = await self._connect_for(exchange)
                if connection is not None:
                    connection.begin(request, exchange)
                    await exchange.done
        except TimeoutError as error:
            if error.errno is not None:  # of the system, to a connect that nobody answered
                exchange.finish(_clock(), *_why_not(error))
            exchange.finish(_clock(), "timeout", f"no whole answer within {timeout_s:g} s")
        except OSError as error:
            exchange.finish(_clock(), *_why_not(error))
        finally:
            if connection is not None and not exchange.is_complete:
                connection.abort()

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _connect_for(self, exchange: Exchange) -> Connection | None:
        """None where the exchange was given up before there was a connection."""
        connecting = asyncio.create_task(self._connect())
        try:
            either: set[asyncio.Future[Any]] = {connecting, exchange.done}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if exchange.is_finished:
                return None
            return await connecting
        finally:
            if not connecting.done():
                connecting.cancel()
            elif exchange.is_finished and connecting.exception() is None:
                connecting.result().abort()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        address = self._address
        if address.uds is not None:
            _, made = await loop.create_unix_connection(self._new, str(address.uds))
        elif is_stamped(address):
            made = self._new()
            made.connection_made(await connect(loop, address.host, address.port, made))
        else:
            _, made = await loop.create_connection(
                self._new, address.host, address.port, ssl=self._tls
            )
        return made

    def _new(self) -> Connection:
        return Connection(self._idle.append)

    def _take_idle(self) -> Connection | None:
        now = _clock()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.freed_at < KEEP_ALIVE_S:
                return connection
            connection.abort()
        return None


def _why_not(error: OSError) -> tuple[str, str]:
    """The kind of a failed connect, and what to say of it."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS):
        return "client", f"this machine cannot open more connections: {error.strerror}"
    if isinstance(error, ssl.SSLError):
        return "connect", f"no TLS: {error.reason or error}"
    return "connect", f"no connection: {error.strerror or str(error) or type(error).__name__}"
