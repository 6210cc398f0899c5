"""Rows of a time, in order, as they are in the ledger."""

from carpool.store.usage_period import usage_between

START = 1_800_000_000.0


def test_rows_of_a_time_come_in_order(database, ledger, make_row):
    moments = [START + 50, START - 1, START, START + 100, START + 99.5]
    ledger.insert([make_row(started_at=moment, ttft_ms=None) for moment in moments])
    rows = list(usage_between(database, START, START + 100))
    assert [row.started_at for row in rows] == [START, START + 50, START + 99.5]
    first = rows[0]
    assert (first.person_id, first.model, first.prompt_tokens) == ("ana", "fast", 10)
    assert (first.ttft_ms, first.status, first.is_stream) == (None, 200, True)


def test_more_rows_than_are_read_at_once(database, ledger, make_row):
    ledger.insert([make_row(started_at=START + number) for number in range(6_000)])
    moments = [row.started_at for row in usage_between(database, START, START + 10_000)]
    assert moments == [START + number for number in range(6_000)]


def test_reading_may_end_early(database, ledger, make_row):
    ledger.insert([make_row(started_at=START + number) for number in range(10)])
    rows = usage_between(database, START, START + 100)
    assert next(rows).started_at == START
    rows.close()
    ledger.insert([make_row(started_at=START)])
