"""Packed chunks of series, by resolution and time. What is in them is their writer's business."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import delete, select

from carpool.store.database import Database
from carpool.store.schema import series

_COLUMNS = ("resolution", "start", "model", "kind", "source", "chunk")
_INSERT = (
    f"INSERT INTO series ({', '.join(_COLUMNS)}) VALUES ({{}}) "  # noqa: S608
    "ON CONFLICT (resolution, start, model, kind, source) DO UPDATE SET chunk = excluded.chunk"
)
MAX_MODEL_CHARS = 200


@dataclass(frozen=True, slots=True)
class SeriesChunk:
    """`resolution` is the seconds of a point, `start` the unix second of the first one, `source`
    the life of the process that wrote it."""

    resolution: int
    start: int
    model: str
    kind: str
    source: str
    chunk: bytes


class SeriesStore:
    """Every method is one transaction, and raises DatabaseAway or StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, chunks: Iterable[SeriesChunk]) -> None:
        """In place of those that this source has written for the same times."""
        rows = [
            (each.resolution, each.start, each.model[:MAX_MODEL_CHARS], each.kind, each.source,
             each.chunk)
            for each in chunks
        ]  # fmt: skip
        if not rows:
            return
        with self._database.write() as connection:
            mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
            connection.exec_driver_sql(_INSERT.format(", ".join([mark] * len(_COLUMNS))), rows)

    def chunks(
        self, kind: str, resolution: int, first: int, until: float, model: str | None = None
    ) -> list[SeriesChunk]:
        """Those with first <= start < until, in the order of their starts."""
        query = (
            select(series)
            .where(series.c.resolution == resolution, series.c.kind == kind)
            .where(series.c.start >= first, series.c.start < until)
            .order_by(series.c.start)
        )
        if model is not None:
            query = query.where(series.c.model == model)
        with self._database.read() as connection:
            return [SeriesChunk(*row) for row in connection.execute(query)]

    def models(self) -> list[str]:
        """That there are series of at all."""
        coarsest = select(series.c.resolution).order_by(series.c.resolution.desc()).limit(1)
        query = select(series.c.model).where(series.c.resolution == coarsest.scalar_subquery())
        with self._database.read() as connection:
            return sorted(connection.execute(query.distinct()).scalars())

    def forget(self, resolution: int, before: float, after: float) -> int:
        """Chunks that start outside before..after, as after a clock that was wrong; how many."""
        query = delete(series).where(
            series.c.resolution == resolution,
            (series.c.start < before) | (series.c.start > after),
        )
        with self._database.write() as connection:
            return connection.execute(query).rowcount
