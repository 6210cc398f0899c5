"""The one who asked, as an ASGI server shows them: what they are sent, and whether they are there.

An ASGI server tells that a client has gone only to those who ask, so somebody must be asking
for as long as work is done for them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from types import TracebackType
from typing import Any, Self

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
OnDisconnect = Callable[[Callable[[], None]], None]
"""Takes what to call when the client closes the connection before the answer is complete."""


class ClientGone(Exception):
    """The client has closed the connection: nobody waits for what is being done."""


class Client:
    """Made once the request's body has been read; watches the client while its `with` lasts:
    by `on_disconnect` where the server has one, else by asking `receive`."""

    __slots__ = (
        "_end",
        "_on_disconnect",
        "_receive",
        "_send",
        "_watcher",
        "interruption",
        "is_behind",
        "is_finished",
        "is_gone",
        "is_started",
    )

    def __init__(
        self, receive: Receive, send: Send, on_disconnect: OnDisconnect | None = None
    ) -> None:
        self.is_started = False  # status and headers are sent
        self.is_finished = False
        self.is_gone = False
        self.is_behind = False  # something waits for it to read
        self._end: Exception | None = None
        self._on_disconnect = on_disconnect
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self.interruption: Interruption | None = None

    def __enter__(self) -> Self:
        if self._on_disconnect is not None:
            self._on_disconnect(self._disconnected)
        else:
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

    def interrupting(self) -> "Interruption":
        """What is awaited in here is cancelled when the client goes, and ClientGone is raised.

        Not to be nested. A cancellation from elsewhere stays one.
        """
        return Interruption(self)

    def interrupt(self, error: Exception) -> None:
        """Cancel what is awaited in `interrupting`, now or later, and raise `error` there."""
        self._end = self._end or error
        if self.interruption is not None:
            self.interruption.interrupt()

    @property
    def end(self) -> Exception | None:
        """Why nothing more is to be done for this client."""
        return self._end

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
        self.is_behind = True
        try:
            await self._send(message)
        except OSError:
            self.is_gone = True
            self._end = self._end or ClientGone()
            raise ClientGone from None
        finally:
            self.is_behind = False

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnected()

    def _disconnected(self) -> None:
        if self.is_finished:
            return
        self.is_gone = True
        self.interrupt(ClientGone())


class Interruption:
    """The context that `Client.interrupting` gives."""

    __slots__ = ("_client", "_has_interrupted", "_num_cancels", "_task")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._has_interrupted = False

    def __enter__(self) -> None:
        if self._client.end is not None:
            raise self._client.end
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a client can only interrupt a task")
        self._task = task
        self._num_cancels = task.cancelling()
        self._client.interruption = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.interruption = None
        if not self._has_interrupted:
            return
        is_ours = self._task.uncancel() <= self._num_cancels
        if is_ours and isinstance(error, asyncio.CancelledError) and self._client.end is not None:
            raise self._client.end from None

    def interrupt(self) -> None:
        """Once: a second cancellation would be taken for one from elsewhere."""
        if not self._has_interrupted:
            self._has_interrupted = True
            self._task.cancel()
