"""One process that stands between people and engines, which it starts and watches."""

import gc
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from carpool.gateway.gateway import Gateway
from carpool.serving.host_header import LocalHosts
from carpool.serving.http_server import http_server, stop_signals, unless_set

SWITCH_S = 0.001
"""How long the thread that writes usage may keep the event loop waiting for the interpreter."""


async def serve(
    make_gateway: Callable[[], Gateway],
    listener: socket.socket,
    *,
    drain_s: float,
    on_ready: Callable[[Gateway], None],
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    admin_listener: socket.socket | None = None,
    has_admin_tls: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then refuse what is new and finish what runs for at most
    `drain_s` seconds; a second signal ends that at once. `make_gateway` is called in the loop.

    `on_ready` is called once, when every model is ready for the first time. The admin API is at
    `admin_listener`, with the same certificate if it `has_admin_tls`.
    """
    stop = stop_signals()
    gateway = make_gateway()
    try:
        async with AsyncExitStack() as servers:
            certificate = {"tls_cert": tls_cert, "tls_key": tls_key}
            if admin_listener is not None:
                own = certificate if has_admin_tls else {}
                await servers.enter_async_context(
                    http_server(LocalHosts(gateway.admin_app), admin_listener, **own)
                )
            app = gateway.app if gateway.needs_keys else LocalHosts(gateway.app)
            await servers.enter_async_context(http_server(app, listener, **certificate))
            gateway.start()
            await unless_set(stop, gateway.wait_until_ready())
            if not stop.is_set():
                on_ready(gateway)
                gateway.refresh_keys()  # it may have made one
                gc.freeze()  # what is there now stays: no collection need look at it again
                sys.setswitchinterval(SWITCH_S)
                await stop.wait()
            stop.clear()
            await unless_set(stop, gateway.drain(drain_s))
            gateway.cut_off()
    finally:
        await gateway.stop()
