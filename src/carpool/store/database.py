"""The one way to the database: transactions, migrations, and errors that say what to do."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from alembic.command import upgrade
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError,
)

from carpool.store.errors import DatabaseAway, StoreError
from carpool.store.sqlite_file import SQLiteFile

_FORMS = "write sqlite:////path/to/carpool.db or postgresql://user:password@host/name"
# Any number, the same for every Carpool: who migrates a PostgreSQL database holds this lock.
_MIGRATION_LOCK = 0x636172706F6F6C
_CONNECT_TIMEOUT_S = 5
_TCP_TIMEOUT_MS = 10_000
# SQLite reports a missing table or column like a locked file, as an OperationalError.
_NOT_MIGRATED = ("no such table", "no such column", "has no column")


def default_database_url(environ: Mapping[str, str]) -> str:
    """$CARPOOL_HOME/carpool.db, else carpool/carpool.db where data (not caches) belongs."""
    if home := environ.get("CARPOOL_HOME"):
        folder = Path(home).expanduser().absolute()
    else:
        data = environ.get("XDG_DATA_HOME") or "~/.local/share"
        folder = Path(data).expanduser().absolute() / "carpool"
    return URL.create("sqlite", database=str(folder / "carpool.db")).render_as_string()


class Database:
    """People, keys and usage by URL; usable from several threads and processes at once.

    `url` is without its password. Raises StoreError for a URL that cannot be used; nothing is
    opened before the first transaction.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise StoreError(f"the database is not a URL; {_FORMS}") from None
        self.url = parsed.render_as_string(hide_password=True)
        self._file: SQLiteFile | None = None
        match parsed.get_backend_name():
            case "sqlite":
                self._file = SQLiteFile(_file_of(parsed))
                self._engine = self._file.make_engine()
            case "postgresql" | "postgres":
                self._engine = _postgres_engine(parsed)
            case other:
                raise StoreError(f"no database of kind {other!r}; {_FORMS}")
        self._writer = self._engine.execution_options(is_write=True)

    def migrate(self, revision: str = "head") -> None:
        """Make the tables, or bring them up to date. Several processes may do so at once.

        Raises StoreError where a newer Carpool has been at the database.
        """
        if self._file is not None:
            self._file.make()
        config = Config()
        config.set_main_option("script_location", "carpool.store:migrations")
        config.set_main_option("path_separator", "os")
        with self.write() as connection:
            if self._file is None:
                lock = text("SELECT pg_advisory_xact_lock(:lock)")
                connection.execute(lock, {"lock": _MIGRATION_LOCK})
            config.attributes["connection"] = connection
            try:
                upgrade(config, revision)
            except CommandError as error:
                raise StoreError(
                    f"the database {self.url} was made by a newer Carpool ({error}); "
                    "upgrade this one, or use another --database"
                ) from None

    def read(self) -> AbstractContextManager[Connection]:
        """A transaction that only reads. Raises DatabaseAway, StoreError."""
        return self._begin(self._engine)

    def write(self) -> AbstractContextManager[Connection]:
        """A transaction: all of it or nothing. Raises DatabaseAway, StoreError."""
        return self._begin(self._writer)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _begin(self, engine: Engine) -> Iterator[Connection]:
        try:
            with engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._explained(error) from error

    def _explained(self, error: SQLAlchemyError) -> StoreError:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        if reason.startswith(_NOT_MIGRATED):
            return StoreError(f"the database {self.url} lacks a table or column: {reason}")
        is_away = isinstance(error, OperationalError | InterfaceError | TimeoutError) or (
            isinstance(error, DBAPIError) and error.connection_invalidated
        )
        if is_away:
            return DatabaseAway(f"the database {self.url} cannot be used now: {reason}")
        return StoreError(f"the database {self.url} refused: {reason}")


def open_database(url: str | None, environ: Mapping[str, str] = os.environ) -> Database:
    """The database at `url`, or the default one, with its tables up to date."""
    database = Database(url or default_database_url(environ))
    database.migrate()
    return database


def _file_of(url: URL) -> Path:
    if url.query:
        raise StoreError(f"a SQLite URL takes no options, not {', '.join(url.query)}; {_FORMS}")
    if not url.database or url.database == ":memory:":
        raise StoreError(f"SQLite needs a file, or keys would be lost; {_FORMS}")
    return Path(url.database).expanduser().absolute()


def _postgres_engine(url: URL) -> Engine:
    limits = {"connect_timeout": _CONNECT_TIMEOUT_S, "tcp_user_timeout": _TCP_TIMEOUT_MS}
    try:
        return create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={name: limit for name, limit in limits.items() if name not in url.query},
            pool_pre_ping=True,
            pool_timeout=_CONNECT_TIMEOUT_S,
            hide_parameters=True,
        )
    except (ModuleNotFoundError, NoSuchModuleError):
        raise StoreError("PostgreSQL needs its driver: pip install 'carpool[postgres]'") from None
