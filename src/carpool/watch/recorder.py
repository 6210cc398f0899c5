"""Writes down every ten seconds what goes on: off the hot path, and whatever the database does."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from carpool.store.database import Database
from carpool.store.errors import StoreError
from carpool.store.series_store import SeriesStore
from carpool.watch.accumulator import NO_MODEL
from carpool.watch.open_chunks import OpenChunks
from carpool.watch.point import Point
from carpool.watch.resolution import ALL, DAY_S, FINE

SAMPLE_S = 2.0
ACTIVE_S = 600.0
"""Who had a request in the last ten minutes is active."""
JUMP_S = 60.0
"""A wall clock that went this much faster or slower than time itself was set."""
FORGET_S = 600.0
SURE_S = DAY_S
"""What is old is forgotten only by a clock that nobody has set for so long, or since the start."""

_log = logging.getLogger(__name__)


class Source(Protocol):
    """Where figures come from. All of it is called in the event loop."""

    def sample(self) -> Mapping[str, Mapping[str, float]]:
        """Gauges by model and name, now; quick."""
        ...

    async def take(self) -> Mapping[str, Point]:
        """What has come together since the last time, with what takes a look elsewhere."""
        ...


class Recorder:
    """Records until cancelled. Never raises for a database that is away: what it could not write
    it keeps, up to a limit, and what is lost is a gap."""

    def __init__(
        self,
        source: Source,
        database: Database,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._store = SeriesStore(database)
        self._wall = wall
        self._monotonic = monotonic
        self._chunks = OpenChunks()
        self._points: dict[str, Point] = {}
        self._active: dict[str, float] = {}
        self._offset = wall() - monotonic()
        self._forgets_at = monotonic() + FORGET_S
        self._is_away = False

    async def run(self) -> None:
        try:
            while True:
                await self._until_next()
                flush = asyncio.create_task(self.flush())
                try:
                    await asyncio.shield(flush)
                finally:
                    await flush  # two at once would write the same chunks
        finally:
            await self.flush(is_last=True)

    async def _until_next(self) -> None:
        """Sample now and then, up to the next full ten seconds of the wall clock."""
        left = FINE.seconds - self._wall() % FINE.seconds
        ends_at = self._monotonic() + left
        while (left := ends_at - self._monotonic()) > 0:
            self.sample()
            await asyncio.sleep(min(SAMPLE_S, left))

    def sample(self) -> None:
        for model, gauges in self._source.sample().items():
            self._gauges(model, gauges)

    async def flush(self, *, is_last: bool = False) -> None:
        """Take what came together, and write what is due."""
        # The moment lies in the ten seconds that have just ended.
        moment = self._wall() - FINE.seconds / 2
        for model, point in (await self._source.take()).items():
            self._points.setdefault(model, Point()).add(point)
        self._count_active()
        points, self._points = self._points, {}
        await asyncio.to_thread(self._write, moment, points, is_last)

    def _gauges(self, model: str, gauges: Mapping[str, float]) -> None:
        point = self._points.setdefault(model, Point())
        for name, value in gauges.items():
            if 0 <= value < 1e18:
                point.sample(name, value)

    def _count_active(self) -> None:
        now = self._monotonic()
        for model, point in self._points.items():
            for sums in point.callers.values():
                self._active[f"{model}\n{sums.person_id}"] = now
        self._active = {who: at for who, at in self._active.items() if now - at < ACTIVE_S}
        for model in self._points:
            if model != NO_MODEL:
                number = sum(who.partition("\n")[0] == model for who in self._active)
                self._gauges(model, {"people_active": number})

    # ------------------------------------------------------------------ in a thread

    def _write(self, moment: float, points: Mapping[str, Point], is_last: bool) -> None:
        now = self._monotonic()
        self._watch_clock(now)
        self._chunks.add(moment, points)
        due = self._chunks.due(now, all_of_them=is_last)
        try:
            self._store.put(due)
            if now >= self._forgets_at:
                self._forget(self._wall())
                self._forgets_at = now + FORGET_S
        except StoreError as error:
            self._chunks.not_written()
            if not self._is_away:
                _log.warning("series are kept in memory until the database is back: %s", error)
            self._is_away = True
        else:
            self._chunks.written(due)
            if self._is_away:
                _log.warning("the database has the series; %d chunks lost", self._chunks.num_lost)
            self._is_away = False

    def _watch_clock(self, now: float) -> None:
        offset = self._wall() - now
        if abs(offset - self._offset) > JUMP_S:
            _log.warning(
                "the clock was set by %+.0f s; series have a seam there", offset - self._offset
            )
            self._forgets_at = now + SURE_S
        self._offset = offset

    def _forget(self, now: float) -> None:
        for each in ALL:
            self._store.forget(each.seconds, now - each.kept_s - each.chunk_s, now + DAY_S)
