"""One model and the engines behind it: their states decide who is let in."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from carpool.backends.address import Address
from carpool.backends.backend import Backend, BackendState, BackendUnreachable
from carpool.backends.create import attach, is_url, launch
from carpool.backends.supervision import BackendStatus
from carpool.backends.supervisor import Supervisor
from carpool.errors import CarpoolError
from carpool.gateway.admission import Admission
from carpool.gateway.circuit_breaker import CircuitBreaker
from carpool.gateway.gate import Gate
from carpool.gateway.in_flight import InFlightCounts
from carpool.gateway.model_config import (
    BackendConfig,
    FallbackConfig,
    ModelConfig,
    ModelConfigError,
)
from carpool.gateway.routing import Replica
from carpool.gateway.served_model import ServedModel
from carpool.gateway.upstream import Upstream
from carpool.scheduling.capacity import Capacity, Provenance

UNKNOWN_CAPACITY = Capacity(1, sys.maxsize, sys.maxsize, Provenance.PREDICTED)
"""Until an engine says what it can carry, nobody is sent to it, and nothing is too large."""
LOAD_POLL_S = 1.0


MakeBackend = Callable[[ModelConfig, int], Backend]
MakeGate = Callable[[str, Sequence[Address], Admission], Gate]
"""Of a model with that name at engines with these addresses."""


class EngineMistake(CarpoolError):
    """An engine that is to be started and cannot be, whatever one waits for."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineSeat:
    """An engine of a model: what it was configured as, who supervises it, and how requests get
    to it."""

    config: BackendConfig
    supervisor: Supervisor
    replica: Replica


