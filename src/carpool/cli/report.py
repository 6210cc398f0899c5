"""`carpool report`: the page of a day or a week, for the team."""

import json
import time
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carpool.cli.database import DatabaseOption
from carpool.errors import CarpoolError
from carpool.watch.report.period import PeriodKind

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from carpool.watch.report.report import Report


class ReportFileError(CarpoolError):
    """The page cannot be written."""


def report(
    kind: Annotated[PeriodKind, typer.Argument(help="A day, or a week from Monday to Sunday.")],
    day: Annotated[
        str,
        typer.Option(
            "--date", metavar="DATE", help="The day, or one of the week: 2027-01-31, yesterday."
        ),
    ] = "today",
    zone: Annotated[
        str, typer.Option("--timezone", metavar="NAME", help="Like Europe/Zurich.")
    ] = "UTC",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page instead: one HTML file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    database: DatabaseOption = None,
) -> None:
    """Say when it was busy, who used it, how it was and what to do, of a day or a week.

    Reads the database; the gateway may be down.
    """
    from carpool.store.database import open_database
    from carpool.watch.report.as_html import as_html
    from carpool.watch.report.as_text import as_text
    from carpool.watch.report.period import period_of
    from carpool.watch.report.report import make_report

    if as_json and html is not None:
        raise typer.BadParameter("--json and --html exclude each other")
    now = time.time()
    known_zone = _zone(zone)
    period = period_of(kind, _day(day, known_zone, now), known_zone)
    if period.since > now:
        raise typer.BadParameter(f"{day} has not come yet")
    with closing(open_database(database)) as opened:
        made = make_report(opened, period, now)
    if html is not None:
        _write(html, as_html(made))
    elif as_json:
        typer.echo(json.dumps(_as_dict(made)))
    else:
        typer.echo(as_text(made), nl=False)


def _day(text: str, zone: "ZoneInfo", now: float) -> date:
    today = datetime.fromtimestamp(now, zone).date()
    match text:
        case "today":
            return today
        case "yesterday":
            return today - timedelta(days=1)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r:.40} is no date; write 2027-01-31, today or yesterday"
        ) from None


def _zone(name: str) -> "ZoneInfo":
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise typer.BadParameter(
            f"{name!r:.40} is no time zone that is known here; write one like Europe/Zurich"
        ) from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ReportFileError(f"cannot write {path}: {error.strerror or error}") from None


def _as_dict(made: "Report") -> dict[str, Any]:
    """Times in ISO 8601, UTC; durations in seconds."""
    from carpool.watch.signal import as_dict

    period = made.period
    return {
        "kind": period.kind.value,
        "since": _iso(period.since),
        "until": _iso(period.until),
        "is_over": made.is_over,
        "totals": asdict(made.totals),
        "before": asdict(made.before),
        "hours": [asdict(hour) | {"start": _iso(hour.start)} for hour in made.hours],
        "people": [
            {"name": each.name, "share": each.share} | asdict(each.use) for each in made.people
        ],
        "models": [
            {"name": each.name, "share": each.share} | asdict(each.use) for each in made.models
        ],
        "outcomes": made.outcomes,
        "advice": [
            {"first": _iso(each.first), "last": _iso(each.last), "person": each.who}
            | {"signal": as_dict(each.signal)}
            for each in made.advice
        ],
        "recorded_hours": made.recorded_hours,
        "hours_per_month": made.hours_per_month,
    }


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
