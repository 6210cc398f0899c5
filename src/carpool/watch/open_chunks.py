"""Chunks that still grow, and those that the database has not taken yet."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from carpool.store.series_store import SeriesChunk
from carpool.watch.chunk import pack_callers, pack_figures
from carpool.watch.point import Point
from carpool.watch.resolution import ALL, Resolution

FIGURES, CALLERS = "figures", "callers"
MOST_WAITING_BYTES = 16 * 2**20
"""Of closed chunks, while the database is away; then the oldest are lost, and are a gap."""


def new_source() -> str:
    return secrets.token_hex(6)


@dataclass(slots=True)
class _Open:
    """The chunk of one resolution that grows. `points` are by model and slot."""

    resolution: Resolution
    start: int | None = None
    points: dict[str, dict[int, Point]] = field(default_factory=dict)
    written_at: float = -1e18
    has_news: bool = False


class OpenChunks:
    """Points go in as time goes on; what to write comes out, packed. A clock that goes back
    begins a new source, so that nothing is written over."""

    def __init__(self, make_source: Callable[[], str] = new_source) -> None:
        self._make_source = make_source
        self._source = make_source()
        self._open = [_Open(resolution) for resolution in ALL]
        self._closed: list[SeriesChunk] = []
        self.num_lost = 0
        """Chunks that were given up while the database was away."""

    def add(self, moment: float, points: Mapping[str, Point]) -> None:
        """What came together up to `moment` by the wall clock."""
        if any(
            each.start is not None and each.resolution.slot(moment).start < each.start
            for each in self._open
        ):
            self._close(self._open)
            self._source = self._make_source()
        for each in self._open:
            slot = each.resolution.slot(moment)
            if slot.start != each.start:
                self._close([each])
                each.start = slot.start
            for model, point in points.items():
                each.points.setdefault(model, {}).setdefault(slot.number, Point()).add(point)
            each.has_news = True

    def due(self, now: float, *, all_of_them: bool = False) -> list[SeriesChunk]:
        """To be written now, `now` being monotonic seconds."""
        due = list(self._closed)
        for each in self._open:
            if each.has_news and (all_of_them or now - each.written_at >= each.resolution.write_s):
                due += self._packed(each)
                each.written_at, each.has_news = now, False
        return due

    def written(self, chunks: Iterable[SeriesChunk]) -> None:
        """The database has them."""
        done = {id(each) for each in chunks}
        self._closed = [each for each in self._closed if id(each) not in done]

    def not_written(self) -> None:
        """It has not: what is open is due again at once."""
        for each in self._open:
            each.has_news = each.start is not None
            each.written_at = -1e18

    def _close(self, chunks: Iterable[_Open]) -> None:
        for each in chunks:
            self._closed += self._packed(each)
            each.points, each.start, each.has_news = {}, None, False
        size = sum(len(chunk.chunk) for chunk in self._closed)
        while size > MOST_WAITING_BYTES:
            size -= len(self._closed.pop(0).chunk)
            self.num_lost += 1

    def _packed(self, chunk: _Open) -> list[SeriesChunk]:
        if chunk.start is None:
            return []
        packed = []
        for model, points in chunk.points.items():
            name = (chunk.resolution.seconds, chunk.start, model)
            packed.append(SeriesChunk(*name, FIGURES, self._source, pack_figures(points)))
            if any(point.callers for point in points.values()):
                packed.append(SeriesChunk(*name, CALLERS, self._source, pack_callers(points)))
        return packed
