"""A worker's counts of requests on their way to the parent: none is lost and none comes twice,
whatever becomes of an answer on the way."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from carpool.backends.backend import BackendUnreachable
from carpool.backends.http_get import http_get
from carpool.backends.supervisor import Supervisor
from carpool.watch.accumulator import Accumulators
from carpool.watch.point import Point

TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Parcel:
    """`number` counts a worker's parcels from 1."""

    number: int
    points: dict[str, Point]


PARCEL = TypeAdapter(Parcel)


class Parcels:
    """The worker's side. A parcel is given again until the parent says that it has it."""

    def __init__(self, accumulators: Accumulators) -> None:
        self._accumulators = accumulators
        self._last = Parcel(0, {})

    def give(self, has: int) -> Parcel:
        """The parcel after number `has`, which the parent has."""
        if has == self._last.number:
            self._last = Parcel(has + 1, self._accumulators.take())
        return self._last


@dataclass(slots=True)
class _Received:
    life: int = 0
    number: int = 0


@dataclass(slots=True)
class WorkerPoints:
    """The parent's side."""

    workers: Sequence[Supervisor]
    _received: dict[int, _Received] = field(default_factory=dict)

    async def take(self) -> Mapping[str, Point]:
        """Of all workers together; of one that does not answer, the next time."""
        points: dict[str, Point] = {}
        parcels = await asyncio.gather(*(self._ask(n) for n in range(len(self.workers))))
        for parcel in parcels:
            for model, point in parcel.items():
                points.setdefault(model, Point()).add(point)
        return points

    async def _ask(self, number: int) -> Mapping[str, Point]:
        worker = self.workers[number]
        received = self._received.setdefault(number, _Received())
        life = worker.status.life
        if received.life != life:
            received.life, received.number = life, 0
        with contextlib.suppress(BackendUnreachable, ValidationError):
            path = f"/points/{received.number}"
            answer = await http_get(worker.backend.address, path, timeout_s=TIMEOUT_S)
            if answer.status == 200 and worker.status.life == life:
                parcel = PARCEL.validate_json(answer.body)
                if parcel.number == received.number + 1:
                    received.number = parcel.number
                    return parcel.points
        return {}
