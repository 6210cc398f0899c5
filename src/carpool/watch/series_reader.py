"""Figures over time, as pages and signals read them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from carpool.errors import CarpoolError
from carpool.store.database import Database
from carpool.store.series_store import SeriesChunk, SeriesStore
from carpool.watch.accumulator import NO_MODEL
from carpool.watch.callers import CallerSeries, gather_callers
from carpool.watch.chunk import ChunkError, FiguresChunk, unpack_callers, unpack_figures
from carpool.watch.gathered import Gathered
from carpool.watch.open_chunks import CALLERS, FIGURES
from carpool.watch.resolution import ALL, BY_SECONDS, RESOLUTIONS, Resolution
from carpool.watch.series_names import NAMES, OF_HOST, OUTCOME
from carpool.watch.span import Span

MOST_POINTS = 20_000


class SeriesError(CarpoolError):
    """A figure, a resolution or a time that cannot be read."""


@dataclass(frozen=True, slots=True)
class SeriesTable:
    """Columns are as long as `starts`, the unix seconds at which buckets of `resolution` seconds
    begin; None where nothing was recorded, or there is no such figure."""

    resolution: int
    starts: list[float]
    columns: dict[str, list[float | None]] = field(default_factory=dict)


def resolution_for(since: float, until: float, most: int = 1500) -> int:
    """The finest with at most that many points."""
    fitting = (seconds for seconds in RESOLUTIONS if (until - since) / seconds <= most)
    return next(fitting, RESOLUTIONS[-1])


class SeriesReader:
    """Synchronous: call it from threads. Methods raise SeriesError, DatabaseAway, StoreError."""

    def __init__(self, database: Database) -> None:
        self._store = SeriesStore(database)

    def models(self) -> list[str]:
        return [model for model in self._store.models() if model != NO_MODEL]

    def read_series(
        self,
        names: Iterable[str],
        since: float,
        until: float,
        resolution: int,
        model: str | None = None,
    ) -> SeriesTable:
        """`model` None: of all models together; "": of requests that reached none."""
        names = list(names)
        for name in names:
            if name not in NAMES and not name.startswith(OUTCOME):
                raise SeriesError(f"{name!r:.100} is no figure; there are {', '.join(NAMES)}")
        kind, span = _span(since, until, resolution)
        wanted = [name for name in names if name.partition(".")[0] not in OF_HOST]
        of_host = [name for name in names if name.partition(".")[0] in OF_HOST]
        table = SeriesTable(resolution, span.starts())
        if wanted:
            table.columns.update(self._columns(wanted, kind, span, model))
        if of_host:
            table.columns.update(self._columns(of_host, kind, span, NO_MODEL))
        return table

    def read_callers(
        self, since: float, until: float, resolution: int, model: str | None = None
    ) -> list[CallerSeries]:
        """By key and model, those first that took most tokens."""
        kind, span = _span(since, until, resolution)
        chunks = self._store.chunks(CALLERS, resolution, span.first_chunk(kind), until, model)
        packed = ((each.model, each.start, unpack_callers(each.chunk)) for each in chunks)
        figures = self._store.chunks(FIGURES, resolution, span.first_chunk(kind), until, model)
        recorded = [(each.start, unpack_figures(each.chunk).slots) for each in figures]
        return gather_callers(packed, recorded, span)

    def _columns(
        self, names: Sequence[str], kind: Resolution, span: Span, model: str | None
    ) -> dict[str, list[float | None]]:
        chunks = self._store.chunks(
            FIGURES, kind.seconds, span.first_chunk(kind), span.until, model
        )
        by_model: dict[str, list[tuple[int, FiguresChunk]]] = {}
        for start, name, chunk in _unpacked(chunks):
            by_model.setdefault(name, []).append((start, chunk))
        return Gathered(span, list(by_model.values())).columns(names)


def _span(since: float, until: float, resolution: int) -> tuple[Resolution, Span]:
    kind = BY_SECONDS.get(resolution)
    if kind is None:
        raise SeriesError(f"resolution is {resolution}; give one of {RESOLUTIONS} seconds")
    if not (0 <= since <= until < 1e11):
        raise SeriesError(f"since is {since} and until {until}; give unix seconds in order")
    span = Span.of(since, until, resolution)
    if span.num_points > MOST_POINTS:
        raise SeriesError(
            f"{span.num_points} points are more than {MOST_POINTS}; give a shorter time, or a "
            f"coarser resolution of {', '.join(str(each.seconds) for each in ALL)} s"
        )
    return kind, span


def _unpacked(chunks: Iterable[SeriesChunk]) -> Iterator[tuple[int, str, FiguresChunk]]:
    for each in chunks:
        try:
            yield each.start, each.model, unpack_figures(each.chunk)
        except ChunkError as error:
            raise SeriesError(f"a chunk of series is damaged: {error}") from None
