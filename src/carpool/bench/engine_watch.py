"""Looks at the engine's GET /metrics before, during and after a level."""

import asyncio
from types import TracebackType
from typing import Self

from carpool.backends.backend import BackendUnreachable
from carpool.backends.http_get import http_get
from carpool.bench.engine_metrics import EngineChange, EngineSample, change, parse_sample
from carpool.bench.target import Target

INTERVAL_S = 2.0
TIMEOUT_S = 5.0


class EngineWatch:
    """An engine without metrics, or whose metrics do not come, is measured without them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._samples: list[EngineSample] = []
        self._task: asyncio.Task[None] | None = None

    def change(self) -> EngineChange | None:
        return change(self._samples)

    async def __aenter__(self) -> Self:
        await self._look()
        if self._samples:
            self._task = asyncio.create_task(self._look_again())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._look()

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self._look()

    async def _look(self) -> None:
        target = self._target
        address = target.metrics or target.address
        headers = target.headers if target.metrics is None else None
        try:
            answer = await http_get(address, "/metrics", timeout_s=TIMEOUT_S, headers=headers)
        except BackendUnreachable:
            return
        if answer.status == 200 and (
            sample := parse_sample(answer.body.decode("utf-8", "replace"))
        ):
            self._samples.append(sample)
