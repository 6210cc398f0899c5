"""One process that serves one model: load beside listening, and leave in good order."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvicorn

from carpool.engine.engine import AsyncEngine
from carpool.engine.loader import LoadedModel
from carpool.engine.server import create_app

T = TypeVar("T")

LAST_BYTES_S = 3
"""Seconds for answers that are complete, or were cut off, to reach their clients."""


class _Server(uvicorn.Server):
    """Signals are ours: on SIGTERM it goes on answering, with refusals, until it is drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    engine: AsyncEngine,
    listener: socket.socket,
    *,
    drain_s: float,
    on_ready: Callable[[LoadedModel], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs for at most `drain_s` seconds; a
    second signal ends that at once. Raises what loading the model raised."""
    server = _Server(
        uvicorn.Config(
            create_app(engine),
            access_log=False,
            log_config=None,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=LAST_BYTES_S,
        )
    )
    stop = _stop_signals()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    engine.start()
    try:
        loaded = await _unless_stopped(engine.wait_until_loaded(), stop)
        if loaded is not None:
            on_ready(loaded)
            await stop.wait()
            stop.clear()
            if await _unless_stopped(engine.drain(drain_s), stop) is None:
                await engine.drain(0)
    finally:
        server.should_exit = True
        await serving
        await engine.stop()


def _stop_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _unless_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """The result of `work`; None if `stop` was set first, which cancels it."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()
