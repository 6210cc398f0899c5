"""The ledger's rows of a time, one after another: a week of them need not fit into memory."""

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import select

from carpool.store.database import Database
from carpool.store.schema import usage

_ROWS_AT_ONCE = 5_000


class PeriodRow(NamedTuple):
    """Of one request; the names are the ledger's."""

    started_at: float
    person_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_ms: float
    ttft_ms: float | None
    total_ms: float
    outcome: str
    status: int
    is_stream: bool


def usage_between(database: Database, since: float, until: float) -> Iterator[PeriodRow]:
    """Of since <= started_at < until, the oldest first. Raises DatabaseAway and StoreError."""
    query = (
        select(*(usage.c[name] for name in PeriodRow._fields))
        .where(usage.c.started_at >= since, usage.c.started_at < until)
        .order_by(usage.c.started_at)
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    with database.read() as connection, connection.execute(query) as found:
        for row in found:
            yield PeriodRow(*row)
