"""Fixtures: a database of its own per test, in SQLite and, where there is one, in PostgreSQL."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from carpool.store.database import Database
from carpool.store.key_store import KeyStore
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow
from carpool.store.usage_store import UsageStore


class Clock:
    """Unix seconds that stand still unless the test moves them."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "carpool.db"


@pytest.fixture
def sqlite(sqlite_path: Path) -> Database:
    """Not migrated."""
    return Database(f"sqlite:///{sqlite_path}")


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A schema of its own in the database that CARPOOL_TEST_POSTGRES names."""
    url = os.environ.get("CARPOOL_TEST_POSTGRES")
    if not url:
        pytest.skip("CARPOOL_TEST_POSTGRES holds no URL of a PostgreSQL database")
    base = make_url(url).set(drivername="postgresql+psycopg")
    schema = f"carpool_test_{uuid.uuid4().hex}"
    engine = create_engine(base)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    own = base.update_query_dict({"options": f"-csearch_path={schema}"})
    yield own.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def keys(database: Database, clock: Clock) -> KeyStore:
    return KeyStore(database, clock)


@pytest.fixture
def ledger(database: Database) -> UsageStore:
    return UsageStore(database)


@pytest.fixture
def make_row() -> Callable[..., UsageRow]:
    """A request of 10 + 5 tokens; request ids count up unless given."""
    numbers = iter(range(10**6))

    def make(**fields: object) -> UsageRow:
        defaults: dict[str, object] = {
            "request_id": f"req-{next(numbers)}",
            "started_at": 1_800_000_000.0,
            "person_id": "ana",
            "key_id": "anakey",
            "model": "fast",
            "backend": "embedded",
            "api": "chat",
            "lane": Lane.INTERACTIVE,
            "prompt_tokens": 10,
            "cached_tokens": 0,
            "output_tokens": 5,
            "usage_source": "reported",
            "queue_ms": 1.0,
            "ttft_ms": 20.0,
            "tpot_ms": 8.0,
            "total_ms": 60.0,
            "outcome": "completed",
            "status": 200,
            "is_stream": True,
            "is_fallback": False,
        }
        return UsageRow(**defaults | fields)  # type: ignore[arg-type]

    return make
