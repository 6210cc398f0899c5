"""The ledger's rows as they are, for those who plan by what a team did."""

from typing import Any

from sqlalchemy import select

from carpool.store.database import Database
from carpool.store.schema import usage

MOST_ROWS = 200_000
"""The newest: more say nothing new of what requests are like."""
COLUMNS = ("started_at", "person_id", "prompt_tokens", "cached_tokens", "output_tokens", "total_ms")


def usage_log(database: Database, since: float, model: str | None = None) -> list[dict[str, Any]]:
    """`COLUMNS` of requests that ended well, the oldest first; of all models, or of one.

    Raises DatabaseAway and StoreError.
    """
    query = select(*(usage.c[name] for name in COLUMNS)).where(
        usage.c.started_at >= since, usage.c.status < 400, usage.c.output_tokens > 0
    )
    if model is not None:
        query = query.where(usage.c.model == model)
    newest = query.order_by(usage.c.started_at.desc()).limit(MOST_ROWS)
    with database.read() as connection:
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in connection.execute(newest)]
    return rows[::-1]
