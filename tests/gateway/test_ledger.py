"""Rows are on disk before the database has them, and in the database exactly once."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from carpool.gateway.ledger import SUFFIX, Journal, Ledger
from carpool.store.database import Database
from carpool.store.errors import DatabaseAway, StoreError
from carpool.store.group_by import GroupBy
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow, as_columns
from carpool.store.usage_store import UsageStore

ROW = UsageRow(
    request_id="r",
    started_at=1_800_000_000.0,
    person_id="ana",
    key_id="anakey",
    model="fast",
    backend="embedded",
    api="chat",
    lane=Lane.INTERACTIVE,
    prompt_tokens=10,
    cached_tokens=0,
    output_tokens=5,
    usage_source="reported",
    queue_ms=1.0,
    ttft_ms=20.0,
    tpot_ms=None,
    total_ms=60.0,
    outcome="completed",
    status=200,
    is_stream=True,
    is_fallback=False,
)


def row(name):
    return replace(ROW, request_id=str(name))


class FakeDatabase:
    """Takes each request_id once; raises `error` while there is one."""

    def __init__(self):
        self.rows = {}
        self.num_inserts = 0
        self.error = None

    def insert(self, rows):
        if self.error is not None:
            raise self.error
        self.num_inserts += 1
        for each in rows:
            self.rows.setdefault(each.request_id, each)


@pytest.fixture
def database():
    return FakeDatabase()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "journal"


def journals(folder):
    return list(folder.glob(f"*{SUFFIX}"))


def ids_on_disk(folder):
    lines = [line for path in journals(folder) for line in path.read_text().splitlines()]
    return {json.loads(line)["request_id"] for line in lines}


def record(ledger, *names):
    for name in names:
        ledger.record(row(name))


def test_a_row_is_on_disk_as_soon_as_it_is_recorded(folder, database):
    ledger = Ledger(folder, database.insert)
    record(ledger, "a", "b")
    assert ids_on_disk(folder) == {"a", "b"}
    assert not database.rows


def test_a_flush_takes_rows_to_the_database_and_leaves_no_file(run, folder, database):
    ledger = Ledger(folder, database.insert)
    record(ledger, "a", "b")
    run(ledger.flush())
    assert list(database.rows.values()) == [row("a"), row("b")]
    assert list(folder.iterdir()) == []
    run(ledger.flush())
    assert database.num_inserts == 1


def test_what_comes_while_a_batch_is_being_inserted_is_in_the_next(run, folder, database):
    ledger = Ledger(folder, lambda rows: None)

    def insert(rows):
        if not database.rows:
            record(ledger, "late")
        database.insert(rows)

    ledger._insert = insert
    record(ledger, "a")
    run(ledger.flush())
    assert set(database.rows) == {"a"}
    assert ids_on_disk(folder) == {"late"}
    run(ledger.flush())
    assert set(database.rows) == {"a", "late"}


def test_while_the_database_is_away_rows_pile_up_and_go_in_once_it_is_back(run, folder, database):
    ledger = Ledger(folder, database.insert)
    database.error = DatabaseAway("gone")
    for name in "abc":
        record(ledger, name)
        run(ledger.flush())
    assert ledger.is_database_away
    assert ids_on_disk(folder) == {"a", "b", "c"}
    database.error = None
    record(ledger, "d")
    run(ledger.flush())
    assert set(database.rows) == set("abcd")
    assert not ledger.is_database_away
    assert journals(folder) == []


def test_rows_are_counted_where_they_are(run, folder, database):
    ledger = Ledger(folder, database.insert)
    record(ledger, "a", "b")
    assert (ledger.num_waiting, ledger.num_spooled) == (2, 0)
    database.error = DatabaseAway("gone")
    run(ledger.flush())
    record(ledger, "c")
    assert (ledger.num_waiting, ledger.num_spooled) == (1, 2)
    run(ledger.flush())
    assert (ledger.num_waiting, ledger.num_spooled) == (0, 3)
    database.error = None
    run(ledger.flush())
    assert (ledger.num_waiting, ledger.num_spooled) == (0, 0)


def test_it_recovers_even_if_nobody_asks_anything_more(run, folder, database):
    ledger = Ledger(folder, database.insert)
    database.error = DatabaseAway("gone")
    record(ledger, "a")
    run(ledger.flush())
    database.error = None
    run(ledger.flush())
    assert set(database.rows) == {"a"}
    assert not ledger.is_database_away


def test_a_journal_that_is_being_written_is_left_alone(run, folder, database):
    other, ledger = Ledger(folder, database.insert), Ledger(folder, database.insert)
    record(other, "theirs")
    record(ledger, "mine")
    run(ledger.flush())
    assert set(database.rows) == {"mine"}
    assert ids_on_disk(folder) == {"theirs"}
    run(other.flush())
    assert set(database.rows) == {"mine", "theirs"}


def test_a_journal_that_was_only_begun_is_not_taken_for_one_that_was_left(run, folder, database):
    """Between its creation and its lock nobody can see it."""
    journal = Journal(folder)
    run(Ledger(folder, database.insert).flush())
    journal.append([row("a")])
    assert ids_on_disk(folder) == {"a"}
    journal.close()


def test_what_a_killed_process_left_is_inserted_but_for_a_cut_line(run, folder, database, caplog):
    journal = Journal(folder)
    journal.append([row("a")])
    journal.append([row("b")])
    journal.close()
    journal.path.write_bytes(journal.path.read_bytes() + b'{"request_id": "in fli')
    run(Ledger(folder, database.insert).flush())
    assert list(database.rows.values()) == [row("a"), row("b")]
    assert journals(folder) == []


def test_a_journal_that_the_database_will_never_take_keeps_nobody_out(
    run, folder, database, caplog
):
    journal = Journal(folder)
    journal.append([row("bad")])
    journal.close()
    ledger = Ledger(folder, database.insert)
    database.error = StoreError("no such column")
    for _ in range(3):
        run(ledger.flush())
    assert len(caplog.records) == 1
    database.error = None
    record(ledger, "good")
    run(ledger.flush())
    assert set(database.rows) == {"good"}
    assert ids_on_disk(folder) == {"bad"}
    run(Ledger(folder, database.insert).flush())
    assert set(database.rows) == {"good", "bad"}


def test_a_full_disk_costs_the_journal_and_not_the_row(run, folder, database, monkeypatch, caplog):
    ledger = Ledger(folder, database.insert)
    record(ledger, "a")
    write = os.write

    def no_room(descriptor, data):
        if not data.startswith(b'{"request_id"'):
            return write(descriptor, data)
        write(descriptor, data[:20])
        return 20

    monkeypatch.setattr(os, "write", no_room)
    record(ledger, "b", "c")
    assert len(caplog.records) == 1
    assert os.strerror(errno.ENOSPC) in caplog.text
    monkeypatch.undo()
    record(ledger, "d")
    assert ids_on_disk(folder) == {"a", "d"}
    database.error = DatabaseAway("gone")
    run(ledger.flush())
    database.error = None
    run(ledger.flush())
    assert set(database.rows) == set("abcd")


def test_a_folder_that_cannot_be_written_costs_nothing_while_the_database_is_there(
    run, tmp_path, database, caplog
):
    (tmp_path / "file").write_text("")
    ledger = Ledger(tmp_path / "file" / "journal", database.insert)
    record(ledger, "a", "b")
    run(ledger.flush())
    assert set(database.rows) == {"a", "b"}


def test_the_last_rows_go_in_when_it_is_cancelled(run, folder, database):
    async def scenario():
        ledger = Ledger(folder, database.insert)
        task = asyncio.create_task(ledger.run())
        await asyncio.sleep(0)
        record(ledger, "a")
        task.cancel()
        await asyncio.wait([task])

    run(scenario())
    assert set(database.rows) == {"a"}
    assert journals(folder) == []


def test_a_flush_that_was_about_to_begin_is_not_cut_off(run, folder, database, monkeypatch):
    monkeypatch.setattr("carpool.gateway.ledger.FLUSH_S", 0)

    async def scenario():
        loop, is_free = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, is_free.wait)  # the only thread
        ledger = Ledger(folder, database.insert)
        record(ledger, "a")
        task = asyncio.create_task(ledger.run())
        while ledger._rows:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        is_free.set()
        await asyncio.wait([task])
        assert task.cancelled()

    run(scenario())
    assert set(database.rows) == {"a"}
    assert journals(folder) == []


CHILD = """
import asyncio, json, sys
from pathlib import Path
from carpool.gateway.ledger import Ledger
from carpool.store.database import Database
from carpool.store.usage_store import UsageStore
from carpool.store.usage_row import UsageRow

async def main():
    ledger = Ledger(Path(sys.argv[1]), UsageStore(Database(sys.argv[2])).insert)
    fields = json.loads(sys.argv[3])
    for number in range(10**6):
        ledger.record(UsageRow(**fields | {"request_id": f"r{number}"}))
        print(number, flush=True)
        if number % 50 == 49:
            await ledger.flush()

asyncio.run(main())
"""


@pytest.mark.parametrize("num_rows", [1, 49, 120, 175])
def test_a_kill_loses_no_row_that_was_recorded(run, tmp_path, folder, num_rows):
    """A real child, killed in the middle of recording and inserting; every row it told of is in
    the database afterwards, once."""
    url = f"sqlite:///{tmp_path}/carpool.db"
    database = Database(url)
    database.migrate()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), url, json.dumps(as_columns(ROW))],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    for _ in range(num_rows):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    told = num_rows + len(child.stdout.read().splitlines())
    child.stdout.close()
    child.wait()
    store = UsageStore(database)
    run(Ledger(folder, store.insert).flush())
    (total,) = store.totals(GroupBy.PERSON)
    assert told <= total.num_requests <= told + 1
    assert total.output_tokens == 5 * total.num_requests
    assert journals(folder) == []
    database.close()
