"""`carpool report`: what a day and a week were like, by the ledger and the series alone."""

import json
import re
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner

from carpool.cli import app
from carpool.store.database import Database
from carpool.store.key_store import KeyStore
from carpool.store.lane import Lane
from carpool.store.series_store import SeriesStore
from carpool.store.usage_row import UsageRow
from carpool.store.usage_store import UsageStore
from carpool.watch.accumulator import Accumulators
from carpool.watch.open_chunks import OpenChunks
from carpool.watch.point import Point
from carpool.watch.report.as_html import as_html
from carpool.watch.report.as_text import as_text
from carpool.watch.report.period import PeriodKind, ReportError, period_of
from carpool.watch.report.report import Report, make_report

UTC_ZONE = ZoneInfo("UTC")
DAY = date(2026, 11, 27)  # a Friday
NINE = datetime(2026, 11, 27, 9, tzinfo=UTC).timestamp()
HOUR_S = 3600.0
NAUGHTY = "Zoë <script>alert(1)</script>\x1b[2J\u202e\r\n李雷\U0001f600 " + "x" * 90


def row(number: int, started_at: float, **fields) -> UsageRow:
    made = UsageRow(
        request_id=f"r{number}", started_at=started_at, person_id="ana", key_id="k-ana",
        model="team-model", backend="e", api="chat", lane=Lane.INTERACTIVE, prompt_tokens=1000,
        cached_tokens=250, output_tokens=100, usage_source="reported", queue_ms=50.0,
        ttft_ms=400.0, tpot_ms=20.0, total_ms=2400.0, outcome="completed", status=200,
        is_stream=True, is_fallback=False,
    )  # fmt: skip
    return replace(made, **fields)


def a_days_rows(start: float = NINE) -> list[UsageRow]:
    """At nine 20 requests of Ana, at ten 40 of Bo that are slow and some refused."""
    rows = [row(n, start + 60 * n) for n in range(20)]
    for n in range(40):
        is_refused = n >= 35
        rows.append(
            row(
                100 + n, start + HOUR_S + 60 * n, person_id="bo", prompt_tokens=3000,
                ttft_ms=None if is_refused else 4000.0, status=503 if is_refused else 200,
                outcome="queue_full" if is_refused else "completed", queue_ms=3000.0,
            )
        )  # fmt: skip
    return [replace(each, request_id=f"{each.request_id}-{start}") for each in rows]


def record_series(database: Database, start: float, num_hours: int) -> None:
    """The engine is full and the queue never empties in the last hour."""
    chunks = OpenChunks(lambda: "test")
    for minute in range(num_hours * 60):
        moment = start + 60 * minute
        is_full = minute >= (num_hours - 1) * 60
        sums = Accumulators()
        for number in range(6 if is_full else 2):
            sums.ended("team-model", row(number, moment, queue_ms=9000.0 if is_full else 0.0))
        points = sums.take()
        point = points.setdefault("team-model", Point())
        point.sample("waiting", 7.0 if is_full else 0.0)
        point.sample("in_flight", 4.0 if is_full else 1.0)
        point.sample("seats", 4.0)
        point.sample("kv_tokens", 40_000.0)
        chunks.add(moment, points)
        if minute % 10 == 9:
            due = chunks.due(moment, all_of_them=minute == num_hours * 60 - 1)
            SeriesStore(database).put(due)
            chunks.written(due)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/carpool.db"


@pytest.fixture
def database(url: str):
    opened = Database(url)
    opened.migrate()
    with closing(opened):
        yield opened


@pytest.fixture(scope="module")
def full_url(tmp_path_factory) -> str:
    """Of a database with a day in it."""
    return f"sqlite:///{tmp_path_factory.mktemp('day')}/carpool.db"


@pytest.fixture(scope="module")
def day(full_url: str) -> Report:
    opened = Database(full_url)
    opened.migrate()
    with closing(opened):
        UsageStore(opened).insert(a_days_rows())
        record_series(opened, NINE - 2 * HOUR_S, 4)
        return make_report(opened, period_of(PeriodKind.DAY, DAY, UTC_ZONE), NINE + 2 * HOUR_S)


