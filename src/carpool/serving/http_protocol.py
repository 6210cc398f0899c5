"""HTTP connections that cannot take what they like: uvicorn's, with limits to a request."""

import asyncio
from collections.abc import Callable

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from carpool.serving.corked_transport import CorkedTransport

MAX_HEAD_BYTES = 64 * 1024
"""Request line, headers and trailers; the framing of one chunk. Bodies are the application's
business."""
MAX_PIPELINED = 32
"""Requests that wait, on one connection, for the answers to those before them."""
REQUEST_TIMEOUT_S = 60.0
"""From the connection, or a request's first byte, to the request's last."""
WRITE_TIMEOUT_S = 60.0
"""For a client to take anything of what waits for it. What it does not take, it holds: the
answer's memory, and that of the model behind it."""
ON_DISCONNECT = "carpool.on_disconnect"
"""A key of the ASGI scope: a function that takes what to call, once, when the client closes the
connection before the answer is complete. It costs less than a task that waits in `receive`."""


class HttpProtocol(HttpToolsProtocol):
    """Ends connections whose request has a head that is too long, or does not come to its end,
    those with too many requests at once, and those of clients that do not read.

    The parser under it keeps every header it is sent, and waits for ever. Another protocol, where
    a client offers to go over to it (Java's clients do: h2c), is not taken up.
    """

    _num_head_bytes = 0
    _has_offer = False
    _timeout: asyncio.TimerHandle | None = None
    _write_timeout: asyncio.TimerHandle | None = None
    _on_disconnect: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = CorkedTransport(transport, self.loop)  # type: ignore[assignment]
        self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timeout()
        self._stop_write_timeout()
        super().connection_lost(exc)
        if self._on_disconnect is not None:
            self._on_disconnect()

    def on_disconnect(self, call: Callable[[], None]) -> None:
        """See ON_DISCONNECT."""
        if self.cycle.disconnected:
            call()
            return
        self._on_disconnect = call
        self.flow.resume_reading()  # or nobody would see it

    def on_response_complete(self) -> None:
        self._on_disconnect = None
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timeout = self.loop.call_later(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timeout()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        self._num_head_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request's headers are over {MAX_HEAD_BYTES:,} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timeout()

    def on_headers_complete(self) -> None:
        self._num_head_bytes = 0
        self._has_offer = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._has_offer:
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            return
        super().on_headers_complete()
        self.scope[ON_DISCONNECT] = self.on_disconnect  # type: ignore[literal-required]

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._has_offer:
            return
        self._num_head_bytes = 0
        self._stop_timeout()
        super().on_message_complete()

    def _parse(self, data: bytes) -> None:
        while not self.transport.is_closing():
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                # To the parser, what follows the head is of the other protocol.
                if not self._has_offer:
                    return
                data = self._head_without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
            else:
                return

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                is_closing = b"close" in value.lower()
                value = b"close" if is_closing else b"keep-alive"
            if name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%s: %s\r\n" % (name, value))
        return b"".join((*lines, b"\r\n"))

    def _start_timeout(self) -> None:
        self._stop_timeout()
        self._timeout = self.loop.call_later(REQUEST_TIMEOUT_S, self._end_stalled)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _stop_write_timeout(self) -> None:
        if self._write_timeout is not None:
            self._write_timeout.cancel()
            self._write_timeout = None

    def _end_stalled(self) -> None:
        if self.flow.read_paused:
            self._start_timeout()  # the application has yet to read what is there
        else:
            self.transport.close()
