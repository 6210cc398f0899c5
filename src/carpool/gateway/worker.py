"""A worker: a gateway that shares its listener, its engines, limits and seats with others.

Started by the parent with `python -m carpool.gateway.worker`. It lives no longer than the parent:
the end of its stdin is the parent's.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError

from carpool.backends.address import Address
from carpool.backends.backend import Backend, BackendUnreachable
from carpool.backends.http_get import http_get
from carpool.errors import CarpoolError
from carpool.gateway.figures import FIGURES, PLACES, Figures
from carpool.gateway.gateway import Gateway, GatewayOptions
from carpool.gateway.live_state import Place
from carpool.gateway.logs import set_up_logging
from carpool.gateway.model_config import ModelConfig
from carpool.gateway.serve import serve
from carpool.gateway.told_backend import ToldBackend
from carpool.gateway.worker_config import PARENT_NEWS, WORKER_CONFIG, ParentNews, WorkerConfig
from carpool.gateway.worker_points import PARCEL, Parcels
from carpool.serving.http_server import run
from carpool.serving.listen import Address as ListenAddress
from carpool.serving.listen import listening
from carpool.store.database import Database

if TYPE_CHECKING:
    from carpool.gateway.tracing import Tracing

ORPHAN_S = 8.0
"""What an orphan's requests have to end in."""
FIGURES_TIMEOUT_S = 3.0

_log = logging.getLogger(__name__)


def main() -> None:
    stdin = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    config = WORKER_CONFIG.validate_json(stdin.readline())
    settings = config.settings
    set_up_logging(settings.log_format, has_access_lines=settings.has_access_log)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        run(Worker(config).serve(stdin.readline))
    except CarpoolError as error:
        _log.error("worker %d cannot serve: %s", config.number, error)
        sys.exit(2)


class Worker:
    def __init__(self, config: WorkerConfig) -> None:
        self._number = config.number
        self._settings = config.settings
        self._engines = [
            [ToldBackend(engine, model.name) for engine in engines]
            for model, engines in zip(config.settings.models, config.engines, strict=True)
        ]
        self._is_ready = False
        self._gateway: Gateway
        self._parcels: Parcels

    async def serve(self, next_line: Callable[[], bytes]) -> None:
        """`next_line` waits for what the parent says next; nothing is the end of it."""
        settings = self._settings
        hear = _in_loop(asyncio.get_running_loop(), self._hear)
        thread = threading.Thread(target=_listen, args=(next_line, hear), daemon=True)
        with listening(ListenAddress(uds=settings.figures_of(self._number))) as figures:
            await serve(
                lambda: self._make_gateway(thread),
                socket.socket(fileno=settings.listener),
                drain_s=settings.drain_s,
                on_ready=self._on_ready,
                tls_cert=settings.tls_cert,
                tls_key=settings.tls_key,
                admin_listener=figures,
            )

    def _make_gateway(self, parent: threading.Thread) -> Gateway:
        settings = self._settings
        options = GatewayOptions(
            run_folder=settings.run_folder,
            journal_folder=settings.journal_folder,
            needs_keys=settings.needs_keys,
            has_access_log=settings.has_access_log,
            counters=settings.counters,
            num_workers=settings.num_workers,
            tracing=_tracing(settings.otlp_endpoint),
        )
        database = Database(settings.database)
        self._gateway = Gateway(settings.models, database, options, self._make_engine)
        self._parcels = Parcels(self._gateway.sums)
        self._gateway.admin_app = self._show_figures
        self._gateway.app.all_metrics = self._ask_for_metrics
        self._gateway.person_reports.places = self._ask_for_places
        parent.start()
        return self._gateway

    def _make_engine(self, config: ModelConfig, number: int) -> Backend:
        return self._engines[self._settings.models.index(config)][number]

    def _on_ready(self, gateway: Gateway) -> None:
        self._is_ready = True

    def _hear(self, line: bytes) -> None:
        news: ParentNews = PARENT_NEWS.validate_json(line)
        if (engine := news.engine) is not None:
            self._engines[engine.model][engine.number].told(engine)
        if news.are_keys_new:
            self._gateway.refresh_keys()

    # ------------------------------------------------------------------ figures

    async def _show_figures(self, scope: Any, receive: Any, send: Any) -> None:
        """An ASGI application for the parent alone."""
        if scope["type"] != "http":
            return
        status, body = 200 if self._is_ready else 503, b""
        if scope["path"] == "/figures":
            gateway = self._gateway
            status, body = (
                200,
                FIGURES.dump_json(
                    Figures(
                        metrics=generate_latest(gateway.metrics.registry).decode(),
                        models=tuple(gateway.live.models()),
                        people=tuple(gateway.live.people()),
                        places=tuple(gateway.live.places()),
                    )
                ),
            )
        elif scope["path"].startswith("/points/"):
            has = int(scope["path"].rpartition("/")[2])
            status, body = 200, PARCEL.dump_json(self._parcels.give(has))
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": status, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    async def _ask_for_metrics(self) -> tuple[int, bytes, bytes]:
        """All workers' together, from the parent."""
        try:
            answer = await http_get(
                Address(uds=self._settings.figures), "/metrics", timeout_s=FIGURES_TIMEOUT_S
            )
        except BackendUnreachable as error:
            _log.warning("the figures of all workers cannot be had: %s", error)
            return 503, b"text/plain", b"the figures of all workers cannot be had now\n"
        return answer.status, CONTENT_TYPE_LATEST.encode(), answer.body

    async def _ask_for_places(self) -> list[Place]:
        """All workers', as the parent heard of them last; of this one alone if it does not say."""
        address = Address(uds=self._settings.figures)
        with contextlib.suppress(BackendUnreachable, ValidationError):
            answer = await http_get(address, "/places", timeout_s=FIGURES_TIMEOUT_S)
            return PLACES.validate_json(answer.body)
        return self._gateway.live.places()


def _listen(next_line: Callable[[], bytes], hear: Callable[[bytes], None]) -> None:
    """A thread, so that it notices the end of the parent whatever the loop is busy with."""
    while line := next_line():
        hear(line)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_S)
    os._exit(1)


def _in_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[[bytes], None]
) -> Callable[[bytes], None]:
    return lambda line: _unless_closed(loop, function, line)


def _unless_closed(
    loop: asyncio.AbstractEventLoop, function: Callable[[bytes], None], line: bytes
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, line)


def _tracing(endpoint: str | None) -> "Tracing | None":
    if endpoint is None:
        return None
    from carpool.gateway.tracing import Tracing

    return Tracing(endpoint)


if __name__ == "__main__":
    main()
