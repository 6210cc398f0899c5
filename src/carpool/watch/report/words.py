"""Figures and sentences of a report, as text and page have them alike."""

from collections.abc import Iterator

from carpool.watch.notice import plain
from carpool.watch.report.period import PeriodKind
from carpool.watch.report.report import Advice, Hour, Named, Report


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:,.0f} ms" if value < 1 else f"{value:,.1f} s"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def change(now: float | None, before: float | None) -> str:
    """ " (+12 %)", or nothing where there is nothing to compare."""
    if not before or now is None:
        return ""
    return f" ({(now - before) / before:+.0%})".replace("%)", " %)")


def key_figures(report: Report) -> list[tuple[str, str]]:
    """Label and value, the latter with its change since the day or week before where that is
    over as well."""
    now, before = report.totals, report.before
    is_whole = report.is_over

    def with_change(text: str, value: float | None, old: float | None) -> str:
        return text + (change(value, old) if is_whole else "")

    hit = now.cached_tokens / now.prompt_tokens if now.prompt_tokens else None
    return [
        ("requests", with_change(number(now.requests), now.requests, before.requests)),
        ("of which failed", number(now.failed)),
        ("people", number(now.num_people)),
        (
            "prompt tokens",
            with_change(number(now.prompt_tokens), now.prompt_tokens, before.prompt_tokens),
        ),
        (
            "output tokens",
            with_change(number(now.output_tokens), now.output_tokens, before.output_tokens),
        ),
        ("prompt from cache", "-" if hit is None else f"{hit:.0%}"),
        ("TTFT p50", with_change(seconds(now.ttft_p50), now.ttft_p50, before.ttft_p50)),
        ("TTFT p99", with_change(seconds(now.ttft_p99), now.ttft_p99, before.ttft_p99)),
        ("wait for a seat p99", seconds(now.queue_wait_p99)),
        ("busiest hour", busiest(report)),
        ("hours in use", hours_in_use(report)),
    ]


def busiest(report: Report) -> str:
    hour = report.busiest
    if hour is None:
        return "-"
    return f"{report.period.clock(hour.start)}, {hour.requests:,} requests"


def hours_in_use(report: Report) -> str:
    text = f"{report.totals.busy_hours} of {len(report.hours)}"
    if report.hours_per_month is None:
        return text
    return f"{text}, {report.hours_per_month:,.0f} a month at this pace"


def notes(report: Report) -> Iterator[str]:
    """What there is to know about the figures."""
    period = report.period
    if not report.is_over:
        yield f"The {period.kind.value} is not over: up to {period.clock(report.made_at)}."
    if report.recorded_hours < len(report.hours):
        missing = len(report.hours) - report.recorded_hours
        yield f"Of {missing} hours no series were recorded: the gateway was off, or not there yet."
    yield f"Times are {period.zone.key}; a request counts for the hour it began in."
    if report.totals.requests:
        yield "Rent or buy by the hours in use: carpool plan MODEL --from-ledger"


def advice_head(report: Report, advice: Advice) -> str:
    """What it is, about whom, and when it was seen."""
    signal, clock = advice.signal, report.period.clock
    about = [plain(each) for each in (signal.model, advice.who) if each]
    when = clock(advice.first)
    if advice.last > advice.first:
        when = f"{when} to {clock(advice.last)}"
    name = signal.name.value.replace("_", " ")
    return f"{name} ({', '.join(about)}), {when}" if about else f"{name}, {when}"


HOUR_COLUMNS = ("hour", "requests", "TTFT p99", "queue max", "in flight")
USE_COLUMNS = ("requests", "failed", "prompt a request", "tokens", "share")


def shown_hours(report: Report) -> Iterator[Hour]:
    """Of a week, only those with requests or a queue: it has 168."""
    for hour in report.hours:
        if report.period.kind is PeriodKind.DAY or hour.requests or hour.waiting_max:
            yield hour


def hour_cells(report: Report, hour: Hour) -> tuple[str, ...]:
    """For `HOUR_COLUMNS`."""
    seats = "-"
    if hour.in_flight_mean is not None:
        seats = f"{hour.in_flight_mean:.1f} of {number(hour.seats)}"
    return (
        report.period.clock(hour.start),
        number(hour.requests),
        seconds(hour.ttft_p99),
        number(hour.waiting_max),
        seats,
    )


def use_cells(named: Named) -> tuple[str, ...]:
    """The name, and then for `USE_COLUMNS`."""
    use = named.use
    return (
        plain(named.name) or "?",
        number(use.requests),
        number(use.failed),
        number(use.prompt_tokens / use.requests),
        number(use.tokens),
        f"{named.share:.0%}",
    )


def without_advice(report: Report) -> str:
    if report.recorded_hours:
        return "Nothing: no signal was seen."
    return "Not known: no series were recorded."


def heading(report: Report) -> str:
    kind = "day" if report.period.kind is PeriodKind.DAY else "week"
    return f"Carpool's {kind}: {report.period.title}"
