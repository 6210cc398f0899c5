"""What the series are made of: requests as they end, queues and seats, engines, memory."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from carpool.backends.backend import BackendState, BackendUnreachable, EngineLoad
from carpool.backends.supervisor import Supervisor
from carpool.gateway.live_state import LiveState, ModelState
from carpool.gateway.model_service import ModelService
from carpool.hardware.host_memory import available_bytes, resident_bytes, total_bytes
from carpool.watch.accumulator import NO_MODEL
from carpool.watch.point import Point

TakePoints = Callable[[], Awaitable[Mapping[str, Point]]]
"""Of requests that ended since the last time, by model."""
LOOK_TIMEOUT_S = 3.0


class GatewaySource:
    """The figures of a gateway, or of a parent with all its workers."""

    def __init__(
        self, services: Sequence[ModelService], live: LiveState, take_points: TakePoints
    ) -> None:
        self._services = services
        self._live = live
        self._take_points = take_points
        self._states: dict[Supervisor, BackendState] = {}
        self._lives: dict[Supervisor, int] = {}
        self._preemptions: dict[Supervisor, int] = {}
        self._events = Point()
        self._num_down: dict[str, int] = {}

    def sample(self) -> Mapping[str, Mapping[str, float]]:
        for service in self._services:
            for supervisor in service.supervisors:
                self._note_state(service.config.name, supervisor)
        return {model.name: _gauges(model) for model in self._live.models()}

    async def take(self) -> Mapping[str, Point]:
        points = dict(await self._take_points())
        for service in self._services:
            point = points.setdefault(service.config.name, Point())
            await self._look_at_engines(service, point)
        host = points.setdefault(NO_MODEL, Point())
        total, available = await asyncio.to_thread(_host_memory)
        host.sample("host_memory_total", total)
        host.sample("host_memory_used", total - available)
        return points

    def _note_state(self, model: str, supervisor: Supervisor) -> None:
        state, before = supervisor.status.state, self._states.get(supervisor)
        self._states[supervisor] = state
        if before is BackendState.READY and state in (BackendState.DOWN, BackendState.LOADING):
            self._num_down[model] = self._num_down.get(model, 0) + 1

    async def _look_at_engines(self, service: ModelService, point: Point) -> None:
        if (number := self._num_down.pop(service.config.name, 0)) > 0:
            point.count("went_down", number)
        supervisors = list(service.supervisors)
        loads = await asyncio.gather(*(_load_of(supervisor) for supervisor in supervisors))
        running = waiting = 0
        usages = []
        for supervisor, load in zip(supervisors, loads, strict=True):
            self._count_restarts(supervisor, point)
            if load is None:
                continue
            running, waiting = running + load.num_running, waiting + load.num_waiting
            usages += [] if load.kv_usage is None else [load.kv_usage]
            self._count_preemptions(supervisor, load, point)
        if any(load is not None for load in loads):
            point.sample("engine_running", running)
            point.sample("engine_waiting", waiting)
        if usages:
            point.sample("kv_usage", max(usages))
        pids = [each.pid for each in supervisors if each.pid is not None]
        if pids:
            num_bytes = await asyncio.to_thread(lambda: sum(map(resident_bytes, pids)))
            point.sample("engine_memory", num_bytes)

    def _count_restarts(self, supervisor: Supervisor, point: Point) -> None:
        life = supervisor.status.life
        if (more := life - self._lives.get(supervisor, max(1, life))) > 0:
            point.count("restarts", more)
        self._lives[supervisor] = max(1, life)

    def _count_preemptions(self, supervisor: Supervisor, load: EngineLoad, point: Point) -> None:
        """An engine that began again counts from nought."""
        if (total := load.num_preemptions) is None:
            return
        before = self._preemptions.get(supervisor, total)
        self._preemptions[supervisor] = total
        point.count("preemptions", total - before if total >= before else total)


async def _load_of(supervisor: Supervisor) -> EngineLoad | None:
    if supervisor.status.state is not BackendState.READY:
        return None
    with contextlib.suppress(BackendUnreachable, TimeoutError):
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await supervisor.backend.read_load()
    return None


def _gauges(model: ModelState) -> dict[str, float]:
    load = model.load
    gauges: dict[str, float] = {
        "waiting": load.waiting,
        "in_flight": load.in_flight,
        "kv_reserved": load.in_flight_tokens,
        "replicas": len(model.replicas),
        "replicas_ready": sum(each.state == "ready" for each in model.replicas),
    }
    if model.max_num_seqs is not None:
        gauges["seats"] = model.max_num_seqs
    if model.kv_tokens is not None:
        gauges["kv_tokens"] = model.kv_tokens
    return gauges


def _host_memory() -> tuple[int, int]:
    return total_bytes(), available_bytes()
