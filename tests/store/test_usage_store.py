"""The ledger: every request once, sums that agree with the rows."""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from carpool.store.group_by import GroupBy
from carpool.store.key_store import KeyStore
from carpool.store.usage_row import UsageRow
from carpool.store.usage_store import DAY_S, OutputStats, UsageStore, day_start, month_start

MakeRow = Callable[..., UsageRow]
NOON = 1_800_000_000.0


def test_rows_are_added_once_however_often_they_come(ledger: UsageStore, make_row: MakeRow) -> None:
    rows = [make_row() for _ in range(20)]
    ledger.insert(rows[:10])
    ledger.insert([*rows, rows[3]])
    ledger.insert([])
    [total] = ledger.totals(GroupBy.PERSON)
    assert (total.num_requests, total.prompt_tokens, total.output_tokens) == (20, 200, 100)


@pytest.mark.parametrize("by", list(GroupBy))
def test_totals_agree_with_the_rows(ledger: UsageStore, make_row: MakeRow, by: GroupBy) -> None:
    rng = random.Random(by.value)
    rows = [
        make_row(
            started_at=NOON + rng.uniform(-3, 3) * DAY_S,
            person_id=rng.choice("ab"),
            key_id=rng.choice("uvw"),
            model=rng.choice(["fast", "deep"]),
            prompt_tokens=rng.randrange(1000),
            cached_tokens=rng.randrange(100),
            output_tokens=rng.randrange(500),
            status=rng.choice([200, 429, 503]),
        )
        for _ in range(300)
    ]
    for start in range(0, 300, 70):
        ledger.insert(rows[start : start + 90])
    since, until = NOON - 2 * DAY_S, NOON + 1.5 * DAY_S
    column = {GroupBy.PERSON: "person_id", GroupBy.KEY: "key_id", GroupBy.MODEL: "model"}

    def group_of(row: UsageRow) -> str:
        if by is GroupBy.DAY:
            return "{:04}-{:02}-{:02}".format(*time.gmtime(row.started_at)[:3])
        return str(getattr(row, column[by]))

    expected: dict[str, list[int]] = {}
    for row in rows:
        if since <= row.started_at < until:
            sums = expected.setdefault(group_of(row), [0] * 5)
            figures = (1, row.status >= 400, row.prompt_tokens, row.cached_tokens)
            for index, figure in enumerate((*figures, row.output_tokens)):
                sums[index] += figure
    totals = ledger.totals(by, since, until)
    assert {
        total.group_id: [
            total.num_requests,
            total.num_failed,
            total.prompt_tokens,
            total.cached_tokens,
            total.output_tokens,
        ]
        for total in totals
    } == expected
    order = [total.group_id for total in totals]
    if by is GroupBy.DAY:
        assert order == sorted(order)
    else:
        assert order == sorted(order, key=lambda group: -(expected[group][2] + expected[group][4]))


def test_people_and_keys_have_their_names_in_totals(
    keys: KeyStore, ledger: UsageStore, make_row: MakeRow
) -> None:
    person, new = keys.add_key_for("Ana", "laptop")
    mine = {"person_id": person.person_id, "key_id": new.key.key_id}
    ledger.insert([make_row(**mine), make_row(person_id="gone", key_id="lost", prompt_tokens=0)])
    by_person = [(total.group_id, total.name) for total in ledger.totals(GroupBy.PERSON)]
    assert by_person == [(person.person_id, "Ana"), ("gone", "gone")]
    by_key = [(total.group_id, total.name) for total in ledger.totals(GroupBy.KEY)]
    assert by_key == [(new.key.key_id, "laptop"), ("lost", "lost")]
    [only] = ledger.totals(GroupBy.KEY, key_id=new.key.key_id)
    assert only.name == "laptop"


def test_means_leave_out_what_has_no_figure(ledger: UsageStore, make_row: MakeRow) -> None:
    ledger.insert(
        [
            make_row(queue_ms=10, ttft_ms=100, model="a"),
            make_row(queue_ms=30, ttft_ms=None, model="a"),
            make_row(queue_ms=5, ttft_ms=None, tpot_ms=None, model="b", prompt_tokens=0),
        ]
    )
    means = [(total.mean_queue_ms, total.mean_ttft_ms) for total in ledger.totals(GroupBy.MODEL)]
    assert means == [(20.0, 100.0), (5.0, None)]


def test_budgets_count_prompt_and_output_from_a_moment_on(
    ledger: UsageStore, make_row: MakeRow
) -> None:
    assert ledger.tokens_since(0.0, key_id="anakey") == 0
    ledger.insert(
        [
            make_row(started_at=NOON - 1),
            make_row(started_at=NOON),
            make_row(started_at=NOON + 5, key_id="other"),
            make_row(started_at=NOON + 5, person_id="ben", key_id="ben"),
        ]
    )
    assert ledger.tokens_since(NOON, key_id="anakey") == 15
    assert ledger.tokens_since(NOON, person_id="ana") == 30
    assert ledger.tokens_since(0.0, person_id="ana") == 45
    assert ledger.tokens_since(0.0) == 60


def test_tokens_of_a_person_are_counted_by_model(ledger: UsageStore, make_row: MakeRow) -> None:
    for model in ("fast", "quick", "deep"):
        ledger.insert([make_row(model=model), make_row(model=model, person_id="ben")])
    assert ledger.tokens_since(0.0, person_id="ana", models=("fast",)) == 15
    assert ledger.tokens_since(0.0, person_id="ana", models=("fast", "quick")) == 30
    assert ledger.tokens_since(0.0, person_id="ana", models=()) == 0


def test_recent_output_is_of_the_newest_answers(ledger: UsageStore, make_row: MakeRow) -> None:
    assert ledger.recent_output("ana") == OutputStats(0, 0.0)
    ledger.insert(make_row(started_at=NOON + at, output_tokens=at) for at in range(1, 11))
    ledger.insert(
        [
            make_row(started_at=NOON + 99, output_tokens=0, status=429),
            make_row(started_at=NOON + 99, output_tokens=999, person_id="ben"),
        ]
    )
    assert ledger.recent_output("ana", last=3) == OutputStats(3, 9.0)
    assert ledger.recent_output("ana") == OutputStats(10, 5.5)


def test_odd_names_and_figures_keep_no_row_out(ledger: UsageStore, make_row: MakeRow) -> None:
    ledger.insert(
        [
            make_row(),
            make_row(model="nul\0 \ud800 esc\x1b[2J", prompt_tokens=0),
            make_row(model="x" * 10_000, output_tokens=-7, prompt_tokens=0),
            make_row(model="many", prompt_tokens=10**40, output_tokens=0),
        ]
    )
    names = [total.name for total in ledger.totals(GroupBy.MODEL)]
    assert names == ["many", "fast", "nul\ufffd \ufffd esc\ufffd[2J", "x" * 200]


def test_one_impossible_row_of_a_batch_adds_none(ledger: UsageStore, make_row: MakeRow) -> None:
    bad = make_row(person_id=None)
    with pytest.raises(Exception, match="person_id"):
        ledger.insert([make_row(), bad])
    assert ledger.totals(GroupBy.PERSON) == []


@pytest.mark.parametrize(
    "moment", ["2027-01-01T00:00:00", "2027-02-28T23:59:59", "2028-02-29T12:00:00"]
)
def test_days_and_months_begin_at_midnight_utc(moment: str) -> None:
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    midnight = at.replace(hour=0, minute=0, second=0)
    assert day_start(at.timestamp() + 0.25) == midnight.timestamp()
    assert month_start(at.timestamp() + 0.25) == midnight.replace(day=1).timestamp()
