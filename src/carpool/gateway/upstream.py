"""A lean HTTP/1.1 client for one engine: kept connections, bytes as they come."""

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable

from carpool.backends.address import Address
from carpool.gateway.upstream_connection import Connection, UpstreamResponse
from carpool.gateway.upstream_errors import ConnectFailed, CutOff, Timeouts

# uvicorn, under most engines, closes a connection that was idle for 5 s.
KEEP_ALIVE_S = 4.0
MAX_IDLE_CONNECTIONS = 256
# A stale connection shows at once. One that dies later had taken the request.
STALE_WITHIN_S = 1.0


class Upstream:
    """Sends requests to the engine at `address`; its methods belong to one event loop.

    Nothing is ever sent twice, but for one case: a kept connection that the engine had closed
    in the meantime, which shows before a byte of an answer; then a new connection is made.
    """

    def __init__(self, address: Address, *, max_idle: int = MAX_IDLE_CONNECTIONS) -> None:
        self.address = address
        self._max_idle = max_idle
        self._idle: deque[Connection] = deque()
        self._tls = ssl.create_default_context() if address.is_tls else None
        self._base_path = address.base_path.encode()
        self._host = b"host: " + address.authority.encode() + b"\r\n"
        self._is_closed = False

    @property
    def num_idle(self) -> int:
        """Connections kept for the next request."""
        return len(self._idle)

    async def send(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        timeouts: Timeouts | None = None,
    ) -> UpstreamResponse:
        """The answer, as soon as its status and headers are here; close it or read it to its end.

        `headers` are sent as they are, Host and Content-Length are added. HEAD and CONNECT are
        not for this client. Raises UpstreamError; ValueError for a path or header with a line
        break in it.
        """
        timeouts = timeouts or Timeouts()
        request = (self._head(method, path, headers, body), body)
        kept = self._take_idle()
        if kept is not None:
            response = kept.begin(request, timeouts)
            try:
                return await _with_head(response)
            except CutOff:
                if not response.is_untouched or response.age > STALE_WITHIN_S:
                    raise
        connection = await self._connect(timeouts)
        return await _with_head(connection.begin(request, timeouts))

    def close(self) -> None:
        """Closes the kept connections; answers that are arriving finish."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().abort()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()  # the latest used: least likely to be stale
            if not connection.is_open:
                continue
            if connection.loop.time() - connection.freed_at < KEEP_ALIVE_S:
                return connection
            connection.abort()
        return None

    def _release(self, connection: Connection) -> None:
        if self._is_closed:
            connection.abort()
            return
        self._idle.append(connection)
        oldest = self._idle[0]
        is_stale = not oldest.is_open or connection.freed_at - oldest.freed_at > KEEP_ALIVE_S
        if is_stale or len(self._idle) > self._max_idle:
            self._idle.popleft().abort()

    async def _connect(self, timeouts: Timeouts) -> Connection:
        loop = asyncio.get_running_loop()
        address = self.address

        def new_connection() -> Connection:
            return Connection(loop, self._release)

        try:
            async with asyncio.timeout(timeouts.connect):
                if address.uds is not None:
                    _, made = await loop.create_unix_connection(new_connection, str(address.uds))
                else:
                    _, made = await loop.create_connection(
                        new_connection, address.host, address.port, ssl=self._tls
                    )
        except TimeoutError:
            raise ConnectFailed(
                f"no connection to {address} within {timeouts.connect} s (connect timeout)"
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConnectFailed(f"no connection to {address}: {reason}") from None
        return made

    def _head(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> bytes:
        lines = [b"%s %s%s HTTP/1.1\r\n" % (method.encode(), self._base_path, path.encode())]
        lines.append(self._host)
        lines.extend([b"%s: %s\r\n" % header for header in headers])
        if body or method not in ("GET", "DELETE"):
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("a path or header with a line break in it cannot be sent")
        return head


async def _with_head(response: UpstreamResponse) -> UpstreamResponse:
    try:
        await response.head()
    except BaseException:
        response.close()
        raise
    return response
