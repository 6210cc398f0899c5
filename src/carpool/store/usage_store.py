"""The ledger: one row a request, written in batches, summed up for people."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select

from carpool.store.database import Database
from carpool.store.group_by import GroupBy
from carpool.store.schema import keys, people, usage
from carpool.store.usage_row import FIELDS, UsageRow, as_values

DAY_S = 86_400
MAX_INTEGER = 2**63 - 1
MAX_TEXT_CHARS = 200

_COLUMNS = (*FIELDS, "day")
# Past SQLAlchemy's parameters, which cost more than the row itself: every request pays for this.
_INSERT = f"INSERT INTO usage ({', '.join(_COLUMNS)}) VALUES ({{}}) ON CONFLICT DO NOTHING"  # noqa: S608


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """The sum of a group's rows. `num_failed` had a status of 400 or more.

    `group_id` is a person's or a key's id, a model's name, or a UTC date; `name` is what people
    call it. The means, in milliseconds, are None where no row has the figure.
    """

    group_id: str
    name: str
    num_requests: int
    num_failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    mean_queue_ms: float | None
    mean_ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class OutputStats:
    """What a person's last answers were like: their number, and the mean of their tokens."""

    count: int
    mean: float


class UsageStore:
    """Every method is one transaction, and raises DatabaseAway or StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, rows: Iterable[UsageRow]) -> None:
        """Add all rows or none; one whose request_id is there already changes nothing."""
        batch = [_stored(row) for row in rows]
        if not batch:
            return
        with self._database.write() as connection:
            mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
            connection.exec_driver_sql(_INSERT.format(", ".join([mark] * len(_COLUMNS))), batch)

    def totals(
        self,
        by: GroupBy,
        since: float | None = None,
        until: float | None = None,
        *,
        key_id: str | None = None,
        person_id: str | None = None,
    ) -> list[UsageTotal]:
        """Sums of the rows with since <= started_at < until: days in order, else most tokens
        first."""
        query = _TOTALS[by]()
        for condition in _between(since, until):
            query = query.where(condition)
        if key_id is not None:
            query = query.where(usage.c.key_id == key_id)
        if person_id is not None:
            query = query.where(usage.c.person_id == person_id)
        with self._database.read() as connection:
            totals = [_total(by, *row) for row in connection.execute(query)]
        if by is GroupBy.DAY:
            return sorted(totals, key=lambda total: total.group_id)
        return sorted(totals, key=lambda total: -(total.prompt_tokens + total.output_tokens))

    def tokens_since(
        self,
        since: float,
        *,
        key_id: str | None = None,
        person_id: str | None = None,
        models: Collection[str] | None = None,
    ) -> int:
        """Prompt and output tokens from `since` on: of everybody, a key, or a person, and with
        all models, or those of these names."""
        query = select(func.coalesce(func.sum(usage.c.prompt_tokens + usage.c.output_tokens), 0))
        query = query.where(usage.c.started_at >= since)
        if key_id is not None:
            query = query.where(usage.c.key_id == key_id)
        if person_id is not None:
            query = query.where(usage.c.person_id == person_id)
        if models is not None:
            query = query.where(usage.c.model.in_(models))
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def recent_output(self, person_id: str, last: int = 50) -> OutputStats:
        """Of the `last` newest rows that had output at all."""
        rows = (
            select(usage.c.output_tokens)
            .where(usage.c.person_id == person_id, usage.c.output_tokens > 0)
            .order_by(usage.c.started_at.desc())
            .limit(last)
            .subquery()
        )
        query = select(func.count(), func.coalesce(func.avg(rows.c.output_tokens), 0))
        with self._database.read() as connection:
            count, mean = connection.execute(query.select_from(rows)).one()
        return OutputStats(int(count), float(mean))


def day_start(now: float) -> float:
    """The start of the UTC day that `now` is in."""
    return now - now % DAY_S


def month_start(now: float) -> float:
    """The start of the UTC month that `now` is in."""
    return day_start(now) - (time.gmtime(now).tm_mday - 1) * DAY_S


def _stored(row: UsageRow) -> tuple[Any, ...]:
    """The values of `_COLUMNS`."""
    return (*map(_storable, as_values(row)), int(row.started_at // DAY_S))


def _storable(value: Any) -> Any:
    """What a database takes: names and figures come from clients and engines, and one odd row
    must not keep the others out."""
    if isinstance(value, float) or value is None:
        return value
    if isinstance(value, str):
        if not value.isprintable():
            value = "".join(char if char.isprintable() else "\ufffd" for char in value)
        return value[:MAX_TEXT_CHARS] if len(value) > MAX_TEXT_CHARS else str(value)
    if isinstance(value, int) and not 0 <= value <= MAX_INTEGER:
        return 0 if value < 0 else MAX_INTEGER
    return value


def _between(since: float | None, until: float | None) -> list[ColumnElement[bool]]:
    conditions = []
    if since is not None:
        conditions.append(usage.c.started_at >= since)
    if until is not None:
        conditions.append(usage.c.started_at < until)
    return conditions


def _sums() -> tuple[ColumnElement[Any], ...]:
    return (
        func.count(),
        func.sum(case((usage.c.status >= 400, 1), else_=0)),
        func.sum(usage.c.prompt_tokens),
        func.sum(usage.c.cached_tokens),
        func.sum(usage.c.output_tokens),
        func.avg(usage.c.queue_ms),
        func.avg(usage.c.ttft_ms),
    )


def _by_person() -> Select[Any]:
    group = (usage.c.person_id, people.c.name)
    joined = usage.outerjoin(people, people.c.person_id == usage.c.person_id)
    return select(*group, *_sums()).select_from(joined).group_by(*group)


def _by_key() -> Select[Any]:
    group = (usage.c.key_id, keys.c.name)
    joined = usage.outerjoin(keys, keys.c.key_id == usage.c.key_id)
    return select(*group, *_sums()).select_from(joined).group_by(*group)


def _by_column(column: ColumnElement[Any]) -> Callable[[], Select[Any]]:
    return lambda: select(column, column.label("name"), *_sums()).group_by(column)


_TOTALS: dict[GroupBy, Callable[[], Select[Any]]] = {
    GroupBy.PERSON: _by_person,
    GroupBy.KEY: _by_key,
    GroupBy.MODEL: _by_column(usage.c.model),
    GroupBy.DAY: _by_column(usage.c.day),
}


def _total(by: GroupBy, group_id: Any, name: Any, *sums: Any) -> UsageTotal:
    if by is GroupBy.DAY:
        group_id = name = time.strftime("%Y-%m-%d", time.gmtime(group_id * DAY_S))
    requests, failed, prompt, cached, output, queue_ms, ttft_ms = sums
    return UsageTotal(
        group_id=group_id,
        name=group_id if name is None else name,
        num_requests=int(requests),
        num_failed=int(failed),
        prompt_tokens=int(prompt),
        cached_tokens=int(cached),
        output_tokens=int(output),
        mean_queue_ms=None if queue_ms is None else float(queue_ms),
        mean_ttft_ms=None if ttft_ms is None else float(ttft_ms),
    )
