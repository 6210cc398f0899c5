"""A report as a page of its own: one file that asks nobody for anything."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined, Template

from carpool.watch.notice import plain
from carpool.watch.report.report import Hour, Report
from carpool.watch.report.words import (
    HOUR_COLUMNS,
    USE_COLUMNS,
    advice_head,
    heading,
    hour_cells,
    key_figures,
    notes,
    number,
    seconds,
    shown_hours,
    use_cells,
    without_advice,
)

MAX_PEOPLE = 500
_WIDTH, _HEIGHT, _MARGIN = 720, 180, 18
_MOST_TICKS = 12


class Mark(NamedTuple):
    """Of a plot, in its units."""

    x: float
    y: float
    width: float
    height: float
    title: str


class Plot(NamedTuple):
    width: int
    height: int
    bars: list[Mark]
    dots: list[Mark]
    ticks: list[Mark]
    most: str
    latest: str


def as_html(report: Report) -> str:
    return _template().render(
        heading=heading(report),
        figures=key_figures(report),
        advice=[
            (
                advice_head(report, each),
                each.signal.severity.value,
                plain(each.signal.sentence),
                [plain(remedy.sentence) for remedy in each.signal.remedies],
            )
            for each in report.advice
        ],
        nothing=without_advice(report),
        plot=_plot(report),
        hour_columns=HOUR_COLUMNS,
        hours=[hour_cells(report, hour) for hour in shown_hours(report)],
        use_columns=USE_COLUMNS,
        people=[use_cells(person) for person in report.people[:MAX_PEOPLE]],
        models=[use_cells(model) for model in report.models[:MAX_PEOPLE]],
        outcomes=[(plain(name), number(count)) for name, count in report.outcomes.items()],
        notes=list(notes(report)),
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = Path(__file__).with_name("page.html").read_text("utf-8")
    return environment.from_string(text)


def _plot(report: Report) -> Plot | None:
    """Bars for requests, dots for p99 TTFT, each up to its own highest."""
    hours = report.hours
    most = max((hour.requests for hour in hours), default=0)
    if not most:
        return None
    latest = max((hour.ttft_p99 or 0.0 for hour in hours), default=0.0)
    step = _WIDTH / len(hours)
    floor, room = _HEIGHT - _MARGIN, _HEIGHT - 2 * _MARGIN
    bars, dots, ticks = [], [], []
    every = max(1, -(-len(hours) // _MOST_TICKS))
    for number_, hour in enumerate(hours):
        x, title = number_ * step, _title(report, hour)
        height = room * hour.requests / most
        bars.append(_mark(x + step * 0.1, floor - height, step * 0.8, height, title))
        if latest and hour.ttft_p99 is not None:
            dots.append(_mark(x + step / 2, floor - room * hour.ttft_p99 / latest, 0, 0, title))
        if number_ % every == 0:
            ticks.append(_mark(x + step / 2, 0, 0, 0, report.period.clock(hour.start)))
    return Plot(
        _WIDTH,
        _HEIGHT,
        bars,
        dots,
        ticks,
        f"bars: requests an hour, up to {number(most)}",
        f"dots: p99 TTFT, up to {seconds(latest)}" if latest else "",
    )


def _mark(x: float, y: float, width: float, height: float, title: str) -> Mark:
    return Mark(round(x, 1), round(y, 1), round(width, 1), round(height, 1), title)


def _title(report: Report, hour: Hour) -> str:
    clock = report.period.clock(hour.start)
    return f"{clock}: {number(hour.requests)} requests, p99 TTFT {seconds(hour.ttft_p99)}"
