"""A TCP connection whose bytes carry the time they arrived at this machine, by its kernel (Linux).

A load generator that shares its cores with what it measures comes late to its sockets; the
kernel does not. A transport of asyncio hides those stamps, so this one reads for itself.
"""

import asyncio
import socket
import struct
import sys
import time
from typing import Protocol

from carpool.backends.address import Address

_IS_SUPPORTED = sys.platform == "linux"
# Linux's number on x86-64, ARM and RISC-V; Python has no name for it. The stamp is a timespec.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if _IS_SUPPORTED else 0
_READ_BYTES = 256 * 1024
# A stamp older than this is none: somebody has set the clock meanwhile.
_MAX_AGE_S = 10.0
_clock, _wall_clock = time.monotonic, time.time


def is_stamped(address: Address) -> bool:
    """Whether connections to it are of this kind: not over TLS, nor through a Unix socket."""
    return _IS_SUPPORTED and address.uds is None and not address.is_tls


class Receiver(Protocol):
    def received(self, data: bytes, now: float) -> None:
        """`now`: when it arrived, in seconds of `time.monotonic`."""

    def connection_lost(self, exc: Exception | None) -> None: ...


class StampedSocket:
    """What of a transport a client of HTTP/1.1 needs, and `received` with the time."""

    __slots__ = ("_fd", "_is_closing", "_loop", "_receiver", "_sock", "_unsent")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, receiver: Receiver
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._receiver = receiver
        self._unsent = b""
        self._is_closing = False
        loop.add_reader(self._fd, self._read)

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        self._unsent = data[self._send(data) :]
        if self._unsent and not self._is_closing:
            self._loop.add_writer(self._fd, self._write_on)

    def abort(self) -> None:
        self._close(None)

    def _write_on(self) -> None:
        self._unsent = self._unsent[self._send(self._unsent) :]
        if not self._unsent and not self._is_closing:
            self._loop.remove_writer(self._fd)

    def _send(self, data: bytes) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._close(error)
            return len(data)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        if not data:
            self._close(None)
            return
        now = _clock()
        if ancillary and ancillary[0][1] == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
            age = _wall_clock() - seconds - 1e-9 * nanoseconds
            if 0 < age < _MAX_AGE_S:
                now -= age
        self._receiver.received(data, now)

    def _close(self, error: Exception | None) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._loop.call_soon(self._receiver.connection_lost, error)


async def connect(
    loop: asyncio.AbstractEventLoop, host: str, port: int, receiver: Receiver
) -> StampedSocket:
    """To the first of the host's addresses that answers. Raises OSError."""
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem: OSError | None = None
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return StampedSocket(loop, sock, receiver)
    raise problem or OSError(f"{host} has no address")
