"""The one who asked, as an ASGI server shows them: what they are sent, and whether they are there.

An ASGI server tells that a client has gone only to those who ask, so somebody must be asking
for as long as work is done for them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ClientGone(Exception):
    """The client has closed the connection: nobody waits for what is being done."""


class Client:
    """Made once the request's body has been read; watches the client while its `with` lasts."""

    __slots__ = (
        "_has_interrupted",
        "_interruptible",
        "_receive",
        "_send",
        "_watcher",
        "is_finished",
        "is_gone",
        "is_started",
    )

    def __init__(self, receive: Receive, send: Send) -> None:
        self.is_started = False  # status and headers are sent
        self.is_finished = False
        self.is_gone = False
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self._interruptible: asyncio.Task[Any] | None = None
        self._has_interrupted = False

    def __enter__(self) -> Self:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """What is awaited in here is cancelled when the client goes, and ClientGone is raised.

        Not to be nested. A cancellation from elsewhere stays one.
        """
        if self.is_gone:
            raise ClientGone
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a client can only interrupt a task")
        num_cancels = task.cancelling()
        self._interruptible, self._has_interrupted = task, False
        try:
            yield
        except BaseException as error:
            if self._has_interrupted:
                is_ours = task.uncancel() <= num_cancels
                if is_ours and isinstance(error, asyncio.CancelledError):
                    raise ClientGone from None
            raise
        finally:
            self._interruptible = None

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Sends status and headers. Raises ClientGone, as `write` and `finish` may."""
        self.is_started = True
        await self._sent({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Sends a piece of the body; returns when the client can take more."""
        await self._sent({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Ends the body. An app that returns without it leaves the body cut, which is what a
        client is to see of an answer that was."""
        self.is_finished = True
        await self._sent({"type": "http.response.body", "body": data, "more_body": False})

    async def _sent(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:
            self.is_gone = True
            raise ClientGone from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self.is_finished:
            return
        self.is_gone = True
        if self._interruptible is not None:
            self._has_interrupted = True
            self._interruptible.cancel()
