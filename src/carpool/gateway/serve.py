"""One process that stands between people and engines, which it starts and watches."""

import socket
from collections.abc import Callable
from pathlib import Path

from carpool.gateway.gateway import Gateway
from carpool.serving.http_server import http_server, stop_signals, unless_set


async def serve(
    make_gateway: Callable[[], Gateway],
    listener: socket.socket,
    *,
    drain_s: float,
    on_ready: Callable[[Gateway], None],
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then refuse what is new and finish what runs for at most
    `drain_s` seconds; a second signal ends that at once. `make_gateway` is called in the loop.

    `on_ready` is called once, when every model is ready for the first time.
    """
    stop = stop_signals()
    gateway = make_gateway()
    try:
        async with http_server(gateway.app, listener, tls_cert=tls_cert, tls_key=tls_key):
            gateway.start()
            await unless_set(stop, gateway.wait_until_ready())
            if not stop.is_set():
                on_ready(gateway)
                await stop.wait()
            stop.clear()
            await unless_set(stop, gateway.drain(drain_s))
            gateway.cut_off()
    finally:
        await gateway.stop()
