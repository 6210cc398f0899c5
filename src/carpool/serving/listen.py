"""Where the server listens: a TCP address or a Unix socket, taken before anything is loaded."""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from carpool.errors import CarpoolError

_BACKLOG = 2048


class AddressError(CarpoolError):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Address:
    """`uds`, the path of a Unix socket, if there is one; else `host` and `port` (0: any)."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None


@contextmanager
def listening(address: Address) -> Iterator[socket.socket]:
    """A listening socket; the file of a Unix socket is gone afterwards.

    Raises AddressError for an address that is in use or not ours to use.
    """
    if address.uds is None:
        with _listen_tcp(address.host, address.port) as listener:
            yield listener
        return
    with _listen_unix(address.uds) as listener:
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                address.uds.unlink()


def base_url(listener: socket.socket) -> str:
    """How a client on this machine reaches the server; "http://localhost" on a Unix socket."""
    if listener.family == socket.AF_UNIX:
        return "http://localhost"
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen_tcp(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError) as error:
        raise AddressError(f"--host {host} --port {port}: {_reason(error)}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise AddressError(
                f"port {port} of {host} is in use; give another with --port (0: any free one)"
            ) from None
        raise AddressError(f"cannot listen on {host}:{port}: {_reason(error)}") from None
    return listener


def _listen_unix(path: Path) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Whoever can connect can use the model: the file is its owner's alone from the start.
    old_mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(f"cannot listen on {path}: {_reason(error)}") from None
    finally:
        os.umask(old_mask)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on any more; never another kind of file."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{path} is there and is no socket; give another path with --uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise AddressError(f"{path} is in use by another server; give another path with --uds")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