def run(url: str, *arguments: str):
    return CliRunner().invoke(app, ["report", *arguments, "--database", url])


# ---------------------------------------------------------------------- what it finds


def test_a_day_has_its_totals_and_its_busiest_hour(day):
    totals = day.totals
    assert (totals.requests, totals.failed, totals.num_people) == (60, 5, 2)
    assert totals.prompt_tokens == 20 * 1000 + 40 * 3000
    assert (totals.ttft_p50, totals.ttft_p99) == (4.0, 4.0)
    assert totals.queue_wait_p99 == 3.0
    assert (day.busiest.start, day.busiest.requests) == (NINE + HOUR_S, 40)
    assert totals.busy_hours == 2
    nine = next(hour for hour in day.hours if hour.start == NINE)
    assert (nine.requests, nine.ttft_p99, nine.seats) == (20, 0.4, 4.0)


def test_it_says_who_and_how_much_of_it(day):
    assert [(each.name, each.use.requests) for each in day.people] == [("bo", 40), ("ana", 20)]
    assert sum(each.share for each in day.people) == pytest.approx(1.0)
    assert day.outcomes == {"completed": 55, "queue_full": 5}


def test_it_says_what_to_do_and_when_that_was_seen(day):
    advice = {each.signal.name.value: each for each in day.advice}
    queue = advice["sustained_queue"]
    assert NINE + HOUR_S <= queue.first <= queue.last <= NINE + 2 * HOUR_S
    assert queue.signal.remedies
    text = as_text(day)
    assert "sustained queue (team-model)" in text
    assert queue.signal.sentence in text
    assert queue.signal.remedies[0].sentence in text


def test_a_day_that_is_not_over_says_so_and_ends_now(day):
    assert len(day.hours) == 11
    assert "The day is not over: up to 11:00." in as_text(day)
    assert day.hours_per_month is None


def test_a_quiet_week_compares_with_the_one_before_and_counts_its_hours(database):
    UsageStore(database).insert(a_days_rows())
    UsageStore(database).insert(a_days_rows(NINE - 7 * 24 * HOUR_S)[:30])
    period = period_of(PeriodKind.WEEK, DAY, UTC_ZONE)
    week = make_report(database, period, period.until + 1)
    assert period.title == "Week 2026-W48, 2026-11-23 to 2026-11-29"
    assert (week.totals.requests, week.before.requests) == (60, 30)
    text = as_text(week)
    assert re.search(r"requests +60 \(\+100 %\)", text)
    assert re.search(r"hours in use +2 of 168, 9 a month at this pace", text)
    assert "Fri 10:00" in text
    assert "Sat" not in text
    assert "Of 168 hours no series were recorded" in text
    assert "Not known: no series were recorded." in text


def test_nothing_at_all_is_a_report_as_well(database):
    report = make_report(database, period_of(PeriodKind.DAY, DAY, UTC_ZONE), NINE)
    assert report.totals.requests == 0
    assert "Who\n  none" in as_text(report)
    assert "<svg" not in as_html(report)


def test_a_request_that_runs_past_the_hour_was_served_in_both(database):
    late = row(1, NINE + HOUR_S - 1, total_ms=2000.0)
    past = row(2, NINE + 15 * HOUR_S - 1, total_ms=8_000_000.0)  # into the next day
    UsageStore(database).insert([late, past])
    report = make_report(database, period_of(PeriodKind.DAY, DAY, UTC_ZONE), NINE + 1e6)
    assert report.totals.busy_hours == 3


@pytest.mark.parametrize(
    ("zone", "day", "num_hours"),
    [
        ("UTC", date(2026, 11, 27), 24),
        ("Europe/Zurich", date(2026, 10, 25), 25),
        ("Europe/Zurich", date(2026, 3, 29), 23),
        ("Asia/Kolkata", date(2026, 11, 27), 24),
    ],
)
def test_days_are_those_of_a_calendar(database, zone, day, num_hours):
    period = period_of(PeriodKind.DAY, day, ZoneInfo(zone))
    assert len(list(period.hours())) == num_hours
    UsageStore(database).insert([row(n, period.since + n * HOUR_S + 1) for n in range(num_hours)])
    report = make_report(database, period, period.until)
    assert [hour.requests for hour in report.hours] == [1] * num_hours


