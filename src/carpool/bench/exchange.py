"""One request and the answer that arrives for it: bytes and their times, read later."""

import asyncio
from array import array
from typing import Any

_KEPT_HEADERS = (b"content-type", b"retry-after", b"x-carpool-queue-ms")


class Exchange:
    """What a connection fills in. Times are seconds of `time.monotonic`.

    `pieces` are the parts of the body, `times` when each was handed over by the socket. Nothing
    is read out of them while answers arrive: that would make the later ones late.
    """

    __slots__ = (
        "_parser",
        "done",
        "due",
        "ended",
        "error",
        "error_text",
        "has_begun",
        "headers",
        "is_complete",
        "is_delimited",
        "is_finished",
        "is_reusable",
        "now",
        "pieces",
        "sent",
        "status",
        "times",
    )

    def __init__(self, due: float, done: "asyncio.Future[None]") -> None:
        self.due = due
        self.sent = self.now = self.ended = due
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.times = array("d")
        self.pieces: list[bytes] = []
        self.error: str | None = None
        self.error_text = ""
        self.has_begun = False
        self.is_delimited = False
        self.is_complete = False
        self.is_finished = False
        self.is_reusable = False
        self.done = done
        self._parser: Any = None

    def bind(self, parser: Any) -> None:
        self._parser = parser

    def finish(self, now: float, error: str | None = None, text: str = "") -> None:
        """Once; what comes after the first time changes nothing."""
        if self.is_finished:
            return
        self.is_finished = True
        self.ended, self.error, self.error_text = now, error, text
        self._parser = None
        if not self.done.done():  # it is, where nobody waits any more
            self.done.set_result(None)

    def again(self, done: "asyncio.Future[None]") -> None:
        """For another try: not a byte of an answer has come."""
        self.is_finished, self.error, self.error_text, self.done = False, None, "", done

    # What the parser calls, in the middle of the connection's `data_received`.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _KEPT_HEADERS:
            self.headers[name] = value
        if name in (b"content-length", b"transfer-encoding"):
            self.is_delimited = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status

    def on_body(self, data: bytes) -> None:
        self.times.append(self.now)
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        if self.status:
            self.is_complete = True
            self.is_reusable = self._parser.should_keep_alive()
