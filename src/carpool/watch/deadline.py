"""An end for what a library does with a socket: its time-outs are per read, and a server that
sends a byte now and then would go on for ever."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deadline(seconds: float, socket_of: Callable[[], socket.socket | None]) -> Iterator[None]:
    """After so many seconds the socket is shut, so that what waits on it ends, and TimeoutError
    is raised, whatever the library made of that. `socket_of` may give None while there is none:
    connecting has a time-out of its own."""
    is_over = threading.Event()

    def shut() -> None:
        is_over.set()
        connected = socket_of()
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if is_over.is_set():
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()
    if is_over.is_set():
        raise TimeoutError
