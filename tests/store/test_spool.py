"""The spool: rows wait on disk through outages and kills, and are counted once."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.store.database import Database
from carpool.store.errors import DatabaseAway, StoreError
from carpool.store.group_by import GroupBy
from carpool.store.spool import REPLAY_ROWS, Spool
from carpool.store.usage_row import UsageRow
from carpool.store.usage_store import UsageStore

MakeRow = Callable[..., UsageRow]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool" / "usage.jsonl")


def replayed(spool: Spool) -> list[UsageRow]:
    rows: list[UsageRow] = []
    assert spool.replay(rows.extend) == len(rows)
    return rows


def test_rows_come_back_in_order_once(spool: Spool, make_row: MakeRow) -> None:
    rows = [make_row(model="\ud800 \n é 模", ttft_ms=None), make_row(), make_row(is_stream=False)]
    assert spool.is_empty()
    assert replayed(spool) == []
    spool.append(rows[:2])
    spool.append(rows[2:])
    assert not spool.is_empty()
    assert replayed(spool) == rows
    assert spool.is_empty()
    assert replayed(spool) == []
    spool.append(rows[:1])
    assert replayed(spool) == rows[:1]


def test_another_process_finds_the_rows(spool: Spool, make_row: MakeRow) -> None:
    row = make_row()
    spool.append([row])
    assert replayed(Spool(spool.path)) == [row]


def test_an_outage_during_replay_loses_and_doubles_nothing(
    spool: Spool, make_row: MakeRow, database: Database
) -> None:
    ledger = UsageStore(database)
    rows = [make_row() for _ in range(2 * REPLAY_ROWS + 7)]
    spool.append(rows)
    calls = 0

    def insert(batch: list[UsageRow]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise DatabaseAway("gone again")
        ledger.insert(batch)

    with pytest.raises(DatabaseAway):
        spool.replay(insert)
    assert not spool.is_empty()
    assert spool.replay(insert) == len(rows)
    [total] = ledger.totals(GroupBy.PERSON)
    assert total.num_requests == len(rows)


@pytest.mark.parametrize("kept", range(0, 400, 37))
def test_a_row_cut_off_by_a_kill_is_lost_alone(spool: Spool, make_row: MakeRow, kept: int) -> None:
    before, cut, after = make_row(), make_row(), make_row()
    spool.append([before])
    whole = spool.path.stat().st_size
    spool.append([cut])
    os.truncate(spool.path, min(whole + kept, spool.path.stat().st_size - 2))
    spool.append([after])
    assert replayed(spool) == [before, after]


def test_rows_of_another_version_are_read(spool: Spool, make_row: MakeRow) -> None:
    row = make_row()
    spool.append([row])
    line = spool.path.read_text()
    spool.path.write_text(line.replace('{"', '{"invented_later": 1, "', 1) + "[1]\nnull\n\n")
    assert replayed(spool) == [row]


def test_what_append_returned_from_survives_a_kill(spool: Spool) -> None:
    script = """
import os, sys
from pathlib import Path
from carpool.store.lane import Lane
from carpool.store.spool import Spool
from carpool.store.usage_row import UsageRow
def row(n):
    return UsageRow(f"req-{n}", 0.0, "p", "k", "m", "b", "chat", Lane.BATCH, 1, 0, 1, "reported",
                    0.0, None, None, 1.0, "completed", 200, False, False)
spool = Spool(Path(sys.argv[1]))
n = 0
while True:
    spool.append([row(n), row(n + 1)])
    n += 2
    print(n, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(spool.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while (written := int(process.stdout.readline())) < 20:
        pass
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    written = max([written, *map(int, rest)])
    ids = [row.request_id for row in replayed(spool)]
    assert ids[:written] == [f"req-{number}" for number in range(written)]
    assert len(ids) <= written + 2


def test_threads_append_whole_lines(spool: Spool, make_row: MakeRow) -> None:
    batches = [[make_row(), make_row()] for _ in range(12)]
    threads = [threading.Thread(target=spool.append, args=[batch]) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = sorted(row.request_id for row in replayed(spool))
    assert ids == sorted(row.request_id for batch in batches for row in batch)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, make_row: MakeRow) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="usage spool"):
        Spool(tmp_path / "file" / "usage.jsonl").append([make_row()])
