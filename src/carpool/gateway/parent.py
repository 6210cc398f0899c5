"""Several workers behind one listener: their parent launches engines and workers, starts them
again when they end, and shows the admin API and everybody's figures together."""

import asyncio
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from carpool.backends.address import Address
from carpool.backends.backend import BackendState, Command
from carpool.backends.supervision import BackendStatus
from carpool.backends.supervisor import Supervisor
from carpool.gateway.admin_app import make_admin_app
from carpool.gateway.alert_metrics import AlertMetrics
from carpool.gateway.alerting import make_alert_watch
from carpool.gateway.engine_roster import EngineRoster
from carpool.gateway.figures import PLACES
from carpool.gateway.in_flight import InFlightCounts
from carpool.gateway.key_ring import KeyRing
from carpool.gateway.live_state import GatewayLive
from carpool.gateway.metrics import replica_families
from carpool.gateway.model_service import (
    ModelService,
    make_backend,
    make_named_backend,
    own_gate,
)
from carpool.gateway.recording import GatewaySource
from carpool.gateway.worker_config import (
    PARENT_NEWS,
    WORKER_CONFIG,
    EngineConfig,
    EngineNews,
    ParentNews,
    WorkerConfig,
    WorkerSettings,
)
from carpool.gateway.worker_figures import WorkerFigures
from carpool.gateway.worker_points import WorkerPoints
from carpool.gateway.worker_process import WorkerBackend, WorkerProcess
from carpool.planning.plan import Plan
from carpool.serving.host_header import LocalHosts
from carpool.serving.http_server import TlsError, http_server, stop_signals, unless_set
from carpool.serving.listen import Address as ListenAddress
from carpool.serving.listen import listening
from carpool.store.database import Database
from carpool.watch.alert_config import AlertsConfig, AlertSetup, set_up_alerts
from carpool.watch.recorder import Recorder
from carpool.watch.watching import Watching

LAST_WORDS_S = 10.0
"""What workers may take, beyond draining, to write their last rows and end."""
_PARENTS_OWN = frozenset(
    f"carpool_gateway_{name}" for name in ("replicas_ready", "replica_state", "replica_restarts")
)

_LIVE_PATHS = ("/metrics", "/live", "/models", "/now")
"""Ends of the admin API's paths whose answers are the workers' figures."""

_WHY_FIXED = "several workers share them; restart it on the new version instead"
_log = logging.getLogger(__name__)


