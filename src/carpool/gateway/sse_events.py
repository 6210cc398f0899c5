"""Cuts a stream of server-sent events into events, as bytes, however it was cut in transit.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html. Lines end in LF or
CRLF (a bare CR, which the standard allows too, is no end of line here: no engine sends it).
"""

import re
from collections.abc import Iterator

from carpool.gateway.upstream_errors import Malformed

MAX_EVENT_BYTES = 16 * 1024 * 1024

_FIELDS = (b"data:", b"event:")
_find_end = re.compile(rb"\n\r?\n").search


class EventSplitter:
    """`feed` returns whole pieces in order: events with the blank line that ends them, and
    comments and blank lines between events by themselves, as soon as their line is complete.
    All pieces and `rest` together are the bytes that were fed."""

    __slots__ = ("_rest", "_searched")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0  # there is no end of an event before this

    @property
    def rest(self) -> bytes:
        """What is not yet a whole piece."""
        return bytes(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Raises Malformed for an event over `MAX_EVENT_BYTES`."""
        is_plain = not self._rest and data.startswith(_FIELDS) and b"\r" not in data
        if is_plain and data.find(b"\n\n") == len(data) - 2:
            return [data]  # the common case: one event a read
        self._rest += data
        pieces = list(self._pieces())
        if len(self._rest) > MAX_EVENT_BYTES:
            raise Malformed(f"the engine sent an event of over {MAX_EVENT_BYTES} bytes")
        return pieces

    def _pieces(self) -> Iterator[bytes]:
        start = 0
        rest = self._rest
        while start < len(rest):
            if rest[start] in b":\r\n":  # a comment or a blank line
                end = rest.find(b"\n", start) + 1
            else:
                found = _find_end(rest, max(start, self._searched))
                end = found.end() if found else 0
            if not end:
                break
            yield bytes(rest[start:end])
            start = end
        del rest[:start]
        # An end may be in three pieces at most: \n, \r, \n.
        self._searched = max(0, len(rest) - 2)


def is_event(piece: bytes) -> bool:
    """Whether a piece says anything, rather than keep the connection alive."""
    return piece[:1] not in (b":", b"\r", b"\n", b"")


def data_of(event: bytes) -> bytes:
    """The value of the event's `data` field."""
    lines = []
    for line in event.split(b"\n"):
        name, _, value = line.removesuffix(b"\r").partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return lines[0] if len(lines) == 1 else b"\n".join(lines)
