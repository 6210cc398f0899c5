"""A report, put together from the ledger, the series and the signals; the gateway may be down."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from carpool.store.database import Database
from carpool.store.key_store import KeyStore
from carpool.store.usage_period import usage_between
from carpool.watch.report.period import HOUR_S, Period, PeriodKind
from carpool.watch.report.summary import Summary, Use, quantile, summarise
from carpool.watch.series_reader import SeriesReader
from carpool.watch.signal import Signal
from carpool.watch.watching import Watching

HOURS_PER_MONTH = 730.0
LOOKS = {PeriodKind.DAY: HOUR_S, PeriodKind.WEEK: 6 * HOUR_S}
"""How often signals are looked for: what comes and goes between two looks is not found."""
_SERIES = ("waiting.max", "in_flight.mean", "seats.max")


@dataclass(frozen=True, slots=True)
class Hour:
    """`start` in unix seconds, TTFT in seconds. None is not known, or was not."""

    start: float
    requests: int
    ttft_p99: float | None
    waiting_max: float | None
    in_flight_mean: float | None
    seats: float | None


@dataclass(frozen=True, slots=True)
class Named:
    """A person's or a model's use, and their share of all tokens."""

    name: str
    use: Use
    share: float


@dataclass(frozen=True, slots=True)
class Advice:
    """A signal as it was last, seen from `first` to `last` (unix seconds)."""

    signal: Signal
    who: str
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds; None where there is none."""

    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    num_people: int
    ttft_p50: float | None
    ttft_p99: float | None
    queue_wait_p99: float | None
    busy_hours: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`recorded_hours`: of how many hours there are series. `hours_per_month`: what busy hours
    come to at this pace, None of less than a day."""

    period: Period
    made_at: float
    totals: Totals
    before: Totals
    hours: tuple[Hour, ...]
    people: tuple[Named, ...]
    models: tuple[Named, ...]
    outcomes: Mapping[str, int]
    advice: tuple[Advice, ...]
    recorded_hours: int
    hours_per_month: float | None

    @property
    def is_over(self) -> bool:
        return self.made_at >= self.period.until

    @property
    def busiest(self) -> Hour | None:
        return max(
            (hour for hour in self.hours if hour.requests),
            key=lambda hour: hour.requests,
            default=None,
        )


def make_report(database: Database, period: Period, now: float) -> Report:
    """Raises DatabaseAway and StoreError."""
    summary = _summary(database, period)
    people = {each.person_id: each.name for each in KeyStore(database).list_people()}
    until = min(period.until, now)
    hours = _hours(database, period, until, summary)
    passed_hours = (until - period.since) / HOUR_S
    busy = sum(hour < len(hours) for hour in summary.served_hours)
    return Report(
        period=period,
        made_at=now,
        totals=replace(_totals(summary), busy_hours=busy),
        before=_totals(_summary(database, period.before())),
        hours=hours,
        people=_named(summary.people, people),
        models=_named(summary.models, {}),
        outcomes=dict(summary.outcomes.most_common()),
        advice=_advice(Watching(database), period, until, people),
        recorded_hours=sum(hour.waiting_max is not None for hour in hours),
        hours_per_month=busy * HOURS_PER_MONTH / passed_hours if passed_hours >= 24 else None,
    )


def _summary(database: Database, period: Period) -> Summary:
    return summarise(usage_between(database, period.since, period.until), period.since)


def _totals(summary: Summary) -> Totals:
    return Totals(
        requests=summary.use.requests,
        failed=summary.use.failed,
        prompt_tokens=summary.use.prompt_tokens,
        cached_tokens=summary.cached_tokens,
        output_tokens=summary.use.output_tokens,
        num_people=len(summary.people),
        ttft_p50=quantile(summary.ttft, 0.5),
        ttft_p99=quantile(summary.ttft, 0.99),
        queue_wait_p99=quantile(summary.queue_wait, 0.99),
        busy_hours=len(summary.served_hours),
    )


def _hours(database: Database, period: Period, until: float, summary: Summary) -> tuple[Hour, ...]:
    """Those that have begun. Series are by the hours of UTC: where those of the calendar begin at
    half past, an hour has the series of the one it begins in."""
    series: dict[int, list[float | None]] = {}
    if until > period.since:
        table = SeriesReader(database).read_series(_SERIES, period.since, until, int(HOUR_S))
        columns = [table.columns[name] for name in _SERIES]
        for start, *values in zip(table.starts, *columns, strict=True):
            series[int(start // HOUR_S)] = values
    hours = []
    for hour, start in enumerate(period.hours()):
        if start >= until:
            break
        ttft = summary.hour_ttft.get(hour)
        p99 = None if ttft is None else quantile(ttft, 0.99)
        waiting, in_flight, seats = series.get(int(start // HOUR_S), (None, None, None))
        hours.append(Hour(start, summary.by_hour[hour], p99, waiting, in_flight, seats))
    return tuple(hours)


def _named(uses: Mapping[str, Use], names: Mapping[str, str]) -> tuple[Named, ...]:
    everything = sum(use.tokens for use in uses.values())
    named = [
        Named(names.get(key, key), use, use.tokens / everything if everything else 0.0)
        for key, use in uses.items()
    ]
    return tuple(sorted(named, key=lambda each: (-each.use.tokens, each.name)))


def _advice(
    watching: Watching, period: Period, until: float, people: Mapping[str, str]
) -> tuple[Advice, ...]:
    found: dict[str, Advice] = {}
    moment, step = period.since, LOOKS[period.kind]
    while moment < until:
        moment = min(moment + step, until)
        for signal in watching.look(moment).signals:
            before = found.get(signal.id)
            first = moment if before is None else before.first
            who = people.get(signal.person_id, signal.person_id)
            found[signal.id] = Advice(signal, who, first, moment)
    return tuple(sorted(found.values(), key=lambda each: (-each.signal.severity.rank, each.first)))
