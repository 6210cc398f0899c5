"""A worker's gateway, put together: models over engines, keys, limits, ledger, application."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from carpool.gateway.access_log import AccessLog
from carpool.gateway.admin_app import make_admin_app
from carpool.gateway.alert_metrics import AlertMetrics
from carpool.gateway.alerting import make_alert_watch
from carpool.gateway.allowance import Allowances
from carpool.gateway.app import GatewayApp
from carpool.gateway.books import Books
from carpool.gateway.engine_roster import EngineRoster
from carpool.gateway.exchanges import Exchanges
from carpool.gateway.in_flight import InFlightCounts
from carpool.gateway.key_ring import KeyRing
from carpool.gateway.key_watch import KeyWatch
from carpool.gateway.ledger import Ledger
from carpool.gateway.live_state import GatewayLive, Place
from carpool.gateway.lock_file import LockFile
from carpool.gateway.meters import Meters
from carpool.gateway.metrics import GatewayMetrics
from carpool.gateway.model_config import ModelConfig
from carpool.gateway.model_service import (
    MakeBackend,
    ModelService,
    make_backend,
    make_named_backend,
    own_gate,
)
from carpool.gateway.outcome import Outcome
from carpool.gateway.person_report import PersonReports
from carpool.gateway.recording import GatewaySource
from carpool.gateway.refusal import Refusal
from carpool.gateway.request_recorder import RequestRecorder
from carpool.gateway.sharing import Sharing
from carpool.gateway.subject import Subject
from carpool.gateway.ticket import Ticket
from carpool.planning.plan import Plan
from carpool.store.database import Database
from carpool.store.errors import StoreError
from carpool.store.key_store import KeyStore
from carpool.store.recorded_requests import RecordedRequestStore
from carpool.store.usage_store import UsageStore, day_start, month_start
from carpool.watch.accumulator import Accumulators
from carpool.watch.alert_config import AlertsConfig, AlertSetup, set_up_alerts
from carpool.watch.alert_watch import AlertWatch
from carpool.watch.point import Point
from carpool.watch.recorder import Recorder
from carpool.watch.watching import Watching

if TYPE_CHECKING:
    from carpool.gateway.tracing import Tracing

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """`needs_keys` False lets everybody in, as one person. Engines get their sockets in
    `run_folder`; usage on its way to the database is in `journal_folder`. `counters` is the
    address of the Redis by which limits and seats are shared with others: at least with the
    `num_workers` of this gateway. `alerts` None: they go to the log, by the usual rules;
    `plans` are those of models by name.
    `lock` is where engines that take others' places are kept; `configured` are the models
    before it was read."""

    run_folder: Path
    journal_folder: Path
    needs_keys: bool = True
    has_access_log: bool = False
    counters: str | None = None
    num_workers: int = 1
    tracing: "Tracing | None" = None
    alerts: AlertSetup | None = None
    plans: Mapping[str, Plan] = field(default_factory=dict)
    lock: LockFile | None = None
    configured: Sequence[ModelConfig] = ()


class Gateway:
    """Models over supervised engines, with everything in front of them.

    `start` begins the background work, `drain` finishes what runs, `cut_off` ends it,
    `stop` ends everything else and writes the last rows. To be made in the event loop.
    """

    def __init__(
        self,
        models: Sequence[ModelConfig],
        database: Database,
        options: GatewayOptions,
        make_engine: MakeBackend | None = None,
    ) -> None:
        """`make_engine` makes engines otherwise than their configuration says."""
        self._usage = UsageStore(database)
        self._ring = KeyRing(self._on_revoked, self._on_changed)
        self._sharing: Sharing | None = None
        if options.counters is not None:
            self._sharing = Sharing(options.counters, options.num_workers, self._used_tokens)
        self._allowances = Allowances(
            Meters(self._used_tokens) if self._sharing is None else self._sharing.limits
        )
        self._key_watch = KeyWatch(self._ring, KeyStore(database))
        if options.needs_keys:
            self._key_watch.load()
        counts = InFlightCounts()
        make_engine = make_engine or partial(make_backend, options.run_folder)
        make_gate = own_gate if self._sharing is None else self._sharing.make_gate
        self._services = [ModelService(config, counts, make_engine, make_gate) for config in models]
        self.models = [service.model for service in self._services]
        self._roster = EngineRoster(
            self._services,
            partial(make_named_backend, options.run_folder),
            options.lock,
            options.configured,
        )
        self._ledger = Ledger(
            options.journal_folder, self._usage.insert, asyncio.get_running_loop().call_soon
        )
        keys_age_s = (lambda: self._key_watch.age_s) if options.needs_keys else None
        self.metrics = GatewayMetrics(
            self.models, self._ledger, keys_age_s, self._are_counters_away
        )
        access_log = AccessLog() if options.has_access_log else None
        is_alone = options.num_workers == 1
        self.sums = Accumulators(has_think=is_alone)
        self._request_recorder = RequestRecorder(RecordedRequestStore(database).insert)
        books = Books(
            self._ledger,
            self.metrics,
            access_log,
            options.tracing,
            self.sums,
            self._request_recorder,
        )
        self._tracing = options.tracing
        self._exchanges = Exchanges(books)
        self.app = GatewayApp(
            self.models,
            self._ring if options.needs_keys else None,
            self._allowances,
            self._exchanges,
            books,
        )
        self.live = GatewayLive(self.models, self._ring)
        self.person_reports = PersonReports(self.models, self._usage, self._places)
        self.app.reports = {
            "/v1/me": self.person_reports.now,
            "/v1/me/usage": self.person_reports.usage,
        }
        self._recorder: Recorder | None = None
        if is_alone:  # among workers, the parent records
            source = GatewaySource(self._services, self.live, self._take_sums)
            self._recorder = Recorder(source, database)
        self._alerts: AlertWatch | None = None
        watching: Watching | None = None
        if is_alone:
            setup = options.alerts or set_up_alerts(AlertsConfig())
            watching = Watching(database, options.plans)
            self._alerts = make_alert_watch(
                setup, self.live, database, watching.signals, options.journal_folder
            )
            self.metrics.registry.register(AlertMetrics(self._alerts))
        self.admin_app: ASGIApp = make_admin_app(
            database,
            self.live,
            self.metrics.registry,
            on_change=self._key_watch.refresh,
            alerts=self._alerts,
            watching=watching,
            plans=options.plans,
            roster=self._roster,
        )
        self.needs_keys = options.needs_keys
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._run("usage", self._ledger.run())
        self._run("recorded requests", self._request_recorder.run())
        self._run("event loop's lag", self.metrics.watch_loop())
        if self._recorder is not None:
            self._run("series", self._recorder.run())
        if self._alerts is not None:
            self._run("alerts", self._alerts.run())
        if self._sharing is not None:
            self._run("shared counters", self._sharing.run())
        if self.needs_keys:
            self._run("keys", self._key_watch.run())
        for service in self._services:
            service.start()
            self._run(f"load of {service.config.name}", service.watch_load())

    async def wait_until_ready(self) -> None:
        """Returns once every model has an engine that is ready."""
        await asyncio.gather(*(service.ready() for service in self._services))

    async def drain(self, within_s: float) -> bool:
        """Refuse what is new and what waits, and let what runs finish; False if some of it still
        ran after `within_s` seconds."""
        self.app.drain()
        for model in self.models:
            model.gate.close(_shutting_down())
        try:
            await asyncio.wait_for(self.app.is_idle.wait(), within_s)
        except TimeoutError:
            return False
        return True

    def cut_off(self) -> None:
        """What still runs ends with an error."""
        self._exchanges.stop_all(_shutting_down())

    async def stop(self, drain_s: float = 5.0) -> None:
        await self._roster.stop()
        await asyncio.gather(*(service.stop(drain_s) for service in self._services))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._alerts is not None:
            await asyncio.to_thread(self._alerts.stop)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.stop)

    def refresh_keys(self) -> None:
        """Now, and not with the next poll."""
        self._run("keys that changed", self._key_watch.refresh())

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """In the background, and not without a word if it fails."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_tell_failure)
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)

    def _on_revoked(self, key_id: str) -> None:
        refusal = Refusal(Outcome.KEY_REVOKED, "the key of this request was revoked")

        def is_of_key(ticket: Ticket) -> bool:
            return ticket.key_id == key_id

        for model in self.models:
            model.gate.refuse_waiting(is_of_key, refusal)
        self._exchanges.stop_key(key_id)

    def _on_changed(self) -> None:
        """Who waits does so by the limits that hold now."""
        self._allowances.forget()
        for model in self.models:
            model.gate.renew(partial(self._allowances.renew, self._ring, model))

    async def _take_sums(self) -> dict[str, Point]:
        return self.sums.take()

    async def _places(self) -> list[Place]:
        return self.live.places()

    def _are_counters_away(self) -> bool:
        return self._sharing is not None and self._sharing.is_away

    def _used_tokens(self, subject: Subject) -> tuple[int, int]:
        def since(moment: float) -> int:
            return self._usage.tokens_since(
                moment,
                key_id=subject.key_id,
                person_id=subject.person_id,
                models=subject.models,
            )

        now = time.time()
        try:
            return since(day_start(now)), since(month_start(now))
        except StoreError:
            return 0, 0


def _tell_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("the gateway needs a restart: %s failed", task.get_name(), exc_info=error)


def _shutting_down() -> Refusal:
    return Refusal(Outcome.DRAINING, "the server is shutting down; try again", retry_after_s=5)
