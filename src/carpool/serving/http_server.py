"""An HTTP server in this process that stops when it is told, and not a moment before."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from carpool.errors import CarpoolError
from carpool.serving.http_protocol import HttpProtocol

T = TypeVar("T")

LAST_BYTES_S = 3
"""Seconds for answers that are complete, or were cut off, to reach their clients."""


class TlsError(CarpoolError):
    """The certificate or its key cannot be used."""


def _is_news(record: logging.LogRecord) -> bool:
    """Not that an answer was left without its end: that is how clients are told of a cut."""
    return "without completing response" not in record.getMessage()


class _Server(uvicorn.Server):
    """Signals are not its business: on SIGTERM it goes on answering, with refusals, until what
    runs is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def http_server(
    app: Callable[..., Any],
    listener: socket.socket,
    *,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> AsyncIterator[None]:
    """Serve the ASGI `app` while the `async with` lasts; then wait for the last bytes.

    Raises TlsError before anything is served.
    """
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        interface="asgi3",
        ws="none",
        access_log=False,
        log_config=None,
        lifespan="off",
        server_header=False,
        # Nobody in front is believed about who asks: a header says nothing.
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=LAST_BYTES_S,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error)
        raise TlsError(
            f"cannot use the certificate {tls_cert} with the key {tls_key}: {reason}"
        ) from error
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


def stop_signals() -> asyncio.Event:
    """Set by SIGINT and SIGTERM, and by SIGHUP (its terminal has gone) unless that is ignored, as
    under nohup; clear it to notice the next."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop.set)
    return stop


async def unless_set(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None if `stop` was set first, which cancels it."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
