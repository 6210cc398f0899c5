"""The engines of a gateway, which may change while it serves: one is started beside the others,
tried, and takes another's place, which finishes what it has."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from carpool.backends.backend import Backend, BackendState
from carpool.errors import CarpoolError
from carpool.gateway.lock_file import LockFile, Pinned
from carpool.gateway.model_config import BackendConfig, ModelConfig
from carpool.gateway.model_service import EngineSeat, ModelService

DRAIN_POLL_S = 0.05
STOP_S = 10.0

_log = logging.getLogger(__name__)

MakeNamed = Callable[[str, BackendConfig, str], Backend]
"""Of a model's name, a configuration, and what the engine is to be called."""


class Role(StrEnum):
    SERVING = "serving"
    STANDBY = "standby"
    """It runs, and gets nothing but what is sent to it alone."""
    RETIRING = "retiring"
    """It finishes what it has."""


class RosterError(CarpoolError):
    """A change of engines that cannot be made now."""


class NoSuchEngine(RosterError):
    """No engine has this id."""


@dataclass(slots=True, eq=False)
class RosterEngine:
    """`mistake` is why it could never run, once that is known; `successor` takes the place of
    one that retires."""

    engine_id: str
    service: ModelService
    seat: EngineSeat
    role: Role
    mistake: str | None = None
    successor: "RosterEngine | None" = None
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def model(self) -> str:
        return self.service.config.name