def test_there_is_no_report_of_a_time_before_time():
    for day in (date(1960, 1, 1), date.min, date.max):
        with pytest.raises(ReportError, match="since 1970"):
            period_of(PeriodKind.WEEK, day, UTC_ZONE)


# ---------------------------------------------------------------------- as it is written


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_a_page_asks_nobody_for_anything(day):
    page = Page(as_html(day))
    names = {name for name, _ in page.elements}
    assert not names & {"script", "link", "img", "iframe", "object", "a", "base", "form"}
    for _, attributes in page.elements:
        assert not {"src", "href", "onload", "onclick"} & attributes.keys()
    assert "url(" not in as_html(day)
    policy = next(a for n, a in page.elements if a.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    bars = [a for name, a in page.elements if name == "rect"]
    assert len(bars) == len(day.hours)


def test_names_are_text_whatever_is_in_them(database):
    person = KeyStore(database).add_person("Ana")
    odd = "m<b onload=x>"
    UsageStore(database).insert([row(1, NINE, person_id=person.person_id, model=odd)])
    report = make_report(database, period_of(PeriodKind.DAY, DAY, UTC_ZONE), NINE + 1e6)
    report = replace(report, people=(replace(report.people[0], name=NAUGHTY),))
    page, text = as_html(report), as_text(report)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<b onload" not in page
    for each in (page, text):
        assert "\x1b" not in each
        assert "\u202e" not in each
    assert "Zoë <script>alert(1)<" in text


def test_text_is_aligned_whatever_the_names(database):
    UsageStore(database).insert(
        [row(1, NINE, person_id="李雷"), row(2, NINE, person_id="x" * 60), row(3, NINE)]
    )
    report = make_report(database, period_of(PeriodKind.DAY, DAY, UTC_ZONE), NINE + 1e6)
    lines = as_text(report).splitlines()
    start = lines.index("Who")
    assert [line.split()[1] for line in lines[start + 2 : start + 5]] == ["1"] * 3
    assert max(len(line) for line in lines) < 110


# ---------------------------------------------------------------------- the verb


def test_the_verb_prints_text_json_or_writes_a_page(day, full_url, tmp_path):
    done = run(full_url, "day", "--date", "2026-11-27")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Carpool's day: Friday, 2026-11-27\n")
    told = json.loads(run(full_url, "week", "--date", "2026-11-27", "--json").output)
    assert (told["since"], told["until"]) == ("2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z")
    assert told["totals"]["requests"] == 60
    assert told["people"][0]["name"] == "bo"
    file = tmp_path / "day.html"
    done = run(full_url, "day", "--date", "2026-11-27", "--html", str(file))
    assert (done.exit_code, done.output) == (0, "")
    assert "<h1>Carpool&#39;s day: Friday, 2026-11-27</h1>" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("month",), "month"),
        (("day", "--date", "27.11.2026"), "is no date; write 2027-01-31"),
        (("day", "--date", "2999-01-01"), "has not come yet"),
        (("day", "--date", "1960-01-01"), "since 1970"),
        (("day", "--timezone", "Mars/Base"), "is no time zone"),
        (("day", "--timezone", "../../etc/passwd"), "is no time zone"),
        (("day", "--html", "/nowhere/x.html"), "cannot write /nowhere/x.html"),
        (("day", "--html", "x", "--json"), "exclude each other"),
    ],
)
def test_what_cannot_be_is_said(url, arguments, says):
    done = run(url, *arguments)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_a_database_that_is_away_is_said(tmp_path):
    done = run("postgresql://user:pa55@127.0.0.1:1/x", "day")
    assert done.exit_code == 2
    assert "cannot be used now" in done.output
    assert "pa55" not in done.output
