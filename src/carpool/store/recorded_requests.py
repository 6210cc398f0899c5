"""Requests whose text is kept, of keys whose holders agreed: for a while, and no more."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import delete, func, select

from carpool.store.database import Database
from carpool.store.schema import recorded_requests

RETENTION_S = 30 * 86_400
MAX_PER_KEY = 1000
MAX_BODY_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """`body` is the request as JSON text, without what came back. Times in unix seconds."""

    request_id: str
    recorded_at: float
    key_id: str
    person_id: str
    model: str
    body: str


class RecordedRequestStore:
    """Every method is one transaction, and raises DatabaseAway or StoreError."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def insert(self, requests: Sequence[RecordedRequest]) -> None:
        """Keep them, and let go of what is older than RETENTION_S, and of each key's oldest
        beyond MAX_PER_KEY."""
        table = recorded_requests
        with self._database.write() as connection:
            known = select(table.c.request_id).where(
                table.c.request_id.in_([each.request_id for each in requests])
            )
            there = set(connection.execute(known).scalars())
            rows = [asdict(each) for each in requests if each.request_id not in there]
            if rows:
                connection.execute(table.insert(), rows)
            old = table.c.recorded_at < self._clock() - RETENTION_S
            connection.execute(delete(table).where(old))
            for key_id in {each.key_id for each in requests}:
                newest = (
                    select(table.c.request_id)
                    .where(table.c.key_id == key_id)
                    .order_by(table.c.recorded_at.desc(), table.c.request_id)
                    .limit(MAX_PER_KEY)
                )
                mine = table.c.key_id == key_id
                connection.execute(delete(table).where(mine, table.c.request_id.not_in(newest)))

    def find(
        self,
        *,
        key_ids: Iterable[str] | None = None,
        model: str | None = None,
        since: float | None = None,
        request_ids: Iterable[str] | None = None,
        limit: int = MAX_PER_KEY,
    ) -> list[RecordedRequest]:
        """Oldest first, of the newest `limit`; never what is older than RETENTION_S."""
        table = recorded_requests
        least = self._clock() - RETENTION_S
        query = select(table).where(table.c.recorded_at >= max(least, since or least))
        if key_ids is not None:
            query = query.where(table.c.key_id.in_(list(key_ids)))
        if model is not None:
            query = query.where(table.c.model == model)
        if request_ids is not None:
            query = query.where(table.c.request_id.in_(list(request_ids)))
        query = query.order_by(table.c.recorded_at.desc(), table.c.request_id).limit(limit)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [RecordedRequest(**row._mapping) for row in reversed(rows)]

    def forget(self, key_id: str) -> int:
        """Let go of all of a key's; how many there were."""
        table = recorded_requests
        mine = table.c.key_id == key_id
        with self._database.write() as connection:
            count = connection.execute(select(func.count()).where(mine)).scalar_one()
            connection.execute(delete(table).where(mine))
        return int(count)
