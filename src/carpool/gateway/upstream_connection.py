"""One connection to an engine and the answer that is arriving on it."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

import httptools

from carpool.gateway.upstream_errors import (
    CutOff,
    FirstByteLate,
    IdleTooLong,
    Malformed,
    Timeouts,
    TotalTooLong,
    UpstreamError,
)

MAX_HEADER_BYTES = 64 * 1024
# Beyond this many unread bytes the engine is not read from until the client has caught up.
MAX_UNREAD_BYTES = 256 * 1024

Headers = list[tuple[bytes, bytes]]


class UpstreamResponse:
    """An answer: `status` and `headers` (names in lower case), then its body by `read`.

    Leaving it (`async with`, or `close`) before the body's end closes the connection at once,
    which is how an engine learns that nobody wants the rest.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_error",
        "_first_byte_at",
        "_has_head",
        "_header_bytes",
        "_last_byte_at",
        "_sent_at",
        "_timeouts",
        "_timer",
        "_unread",
        "_waiter",
        "headers",
        "is_complete",
        "is_delimited",
        "is_reusable",
        "is_untouched",
        "status",
    )

    def __init__(self, connection: "Connection", timeouts: Timeouts) -> None:
        self.status = 0
        self.headers: Headers = []
        self.is_untouched = True  # not one byte has come
        self.is_delimited = False  # the body's end is marked, not just the connection's
        self.is_complete = False
        self.is_reusable = False
        self._connection = connection
        self._timeouts = timeouts
        self._chunks: list[bytes] = []
        self._unread = 0
        self._header_bytes = 0
        self._has_head = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._first_byte_at: float | None = None
        self._sent_at = self._last_byte_at = connection.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    @property
    def age(self) -> float:
        """Seconds since the request was sent."""
        return self._connection.loop.time() - self._sent_at

    async def head(self) -> None:
        """Returns when `status` and `headers` stand. Raises UpstreamError."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """All that has arrived since the last call, waiting for some; b"" at the end.

        Raises UpstreamError, after everything that came before it was read.
        """
        while not self._chunks:
            if self.is_complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        chunks, self._chunks = self._chunks, []
        if self._unread > MAX_UNREAD_BYTES:
            self._connection.resume_reading()
        self._unread = 0
        self._last_byte_at = self._connection.loop.time()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    def forget_first_byte(self) -> None:
        """What came so far was no answer (a comment): the first-byte timer goes on."""
        self._first_byte_at = None
        self._arm()

    def close(self) -> None:
        """Gives the connection up unless the answer is complete; idempotent."""
        self._stop_timer()
        if not self.is_complete:
            self._error = self._error or CutOff("the answer was left before its end")
            self._connection.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _wait(self) -> None:
        waiter = self._waiter = self._connection.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the parser calls; the connection's `data_received` wakes the reader afterwards.

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise Malformed("the engine sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + len(": \r\n")
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._connection.parser.get_status_code()
        if status < 200:  # an interim answer; the real one follows
            self.headers.clear()
            return
        self.status = status
        self._has_head = True
        self.is_delimited = status in (204, 304) or any(
            name in (b"content-length", b"transfer-encoding") for name, _ in self.headers
        )

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._unread += len(data)

    def on_message_complete(self) -> None:
        if not self._has_head:
            return
        self.is_complete = True
        self.is_reusable = self._connection.parser.should_keep_alive()

    # What the connection calls.

    def fed(self, num_bytes: int) -> None:
        """`num_bytes` more have been parsed."""
        self.is_untouched = False
        if not self._has_head:
            self._header_bytes += num_bytes
        if self._header_bytes > MAX_HEADER_BYTES:
            self.fail(Malformed(f"the engine's headers are over {MAX_HEADER_BYTES} bytes"))
            return
        if self._chunks:
            self._last_byte_at = self._connection.loop.time()
            if self._first_byte_at is None:
                self._first_byte_at = self._last_byte_at
                if not self.is_complete:
                    self._arm()
        if self.is_complete:
            self._stop_timer()
        elif self._unread > MAX_UNREAD_BYTES:
            self._connection.pause_reading()
        self._wake()

    def ended(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self.is_complete or self._error is not None:
            return
        if self._has_head and not self.is_delimited and error is None:
            self.is_complete = True
            self._stop_timer()
            self._wake()
            return
        begun = "in the middle of its answer" if self._has_head else "before it answered"
        self.fail(CutOff(f"the engine closed the connection {begun}"))

    def fail(self, error: UpstreamError) -> None:
        """A complete answer has not failed, and its connection may be another's by now."""
        if self.is_complete:
            return
        if self._error is None:
            self._error = error
        self._stop_timer()
        self._connection.abort()
        self._wake()

    # Timers: one handle, looked at when it fires, so that a byte costs no timer call.

    def _arm(self) -> None:
        self._stop_timer()
        deadline = min(self._total_deadline(), self._next_deadline())
        if deadline != math.inf and not self.is_complete:
            self._timer = self._connection.loop.call_at(deadline, self._check_time)

    def _total_deadline(self) -> float:
        """In loop time, as `_next_deadline`; infinity: none."""
        total = self._timeouts.total
        return math.inf if total is None else self._sent_at + total

    def _next_deadline(self) -> float:
        """When the next byte of the body is late."""
        if self._first_byte_at is None:
            first_byte = self._timeouts.first_byte
            return math.inf if first_byte is None else self._sent_at + first_byte
        if self._timeouts.idle is None:
            return math.inf
        # With bytes unread it is our turn, not the engine's.
        since = self._connection.loop.time() if self._unread else self._last_byte_at
        return since + self._timeouts.idle

    def _check_time(self) -> None:
        now = self._connection.loop.time()
        timeouts = self._timeouts
        if self._total_deadline() <= now:
            seconds = f"{timeouts.total:g} s (total timeout)"
            self.fail(TotalTooLong(f"the answer was not complete after {seconds}"))
        elif self._next_deadline() > now:
            self._arm()
        elif self._first_byte_at is None:
            seconds = f"{timeouts.first_byte:g} s (first-byte timeout)"
            self.fail(FirstByteLate(f"the engine sent nothing for {seconds}"))
        else:
            seconds = f"{timeouts.idle:g} s (idle timeout)"
            self.fail(IdleTooLong(f"the engine paused for over {seconds} in its answer"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connection(asyncio.Protocol):
    """A keep-alive connection; at most one answer is arriving on it at a time.

    `release` is called with the connection when it is free for the next request.
    """

    __slots__ = ("_release", "_response", "_transport", "freed_at", "loop", "parser")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, release: Callable[["Connection"], None]
    ) -> None:
        self.loop = loop
        self.freed_at = 0.0  # loop time
        self._release = release
        self._response: UpstreamResponse | None = None
        self._transport: asyncio.Transport | None = None
        self.parser: httptools.HttpResponseParser

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, request: tuple[bytes, bytes], timeouts: Timeouts) -> UpstreamResponse:
        """Sends the request (its head, its body); the answer to it."""
        response = UpstreamResponse(self, timeouts)
        self._response = response
        self.parser = httptools.HttpResponseParser(response)
        if self._transport is not None:
            self._transport.write(b"".join(request))
        return response

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # nobody asked: whatever this is, it answers no request
            self.abort()
            return
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not response.is_complete:
                response.fail(Malformed(f"the engine's answer is not valid HTTP: {error}"))
                return
            response.is_reusable = False
        response.fed(len(data))
        if response.is_complete:
            self._free(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        response, self._response = self._response, None
        if response is not None:
            response.ended(exc)

    def _free(self, response: UpstreamResponse) -> None:
        self._response = None
        has_sent_all = self._transport is not None and self._transport.get_write_buffer_size() == 0
        if response.is_reusable and has_sent_all and self.is_open:
            self.freed_at = self.loop.time()
            self._release(self)
        else:
            self.abort()
