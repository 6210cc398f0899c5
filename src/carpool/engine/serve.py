"""One process that serves one model: load beside listening, and leave in good order."""

import logging
import socket
from collections.abc import Callable

from carpool.engine.engine import AsyncEngine
from carpool.engine.loader import LoadedModel
from carpool.engine.server import create_app
from carpool.serving.http_server import http_server, stop_signals, unless_set

log = logging.getLogger(__name__)


async def serve(
    engine: AsyncEngine,
    listener: socket.socket,
    *,
    drain_s: float,
    on_ready: Callable[[LoadedModel], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs for at most `drain_s` seconds; a
    second signal ends that at once. Raises what loading the model raised."""
    stop = stop_signals()
    try:
        async with http_server(create_app(engine), listener):
            engine.start()
            loaded = await unless_set(stop, engine.wait_until_loaded())
            if loaded is not None:
                on_ready(loaded)
                await stop.wait()
                stop.clear()
                if engine.num_streams:
                    log.warning(
                        "finishing what runs (%d), for at most %g s; another signal stops at once",
                        engine.num_streams,
                        drain_s,
                    )
                if await unless_set(stop, engine.drain(drain_s)) is None:
                    await engine.drain(0)
    finally:
        await engine.stop()