class EngineRoster:
    """To be made in the event loop. `configured` are the models as they are configured, before
    the lock; without a `lock` nothing can be changed, for the reason `why_fixed`."""

    def __init__(
        self,
        services: Sequence[ModelService],
        make_named: MakeNamed,
        lock: LockFile | None = None,
        configured: Sequence[ModelConfig] = (),
        why_fixed: str = "this gateway keeps no lock file",
    ) -> None:
        self.lock = lock
        self._configured = {model.name: model for model in configured}
        self._why_fixed = why_fixed
        self._services = {service.config.name: service for service in services}
        self._make_named = make_named
        self._numbers = itertools.count(1)
        self._engines: dict[str, RosterEngine] = {}
        for service in services:
            for seat in service.seats:
                self._add(service, seat, Role.SERVING)

    def engines(self, model: str | None = None) -> list[RosterEngine]:
        return [each for each in self._engines.values() if model in (None, each.model)]

    def find(self, engine_id: str) -> RosterEngine:
        """Raises NoSuchEngine."""
        found = self._engines.get(engine_id)
        if found is None:
            raise NoSuchEngine(f"there is no engine {engine_id[:40]!r}")
        return found

    def configured(self, model: str) -> tuple[BackendConfig, ...]:
        """The engines of a model before the lock; none where there is no lock."""
        return self._configured[model].backends if model in self._configured else ()

    def pins(self, engine: RosterEngine) -> Pinned | None:
        """What the lock has for an engine that serves. Raises LockError."""
        if self.lock is None or engine.role is not Role.SERVING:
            return None
        predecessor = next((each for each in self.engines() if each.successor is engine), engine)
        return self.lock.pins(self._configured[engine.model]).engines[_number(predecessor)]

    def start_candidate(self, model: str) -> RosterEngine:
        """The candidate that the lock has for a model, on its way to being ready. Sizes that it
        does not say are those of the engine beside it. Raises RosterError, LockError."""
        lock = self._changeable()
        service = self._services.get(model)
        if service is None:
            raise NoSuchEngine(f"there is no model {model[:100]!r}")
        for each in self.engines(model):
            if each.role is not Role.SERVING:
                raise RosterError(
                    f"engine {each.engine_id} of {model} is {each.role.value}: another upgrade is "
                    "under way, or was left behind"
                )
        candidate = lock.pins(self._configured[model]).candidate
        if candidate is None:
            raise RosterError(f"{lock.path} has no candidate for {model}")
        config = _with_sizes_of(candidate.backend, service.seats[0].config)
        backend = self._make_named(model, config, self._name(model, config))
        engine = self._add(service, service.stand_by(config, backend), Role.STANDBY)
        engine.tasks.append(asyncio.create_task(self._note_mistake(engine)))
        return engine

    def promote(self, engine_id: str, replaces: str) -> None:
        """A standby that is ready takes the place of the engine `replaces`, from this moment;
        the lock says so before it happens. Raises RosterError, LockError."""
        lock = self._changeable()
        engine, old = self.find(engine_id), self.find(replaces)
        if engine.role is not Role.STANDBY or engine.seat.replica.state is not BackendState.READY:
            raise RosterError(
                f"engine {engine_id} is {engine.role.value} and "
                f"{engine.seat.replica.state.value}; only a standby that is ready takes over"
            )
        if old.role is not Role.SERVING or old.service is not engine.service:
            raise RosterError(f"engine {replaces} does not serve {engine.model}")
        lock.promote(self._configured[engine.model], _number(old))
        engine.service.take_in(engine.seat, old.seat)
        engine.role, old.role, old.successor = Role.SERVING, Role.RETIRING, engine
        _log.info("engine %s of %s takes over from %s", engine_id, engine.model, replaces)
        old.tasks.append(asyncio.create_task(self._retire(old)))

    async def withdraw(self, engine_id: str) -> None:
        """End a standby, or what an engine that retires still has. Raises RosterError."""
        engine = self.find(engine_id)
        match engine.role:
            case Role.SERVING:
                raise RosterError(f"engine {engine_id} serves {engine.model}; it is not ended")
            case Role.STANDBY:
                await self._end(engine)
            case Role.RETIRING:
                await self._finish(engine)

    async def stop(self) -> None:
        """End those that do not serve."""
        await asyncio.gather(
            *(self._end(each) for each in self.engines() if each.role is Role.STANDBY)
        )
        tasks = [task for each in self.engines() for task in each.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ behind it

    def _changeable(self) -> LockFile:
        if self.lock is None:
            raise RosterError(f"engines cannot be changed while it serves: {self._why_fixed}")
        return self.lock

    def _add(self, service: ModelService, seat: EngineSeat, role: Role) -> RosterEngine:
        engine = RosterEngine(f"e{next(self._numbers)}", service, seat, role)
        self._engines[engine.engine_id] = engine
        return engine

    def _name(self, model: str, config: BackendConfig) -> str:
        """Of its own among the model's engines, and one that a socket's file may have."""
        taken = {each.seat.supervisor.backend.name for each in self.engines()}
        stem = f"{model.replace('/', '-')}@{config.version or 'next'}"
        names = itertools.chain([stem], (f"{stem}+{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in taken)

    async def _note_mistake(self, engine: RosterEngine) -> None:
        engine.mistake = await engine.seat.supervisor.wait_for_mistake()

    async def _retire(self, engine: RosterEngine) -> None:
        # Asked for now and then: what counts requests is on every request's way.
        while engine.seat.replica.num_in_flight:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)
        await self._finish(engine)

    async def _finish(self, engine: RosterEngine) -> None:
        if self._engines.pop(engine.engine_id, None) is None or engine.successor is None:
            return
        engine.service.take_out(engine.seat, engine.successor.seat)
        await engine.seat.supervisor.stop(STOP_S)
        _log.info("engine %s of %s has ended", engine.engine_id, engine.model)

    async def _end(self, engine: RosterEngine) -> None:
        self._engines.pop(engine.engine_id, None)
        for task in engine.tasks:
            task.cancel()
        engine.seat.replica.upstream.close()
        await engine.seat.supervisor.stop(STOP_S)


def _number(engine: RosterEngine) -> int:
    """Its place among the model's engines."""
    supervisors = [seat.supervisor for seat in engine.service.seats]
    return supervisors.index(engine.seat.supervisor)


def _with_sizes_of(config: BackendConfig, other: BackendConfig) -> BackendConfig:
    if config.engine != other.engine:
        return config
    return replace(
        config,
        max_num_seqs=config.max_num_seqs or other.max_num_seqs,
        kv_tokens=config.kv_tokens or other.kv_tokens,
        max_model_len=config.max_model_len or other.max_model_len,
        measured_num_seqs=config.measured_num_seqs or other.measured_num_seqs,
    )