class Parent(Collector):
    """Of as many workers as `settings` say. To be made in the event loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        alerts: AlertSetup | None = None,
        plans: Mapping[str, Plan] | None = None,
    ) -> None:
        self._settings = settings
        counts = InFlightCounts()
        engine = partial(make_backend, settings.run_folder)
        self._services = [
            ModelService(config, counts, engine, own_gate) for config in settings.models
        ]
        self.models = [service.model for service in self._services]
        self._processes: dict[int, WorkerProcess] = {}
        backends = [
            WorkerBackend(number, Address(uds=settings.figures_of(number)))
            for number in range(settings.num_workers)
        ]
        self._workers = [
            Supervisor(backend, launch=partial(self._launch, number), noun="the worker")
            for number, backend in enumerate(backends)
        ]
        live = GatewayLive(self.models, KeyRing())
        self.figures = WorkerFigures(self._workers, live)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._registry = registry
        setup = alerts or set_up_alerts(AlertsConfig())
        watching = Watching(database, plans)
        self._alerts = make_alert_watch(
            setup, self.figures, database, watching.signals, settings.journal_folder
        )
        registry.register(AlertMetrics(self._alerts))
        roster = EngineRoster(
            self._services, partial(make_named_backend, settings.run_folder), why_fixed=_WHY_FIXED
        )
        self._admin = make_admin_app(
            database,
            self.figures,
            registry,
            self._tell_keys,
            self._alerts,
            roster,
            watching=watching,
            plans=plans,
        )
        source = GatewaySource(self._services, self.figures, WorkerPoints(self._workers).take)
        self._recorder = Recorder(source, database)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for number, service in enumerate(self._services):
            for each, supervisor in enumerate(service.supervisors):
                supervisor.on_status(partial(self._on_engine, number, each))
            service.start()
        for worker in self._workers:
            worker.start()
        self._tasks = [
            asyncio.create_task(self.figures.watch(), name="figures of workers"),
            asyncio.create_task(self._recorder.run(), name="series"),
            asyncio.create_task(self._alerts.run(), name="alerts"),
        ]

    async def wait_until_ready(self) -> None:
        """Until every model has an engine that is ready, and every worker sees it."""
        await asyncio.gather(*(service.ready() for service in self._services))
        ready = (worker.wait_until(BackendState.READY) for worker in self._workers)
        await asyncio.gather(*ready)

    async def drain(self) -> None:
        """End all workers, which finish what runs; those that do not end are killed."""
        seconds = self._settings.drain_s + LAST_WORDS_S
        stops = asyncio.gather(*(worker.stop(seconds) for worker in self._workers))
        await asyncio.shield(stops)

    def hurry(self) -> None:
        """Workers that drain cut off what still runs."""
        for process in self._processes.values():
            process.send(signal.SIGTERM)

    async def stop(self, drain_s: float = 5.0) -> None:
        await asyncio.gather(*(worker.stop(LAST_WORDS_S) for worker in self._workers))
        await asyncio.gather(*(service.stop(drain_s) for service in self._services))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._alerts.stop)

    # ------------------------------------------------------------------ what it shows

    async def admin_app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith(_LIVE_PATHS):
            await self.figures.refresh()
        await self._admin(scope, receive, send)

    async def metrics_app(self, scope: Any, receive: Any, send: Any) -> None:
        """Everybody's metrics and places, for the workers alone: who asks one of them asks for
        all."""
        if scope["type"] != "http":
            return
        if scope["path"] == "/places":  # of the last poll: pages ask often
            media_type, body = "application/json", PLACES.dump_json(self.figures.places())
        else:
            await self.figures.refresh()
            media_type, body = CONTENT_TYPE_LATEST, generate_latest(self._registry)
        headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from (each for each in self.figures.summed() if each.name not in _PARENTS_OWN)
        now = asyncio.get_running_loop().time()
        families = replica_families(self.models, now)
        yield from (each for each in families if each.name in _PARENTS_OWN)

    # ------------------------------------------------------------------ workers

    def _launch(
        self,
        number: int,
        command: Command,
        on_line: Callable[[str], None],
        on_exit: Callable[[str], None],
    ) -> WorkerProcess:
        config = WorkerConfig(
            number=number,
            settings=self._settings,
            engines=tuple(
                tuple(EngineConfig.of(each.backend) for each in service.supervisors)
                for service in self._services
            ),
        )
        process = WorkerProcess(
            command, WORKER_CONFIG.dump_json(config), [self._settings.listener], on_exit
        )
        self._processes[number] = process
        for model, service in enumerate(self._services):
            for each in range(len(service.supervisors)):
                process.tell(_line(ParentNews(engine=self._news(model, each))))
        return process

    def _on_engine(self, model: int, number: int, status: BackendStatus) -> None:
        self._tell(ParentNews(engine=self._news(model, number)))

    def _news(self, model: int, number: int) -> EngineNews:
        supervisor = self._services[model].supervisors[number]
        return EngineNews(
            model=model,
            number=number,
            state=supervisor.status.state,
            capacity=supervisor.status.capacity,
            engine_model=supervisor.backend.model,
        )

    async def _tell_keys(self) -> None:
        self._tell(ParentNews(are_keys_new=True))

    def _tell(self, news: ParentNews) -> None:
        line = _line(news)
        for process in self._processes.values():
            process.tell(line)


def _line(news: ParentNews) -> bytes:
    return PARENT_NEWS.dump_json(news)


async def serve_workers(
    make_parent: Callable[[], Parent],
    settings: WorkerSettings,
    *,
    on_ready: Callable[[Parent], None],
    admin_listener: socket.socket | None = None,
    has_admin_tls: bool = False,
) -> None:
    """As `serve`, by several workers. Raises TlsError before one is started."""
    _check_certificate(settings.tls_cert, settings.tls_key)
    stop = stop_signals()
    parent = make_parent()
    try:
        async with AsyncExitStack() as servers:
            listener = servers.enter_context(listening(ListenAddress(uds=settings.figures)))
            await servers.enter_async_context(http_server(parent.metrics_app, listener))
            if admin_listener is not None:
                certificate = {"tls_cert": settings.tls_cert, "tls_key": settings.tls_key}
                admin = http_server(
                    LocalHosts(parent.admin_app),
                    admin_listener,
                    **(certificate if has_admin_tls else {}),
                )
                await servers.enter_async_context(admin)
            parent.start()
            await unless_set(stop, parent.wait_until_ready())
            if not stop.is_set():
                on_ready(parent)
                gc.freeze()
                await stop.wait()
            stop.clear()
            await unless_set(stop, parent.drain())
            parent.hurry()
    finally:
        await parent.stop()


def _check_certificate(cert: Path | None, key: Path | None) -> None:
    if cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TlsError(f"cannot use the certificate {cert} with the key {key}: {reason}") from error
