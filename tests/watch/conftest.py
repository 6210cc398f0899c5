"""Fixtures: a database, rows of usage, and a gateway's figures as a test wants them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from carpool.store.database import Database
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow
from carpool.watch.accumulator import Accumulators
from carpool.watch.point import Point
from carpool.watch.recorder import Recorder

START = 1_800_000_000.0
"""A Friday morning, at a full hour."""


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path / 'carpool.db'}")
    database.migrate()
    return database


def row_of(**fields: object) -> UsageRow:
    row = UsageRow(
        request_id="r",
        started_at=START,
        person_id="ana",
        key_id="anakey",
        model="m",
        backend="m",
        api="chat",
        lane=Lane.INTERACTIVE,
        prompt_tokens=1000,
        cached_tokens=200,
        output_tokens=100,
        usage_source="reported",
        queue_ms=50.0,
        ttft_ms=400.0,
        tpot_ms=20.0,
        total_ms=2400.0,
        outcome="completed",
        status=200,
        is_stream=True,
        is_fallback=False,
    )
    return replace(row, **fields)


@pytest.fixture
def make_row() -> Callable[..., UsageRow]:
    return row_of


@dataclass
class Clocks:
    """Wall and monotonic clock, which a test moves; `jump` sets the wall clock alone."""

    wall: float = START
    monotonic: float = 1000.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def jump(self, seconds: float) -> None:
        self.wall += seconds


@dataclass
class Scene:
    """A gateway's figures as its recorder meets them."""

    gauges: dict[str, dict[str, float]] = field(default_factory=lambda: {"m": {"waiting": 0.0}})
    sums: Accumulators = field(default_factory=Accumulators)

    def sample(self) -> Mapping[str, Mapping[str, float]]:
        return self.gauges

    async def take(self) -> Mapping[str, Point]:
        return self.sums.take()


@dataclass
class Recording:
    """`tick` passes ten seconds and flushes."""

    scene: Scene
    clocks: Clocks
    recorder: Recorder

    def tick(self, number: int = 1) -> None:
        for _ in range(number):
            self.recorder.sample()
            self.clocks.pass_(10)
            asyncio.run(self.recorder.flush())

    def end(self) -> None:
        asyncio.run(self.recorder.flush(is_last=True))


@pytest.fixture
def recording(database: Database) -> Recording:
    scene, clocks = Scene(), Clocks()
    recorder = Recorder(
        scene, database, wall=lambda: clocks.wall, monotonic=lambda: clocks.monotonic
    )
    return Recording(scene, clocks, recorder)
