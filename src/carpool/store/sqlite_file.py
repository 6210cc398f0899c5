"""SQLite as a shared database: write-ahead log, one connection per transaction."""

import fcntl
import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from carpool.store.errors import StoreError

_BUSY_TIMEOUT_S = 5.0


class SQLiteFile:
    """The database file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Create the file as far as it is not there, readable by its owner alone.

        Raises StoreError. The lock is there because SQLite does not wait when two switch the
        same file to write-ahead logging.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.path.touch(mode=0o600)
                connection = self._connect()
                connection.execute("PRAGMA journal_mode = WAL")
                connection.close()
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise StoreError(
                f"cannot make the database {self.path}: {reason}; name another with --database"
            ) from None

    def make_engine(self) -> Engine:
        """One connection per transaction: it opens the file that is there now, or fails.

        A kept one would go on writing into a file that was moved away.
        """
        engine = create_engine(
            "sqlite+pysqlite://", creator=self._connect, poolclass=NullPool, hide_parameters=True
        )
        event.listen(engine, "begin", _begin)
        return engine

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: never make an empty database in place of one that is away.
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode=rw",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        return connection


def _begin(connection: Connection) -> None:
    """Take the write lock at once: one that reads first could find it cannot write any more."""
    is_write = connection.get_execution_options().get("is_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")
