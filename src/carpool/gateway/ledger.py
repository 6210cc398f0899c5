"""One row per request, on disk from the moment the request ends until the database has it.

Rows are appended to a journal of this process as they come: a write of one line, which
outlives the process. Now and then the journal is closed, its rows are inserted in one batch,
off the event loop, and it is deleted; the next one is being written meanwhile. While the
database is away journals pile up, and go in when it is back. Inserting is idempotent, so
what was inserted before a crash is not counted twice.
"""

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import count
from pathlib import Path

from carpool.store.errors import StoreError
from carpool.store.spool import Spool
from carpool.store.usage_row import UsageRow

FLUSH_S = 0.5

_FIELDS = tuple(field.name for field in fields(UsageRow))
_log = logging.getLogger(__name__)

Insert = Callable[[Sequence[UsageRow]], None]


class Ledger:
    """Keeps its journals in `folder`, which other workers may share. `insert` runs in a thread
    and raises StoreError when the database does not take the rows."""

    def __init__(self, folder: Path, insert: Insert) -> None:
        self._folder = folder
        self._insert = insert
        self._serial_numbers = count()
        self._rows: list[UsageRow] = []
        self._journal: Path | None = None
        self._descriptor: int | None = None
        self._is_away = False
        self.num_recorded = 0

    @property
    def is_database_away(self) -> bool:
        """Whether the last batch could not be inserted."""
        return self._is_away

    def record(self, row: UsageRow) -> None:
        """Note a request that has ended. Quick; never waits for the database.

        A disk that is full costs the journal, not the answer: the row is then kept in memory
        alone, and the log says so.
        """
        self._rows.append(row)
        self.num_recorded += 1
        line = json.dumps({name: getattr(row, name) for name in _FIELDS}) + "\n"
        try:
            if self._descriptor is None:
                self._open()
            if self._descriptor is not None:
                os.write(self._descriptor, line.encode())
        except OSError as error:
            _log.error("cannot write the usage journal in %s: %s", self._folder, error.strerror)

    async def run(self) -> None:
        """Flush every `FLUSH_S` seconds, until cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                await self.flush()
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Insert what was recorded, and what earlier flushes, or processes that are gone, left."""
        rows, journal = self._rows, self._journal
        self._close()
        if rows and not await asyncio.to_thread(self._insert_rows, rows):
            if journal is None:  # not on disk either: it stays in memory
                self._rows = rows + self._rows
            return
        if journal is not None:
            journal.unlink(missing_ok=True)
        await asyncio.to_thread(self._insert_left)

    def _open(self) -> None:
        """Begin a journal, locked for as long as it is written: nobody else inserts it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"usage-{os.getpid()}-{next(self._serial_numbers)}.jsonl"
        self._journal = self._folder / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._journal, flags, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._rows, self._journal, self._descriptor = [], None, None

    def _insert_rows(self, rows: list[UsageRow]) -> bool:
        try:
            self._insert(rows)
        except StoreError as error:
            self._note_away(error)
            return False
        self._note_back()
        return True

    def _insert_left(self) -> None:
        """Journals that nobody writes any more: whole, or cut in their last line by a kill."""
        own = self._journal
        for journal in sorted(self._folder.glob("usage-*.jsonl")):
            if journal == own or _is_being_written(journal):
                continue
            try:
                Spool(journal).replay(self._insert)
            except StoreError as error:
                self._note_away(error)
                return
            self._note_back()
            journal.unlink(missing_ok=True)

    def _note_away(self, error: StoreError) -> None:
        if not self._is_away:
            _log.warning("usage is kept in %s until the database is back: %s", self._folder, error)
        self._is_away = True

    def _note_back(self) -> None:
        if self._is_away:
            _log.warning("the database is back; usage is being inserted")
        self._is_away = False


def _is_being_written(journal: Path) -> bool:
    try:
        with journal.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return True
    return False