class ModelService:
    """Supervises the engines of one model and keeps what is served, `model`, level with them.

    To be made in the event loop that it then works in.
    """

    def __init__(
        self,
        config: ModelConfig,
        counts: InFlightCounts,
        make_backend: MakeBackend,
        make_gate: MakeGate,
    ) -> None:
        """`make_backend` is called for each engine by its number, `make_gate` once. Raises
        CarpoolError for an engine that cannot be what the configuration says."""
        self.config = config
        self._retiring: set[Replica] = set()
        admission = Admission(UNKNOWN_CAPACITY, config.queue, counts)
        admission.is_paused = True
        self.supervisors = [
            Supervisor(make_backend(config, number)) for number in range(len(config.backends))
        ]
        self.model = ServedModel(
            name=config.name,
            aliases=config.aliases,
            gate=make_gate(
                config.name,
                [supervisor.backend.address for supervisor in self.supervisors],
                admission,
            ),
            replicas=[
                self._replica(supervisor, backend)
                for supervisor, backend in zip(self.supervisors, config.backends, strict=True)
            ],
            when_down=config.when_down,
            fallback=None if config.fallback is None else _fallback(config, config.fallback),
            is_private=config.is_private,
            limits=config.limits,
        )

    @property
    def seats(self) -> list[EngineSeat]:
        """The engines that serve, in the order of the configuration."""
        return [
            EngineSeat(*each)
            for each in zip(
                self.config.backends, self.supervisors, self.model.replicas, strict=True
            )
        ]

    def stand_by(self, config: BackendConfig, backend: Backend) -> EngineSeat:
        """An engine beside those that serve: it gets no requests until it is taken in."""
        supervisor = Supervisor(backend)
        seat = EngineSeat(config, supervisor, self._replica(supervisor, config))
        supervisor.start()
        return seat

    def take_in(self, seat: EngineSeat, old: EngineSeat) -> None:
        """From now on `seat` gets requests, and `old` none; it finishes those it has."""
        self._set_seats([*self.seats, seat])
        self._retiring.add(old.replica)
        old.replica.state = BackendState.DRAINING
        self._set_capacity()

    def take_out(self, old: EngineSeat, new: EngineSeat) -> None:
        """`new` has the place of `old`, which has finished. The supervisor is left to stop."""
        seats = [seat for seat in self.seats if seat.supervisor is not new.supervisor]
        self._set_seats([new if each.supervisor is old.supervisor else each for each in seats])
        self._retiring.discard(old.replica)
        old.replica.upstream.close()
        self._set_capacity()

    def _set_seats(self, seats: Sequence[EngineSeat]) -> None:
        self.config = replace(self.config, backends=tuple(seat.config for seat in seats))
        self.supervisors[:] = [seat.supervisor for seat in seats]
        self.model.replicas[:] = [seat.replica for seat in seats]

    def start(self) -> None:
        for supervisor in self.supervisors:
            supervisor.start()

    async def stop(self, drain_s: float) -> None:
        await asyncio.gather(*(supervisor.stop(drain_s) for supervisor in self.supervisors))

    async def ready(self) -> BackendStatus:
        """The first status that is ready, of any engine. Raises EngineMistake if one that is to
        be started could never run as it is."""
        waits = [
            asyncio.ensure_future(supervisor.wait_until(BackendState.READY))
            for supervisor in self.supervisors
        ]
        mistakes = [
            asyncio.ensure_future(supervisor.wait_for_mistake()) for supervisor in self.supervisors
        ]
        try:
            await asyncio.wait([*waits, *mistakes], return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                if wait.done():
                    return wait.result()
            reason = next(mistake.result() for mistake in mistakes if mistake.done())
            raise EngineMistake(f"{self.config.name} cannot be served: {reason}")
        finally:
            for each in (*waits, *mistakes):
                each.cancel()

    async def watch_load(self) -> None:
        """Ask the engines how busy they are, until cancelled: others may use them, too."""
        while True:
            await asyncio.sleep(LOAD_POLL_S)
            for seat in self.seats:
                if seat.replica.is_ready:
                    with contextlib.suppress(BackendUnreachable):
                        load = await seat.supervisor.backend.read_load()
                        if load is not None:
                            seat.replica.heard_load(load.num_running + load.num_waiting)
            self._set_capacity()

    def _replica(self, supervisor: Supervisor, config: BackendConfig) -> Replica:
        backend = supervisor.backend
        made = Replica(
            backend.name,
            Upstream(backend.address),
            CircuitBreaker(),
            model=backend.model,
            api_key=backend.api_key,
            quirks=backend.quirks,
            timeouts=self.config.timeouts,
            on_not_reached=supervisor.not_reached,
        )
        made.state = supervisor.status.state
        made.retry_after_s = supervisor.retry_after_s
        supervisor.on_status(partial(self._on_status, made, backend, config))
        return made

    def _on_status(
        self, replica: Replica, backend: Backend, config: BackendConfig, status: BackendStatus
    ) -> None:
        """Seats and memory as the engines report them; while all are away, the policy says who
        waits."""
        if replica.state is not BackendState.READY and status.state is BackendState.READY:
            replica.breaker.close()
        replica.state = status.state
        if replica in self._retiring and status.state is BackendState.READY:
            replica.state = BackendState.DRAINING
        replica.num_restarts = max(0, status.life - 1)
        replica.model = backend.model or self.config.name
        if status.capacity is not None:
            replica.capacity = _as_told(status.capacity, config)
        self._set_capacity()
        if (refusal := self.model.away()) is not None:
            self.model.gate.refuse_waiting(lambda ticket: not ticket.can_hold, refusal)

    def _set_capacity(self) -> None:
        replicas = self.model.replicas
        ready = [replica for replica in replicas if replica.is_ready]
        gate = self.model.gate
        known = [each.capacity for each in ready or replicas if each.capacity is not None]
        num_foreign = gate.num_foreign(
            sum(replica.num_at_engine for replica in ready),
            sum(replica.num_foreign for replica in ready),
        )
        gate.set_capacity(
            _sum(known, num_foreign) if known else None,
            max((each.kv_tokens for each in known), default=None),
            is_paused=not ready,
        )


def own_gate(model: str, engines: Sequence[Address], admission: Admission) -> Gate:
    """Of seats that nobody else knows of."""
    return Gate(admission, asyncio.get_running_loop().time)


def make_backend(run_folder: Path, config: ModelConfig, number: int) -> Backend:
    """As the configuration says. What is launched gets its socket in `run_folder`."""
    name = config.name if len(config.backends) == 1 else f"{config.name}/{number}"
    return make_named_backend(run_folder, config.name, config.backends[number], name)


def make_named_backend(
    run_folder: Path, model_name: str, backend: BackendConfig, name: str
) -> Backend:
    """As `make_backend`, of an engine that is called `name`. Raises CarpoolError."""
    if is_url(backend.engine):
        return attach(
            name,
            backend.engine,
            model=backend.model,
            served_name=model_name,
            api_key=_secret(backend.api_key_env),
        )
    return launch(
        backend.engine,
        name,
        backend.model or model_name,
        run_folder=run_folder,
        max_num_seqs=backend.max_num_seqs,
        max_model_len=backend.max_model_len,
        options=backend.args,
        program=[word.replace("{version}", backend.version or "") for word in backend.program],
    )


def _fallback(config: ModelConfig, fallback: FallbackConfig) -> Replica:
    address = Address.from_url(fallback.url)
    return Replica(
        f"fallback:{address.authority}",
        Upstream(address),
        CircuitBreaker(),
        model=fallback.model,
        api_key=_secret(fallback.api_key_env),
        timeouts=config.timeouts,
        capacity=replace(UNKNOWN_CAPACITY, max_num_seqs=fallback.max_in_flight),
    )


def _secret(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ModelConfigError(
            f"the environment variable {variable} is to hold an engine's key, and is not set"
        )
    return value


def _as_told(capacity: Capacity, config: BackendConfig) -> Capacity:
    """What a person set goes before what the engine says, and what was measured bounds it."""
    told = replace(
        capacity,
        max_num_seqs=config.max_num_seqs or capacity.max_num_seqs,
        kv_tokens=config.kv_tokens or capacity.kv_tokens,
        max_model_len=config.max_model_len or capacity.max_model_len,
    )
    if config.measured_num_seqs is None:
        return told
    return replace(
        told,
        max_num_seqs=min(told.max_num_seqs, config.measured_num_seqs),
        provenance=Provenance.MEASURED,
    )


def _sum(capacities: list[Capacity], num_foreign: int) -> Capacity:
    """What several engines carry together, beside what others have there."""
    first = capacities[0]
    return Capacity(
        max(1, sum(each.max_num_seqs for each in capacities) - num_foreign),
        sum(each.kv_tokens for each in capacities),
        max(each.max_model_len for each in capacities),
        first.provenance,
    )
