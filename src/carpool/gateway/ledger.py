"""One row per request, on disk from the moment the request ends until the database has it.

Rows are appended to a journal of this process as they come: a write of one line, which
outlives the process. Now and then the journal is closed, its rows are inserted in one batch,
off the event loop, and it is deleted; the next one is being written meanwhile. While the
database is away journals pile up, and go in when it is back. Inserting is idempotent, so
what was inserted before a crash is not counted twice.

A journal is locked for as long as it is written. One that nobody has locked was left by a
failed insertion or by a process that is gone, and whoever finds it inserts it.
"""

import asyncio
import errno
import fcntl
import json
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from carpool.store.errors import DatabaseAway, StoreError
from carpool.store.spool import Spool
from carpool.store.usage_row import UsageRow, as_columns

FLUSH_S = 0.5
AWAY_FLUSH_S = 2.0
"""Between attempts while the database is away; each leaves a journal."""
SUFFIX = ".usage.jsonl"

_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_log = logging.getLogger(__name__)

Insert = Callable[[Sequence[UsageRow]], None]
CallSoon = Callable[[Callable[[], None]], object]


class Ledger:
    """Keeps its journals in `folder`, which other workers may share. `insert` runs in a thread
    and raises StoreError when the database does not take the rows. `call_soon` is the event
    loop's, so that rows of one turn of it are written together, at its end; as it is, each is
    written at once."""

    def __init__(
        self, folder: Path, insert: Insert, call_soon: CallSoon = lambda call: call()
    ) -> None:
        self._folder = folder
        self._call_soon = call_soon
        self._insert = insert
        self._ended: list[UsageRow] = []
        self._rows: list[UsageRow] = []
        self._unwritten: list[UsageRow] = []
        self._journal: Journal | None = None
        self._put_aside: set[Path] = set()
        self._num_spooled = 0
        self._is_away = False
        self._is_disk_bad = False

    @property
    def num_waiting(self) -> int:
        """Rows that the next flush takes."""
        return len(self._ended) + len(self._rows) + len(self._unwritten)

    @property
    def num_spooled(self) -> int:
        """Rows of this process that the database did not take; its journals hold them."""
        return self._num_spooled

    @property
    def is_database_away(self) -> bool:
        """Whether the last batch could not be inserted."""
        return self._is_away

    def record(self, row: UsageRow) -> None:
        """Note a request that has ended. Quick; never waits for the database.

        A disk that is full costs the journal, not the answer: rows are then kept in memory
        alone, and the log says so.
        """
        if not self._ended:
            self._ended = [row]
            self._call_soon(self._write_ended)
        else:
            self._ended.append(row)

    def _write_ended(self) -> None:
        rows, self._ended = self._ended, []
        if not rows:
            return
        try:
            if self._journal is None:
                self._journal = Journal(self._folder)
            self._journal.append(rows)
        except OSError as error:
            self._unwritten += rows
            if not self._is_disk_bad:
                _log.error("cannot write the usage journal in %s: %s", self._folder, error)
            self._is_disk_bad = True
        else:
            self._rows += rows
            self._is_disk_bad = False

    async def run(self) -> None:
        """Flush now and then, until cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(AWAY_FLUSH_S if self._is_away else FLUSH_S)
                flush = asyncio.create_task(self.flush())
                try:
                    await asyncio.shield(flush)
                finally:
                    await flush  # cut off half-way, its rows would be in nobody's hands
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Insert what was recorded, and what earlier flushes, or processes that are gone, left."""
        self._write_ended()
        rows, unwritten, journal = self._rows, self._unwritten, self._journal
        self._rows, self._unwritten, self._journal = [], [], None
        if not await asyncio.to_thread(self._insert_rows, [*unwritten, *rows], journal):
            self._unwritten = unwritten + self._unwritten
            return
        await asyncio.to_thread(self._insert_left)

    def _insert_rows(self, rows: list[UsageRow], journal: "Journal | None") -> bool:
        """False if the database did not take them; the journal then stays, for the next time."""
        try:
            if rows:
                self._insert(rows)
                self._note_back()
        except StoreError as error:
            self._note_away(error)
            self._num_spooled += 0 if journal is None else journal.num_rows
            return False
        else:
            if journal is not None:
                _remove(journal.path)
            return True
        finally:
            if journal is not None:
                journal.close()

    def _insert_left(self) -> None:
        """Journals that nobody writes any more: whole, or cut in their last line by a kill."""
        for path in set(self._folder.glob(f"*{SUFFIX}")) - self._put_aside:
            try:
                if _is_being_written(path):
                    continue
                Spool(path).replay(self._insert)
            except DatabaseAway as error:
                self._note_away(error)
                return
            except (OSError, StoreError) as error:
                _log.error("the usage in %s is left there until the next start: %s", path, error)
                self._put_aside.add(path)
            else:
                self._note_back()
                _remove(path)
        self._num_spooled = 0

    def _note_away(self, error: StoreError) -> None:
        if not self._is_away:
            _log.warning("usage is kept in %s until the database is back: %s", self._folder, error)
        self._is_away = True

    def _note_back(self) -> None:
        if self._is_away:
            _log.warning("the database is back; usage is being inserted")
        self._is_away = False


class Journal:
    """A new file of rows, locked until it is closed. It has its name only once it is locked:
    nobody takes it for one that was left. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = secrets.token_hex(8)
        unlocked = folder / f"{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self.path = folder / f"{name}{SUFFIX}"
        self.num_rows = 0
        self._descriptor = os.open(unlocked, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            unlocked.rename(self.path)
        except OSError:
            os.close(self._descriptor)
            raise

    def append(self, rows: Sequence[UsageRow]) -> None:
        """All of them or, with OSError, none."""
        lines = "".join([f"{_encode(as_columns(row))}\n" for row in rows]).encode()
        num_written = os.write(self._descriptor, lines)
        if num_written < len(lines):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - num_written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.num_rows += len(rows)

    def close(self) -> None:
        os.close(self._descriptor)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:  # its rows are inserted again, and count once
        _log.error("cannot remove the usage journal %s: %s", path, error)


def _is_being_written(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        return True
    return False
