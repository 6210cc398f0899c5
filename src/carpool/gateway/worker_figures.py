"""The figures of all workers, as their parent asks for them."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from pydantic import ValidationError

from carpool.backends.backend import BackendUnreachable
from carpool.backends.http_get import http_get
from carpool.backends.supervisor import Supervisor
from carpool.gateway.figures import (
    FIGURES,
    Figures,
    counted,
    families_of,
    merged_models,
    merged_people,
    merged_places,
    summed,
)
from carpool.gateway.live_state import LiveState, ModelState, PersonLoad, Place

POLL_S = 1.0
TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Page:
    """What one life of a worker showed last. `figures` None: it does not answer now."""

    life: int = 0
    figures: Figures | None = None
    families: list[Metric] = field(default_factory=list)


class WorkerFigures:
    """LiveState of all workers. What a worker has counted stays counted when it has ended, but
    for what it counted after it was last asked. `own` has the states of the engines."""

    def __init__(self, workers: Sequence[Supervisor], own: LiveState) -> None:
        self._workers = workers
        self._own = own
        self._pages = [_Page() for _ in workers]
        self._gone: list[Metric] = []

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    async def refresh(self) -> None:
        await asyncio.gather(*(self._ask(number) for number in range(len(self._workers))))

    def summed(self) -> Iterator[Metric]:
        yield from summed([self._gone, *(page.families for page in self._pages)])

    def models(self) -> list[ModelState]:
        return merged_models(self._own.models(), self._answering())

    def people(self) -> list[PersonLoad]:
        return merged_people(self._answering())

    def places(self) -> list[Place]:
        return merged_places(self._answering())

    def _answering(self) -> list[Figures]:
        return [page.figures for page in self._pages if page.figures is not None]

    async def _ask(self, number: int) -> None:
        worker, page = self._workers[number], self._pages[number]
        life, figures = worker.status.life, None
        with contextlib.suppress(BackendUnreachable, ValidationError):
            answer = await http_get(worker.backend.address, "/figures", timeout_s=TIMEOUT_S)
            if answer.status == 200 and worker.status.life == life:
                figures = FIGURES.validate_json(answer.body)
        if figures is None:
            page.figures, page.families = None, counted(page.families)
            return
        if page.life != life:
            self._gone = list(summed([self._gone, counted(page.families)]))
        page.life, page.figures, page.families = life, figures, families_of(figures.metrics)
