"""Where usage waits while the database is away: JSON lines, one row each, synced to disk."""

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from carpool.store.errors import StoreError
from carpool.store.lane import Lane
from carpool.store.usage_row import FIELDS, UsageRow, as_columns

REPLAY_ROWS = 500

_log = logging.getLogger(__name__)


class Spool:
    """The file at `path`, which threads and processes may share. Raises StoreError.

    What a kill leaves behind is a last line without its end: the row in flight, lost alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def append(self, rows: Sequence[UsageRow]) -> None:
        """The rows are on disk when this returns."""
        lines = "".join(f"{json.dumps(as_columns(row))}\n" for row in rows)
        with self._locked() as file:
            file.seek(0, os.SEEK_END)
            start = b"" if _ends_whole(file) else b"\n"
            file.write(start + lines.encode("ascii"))
            _sync(file)

    def is_empty(self) -> bool:
        try:
            return self.path.stat().st_size == 0
        except OSError:
            return True

    def replay(self, insert: Callable[[list[UsageRow]], None]) -> int:
        """Give all rows to `insert`, then forget them; how many there were.

        Where `insert` raises, all are kept. It may see rows again that it had before a crash,
        so it must add each request_id once, as UsageStore.insert does.
        """
        if self.is_empty():
            return 0
        num_rows = 0
        with self._locked() as file:
            file.seek(0)
            rows = self._rows(file)
            while batch := list(islice(rows, REPLAY_ROWS)):
                insert(batch)
                num_rows += len(batch)
            file.truncate(0)
            _sync(file)
        return num_rows

    def _rows(self, file: IO[bytes]) -> Iterator[UsageRow]:
        for line in file:
            try:
                yield _parse(line)
            except (ValueError, TypeError):
                # Part of a row that a kill cut off, or a line that no Carpool has written.
                _log.warning("%s: a line of %d bytes is no row, left out", self.path, len(line))

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
                with os.fdopen(descriptor, "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    yield file
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(f"cannot use the usage spool {self.path}: {reason}") from error


def _ends_whole(file: IO[bytes]) -> bool:
    if file.tell() == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _parse(line: bytes) -> UsageRow:
    """Raises ValueError or TypeError. Fields that a newer Carpool added are left out."""
    columns = json.loads(line)
    if not isinstance(columns, dict):
        raise ValueError("not an object")
    known = {name: value for name, value in columns.items() if name in FIELDS}
    return UsageRow(**known | {"lane": Lane(known.get("lane", Lane.INTERACTIVE))})
