"""A transport that sends once per turn of the event loop what was written in it.

A status line and the body that follows it at once go out in one packet and one system call,
and so do the chunks that an engine's step gave to one stream.
"""

import asyncio
from typing import Any

MAX_PENDING_BYTES = 64 * 1024
"""Beyond this it is written at once: a writer that is not asked to pause until the next turn of
the loop may never let it come."""


class CorkedTransport:
    """Stands in for `transport` where a protocol writes; the rest of it shows through."""

    __slots__ = ("_call_soon", "_num_bytes", "_pending", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        self._call_soon = loop.call_soon
        self._pending: list[bytes] = []
        self._num_bytes = 0

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._call_soon(self._flush)
        self._pending.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > MAX_PENDING_BYTES:
            self._flush()

    def close(self) -> None:
        """What was written still goes out."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._drop()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._num_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if not self._pending:
            return
        pending = self._pending
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        self._drop()
        self._write(data)

    def _drop(self) -> None:
        self._pending.clear()
        self._num_bytes = 0
