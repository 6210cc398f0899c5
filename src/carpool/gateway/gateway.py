"""A worker's gateway, put together: models over engines, keys, limits, ledger, application."""

import asyncio
import logging
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carpool.backends.backend import BackendState
from carpool.backends.supervision import BackendStatus
from carpool.backends.supervisor import Supervisor
from carpool.gateway.admission import Admission
from carpool.gateway.app import GatewayApp
from carpool.gateway.circuit_breaker import CircuitBreaker
from carpool.gateway.exchange import Exchanges
from carpool.gateway.gate import Gate
from carpool.gateway.key_ring import KeyRing
from carpool.gateway.key_watch import KeyWatch
from carpool.gateway.ledger import Ledger
from carpool.gateway.meters import Meters
from carpool.gateway.metrics import GatewayMetrics
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.gateway.routing import Replica
from carpool.gateway.served_model import ServedModel
from carpool.gateway.ticket import Ticket
from carpool.gateway.upstream import Upstream
from carpool.gateway.upstream_errors import Timeouts
from carpool.gateway.waiting_room import QueueLimits
from carpool.scheduling.capacity import Capacity, Provenance
from carpool.store.database import Database
from carpool.store.errors import StoreError
from carpool.store.key import Key
from carpool.store.key_store import KeyStore
from carpool.store.usage_store import UsageStore, day_start, month_start

_log = logging.getLogger(__name__)

UNKNOWN_CAPACITY = Capacity(1, sys.maxsize, sys.maxsize, Provenance.PREDICTED)
"""Until the engine says what it can carry, nobody is sent to it, and nothing is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """`needs_keys` False lets everybody in, as one person."""

    needs_keys: bool = True
    queue: QueueLimits = field(default_factory=QueueLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    journal_folder: Path = Path("journal")


class Gateway:
    """One served model over one supervised engine, with everything in front of it.

    `start` begins the background work, `drain` finishes what runs, `cut_off` ends it,
    `stop` ends everything else and writes the last rows.
    """

    def __init__(
        self,
        name: str,
        aliases: Sequence[str],
        supervisor: Supervisor,
        database: Database,
        options: GatewayOptions,
    ) -> None:
        self._supervisor = supervisor
        self._usage = UsageStore(database)
        self._ring = KeyRing(self._on_revoked)
        self._key_watch = KeyWatch(self._ring, KeyStore(database))
        if options.needs_keys:
            self._key_watch.load()
        loop = asyncio.get_running_loop()
        admission = Admission(UNKNOWN_CAPACITY, options.queue)
        admission.is_paused = True
        backend = supervisor.backend
        self._replica = Replica(
            backend.name,
            Upstream(backend.address),
            CircuitBreaker(),
            model=backend.model or name,
            api_key=backend.api_key,
            has_stream_usage=backend.quirks.has_stream_usage,
        )
        self._replica.is_ready = False
        self.model = ServedModel(
            name=name,
            aliases=tuple(aliases),
            gate=Gate(admission, loop.time),
            replicas=[self._replica],
            timeouts=options.timeouts,
        )
        self._ledger = Ledger(options.journal_folder, self._usage.insert)
        metrics = GatewayMetrics([self.model], self._ledger)
        self._exchanges = Exchanges(self._ledger, metrics)
        self.app = GatewayApp(
            [self.model],
            self._ring if options.needs_keys else None,
            Meters(self._used_tokens),
            self._exchanges,
            metrics,
        )
        self._needs_keys = options.needs_keys
        self._tasks: list[asyncio.Task[None]] = []
        supervisor.on_status(self._on_status)

    def start(self) -> None:
        self._supervisor.start()
        self._run("usage", self._ledger.run())
        if self._needs_keys:
            self._run("keys", self._key_watch.run())

    async def wait_until(self, state: BackendState) -> BackendStatus:
        """The engine's first status of that state."""
        return await self._supervisor.wait_until(state)

    async def drain(self, within_s: float) -> bool:
        """Refuse what is new and what waits, and let what runs finish; False if some of it still
        ran after `within_s` seconds."""
        self.app.is_draining = True
        self.model.gate.close(_shutting_down())
        try:
            await asyncio.wait_for(self.app.is_idle.wait(), within_s)
        except TimeoutError:
            return False
        return True

    def cut_off(self) -> None:
        """What still runs ends with an error."""
        self._exchanges.stop_all(_shutting_down())

    async def stop(self, drain_s: float = 5.0) -> None:
        await self._supervisor.stop(drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """In the background, and not without a word if it fails."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_tell_failure)
        self._tasks.append(task)

    # ----------------------------------------------------------------- what changes

    def _on_status(self, status: BackendStatus) -> None:
        """Seats and memory as the engine reports them; while it is away everybody waits."""
        backend, admission = self._supervisor.backend, self.model.gate.admission
        is_ready = status.state is BackendState.READY
        self._replica.is_ready = is_ready
        self._replica.model = backend.model or self.model.name
        admission.is_paused = not is_ready
        if status.capacity is not None:
            admission.capacity = status.capacity
        if is_ready:
            self._replica.breaker.close()
            self.model.gate.pump()

    def _on_revoked(self, key_id: str) -> None:
        refusal = Refusal(Outcome.KEY_REVOKED, "the key of this request was revoked")

        def is_of_key(ticket: Ticket) -> bool:
            return ticket.key_id == key_id

        self.model.gate.refuse_waiting(is_of_key, refusal)
        self._exchanges.stop_key(key_id)

    def _used_tokens(self, key: Key) -> tuple[int, int]:
        now = time.time()
        try:
            return (
                self._usage.tokens_since(day_start(now), key_id=key.key_id),
                self._usage.tokens_since(month_start(now), key_id=key.key_id),
            )
        except StoreError:
            return 0, 0


def _tell_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("the gateway needs a restart: %s failed", task.get_name(), exc_info=error)


def _shutting_down() -> Refusal:
    return Refusal(Outcome.DRAINING, "the server is shutting down; try again", retry_after_s=5)
