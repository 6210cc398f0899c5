"""A day or a week of a calendar."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from carpool.errors import CarpoolError

HOUR_S = 3600.0


class ReportError(CarpoolError):
    """A report that cannot be made."""


class PeriodKind(StrEnum):
    DAY = "day"
    WEEK = "week"


@dataclass(frozen=True, slots=True)
class Period:
    """From `since` to before `until`, unix seconds; `first` is its first day in `zone`."""

    kind: PeriodKind
    first: date
    zone: ZoneInfo
    since: float
    until: float

    @property
    def title(self) -> str:
        if self.kind is PeriodKind.DAY:
            return f"{self.first:%A}, {self.first.isoformat()}"
        last = self.first + timedelta(days=6)
        return f"Week {self.first:%G-W%V}, {self.first.isoformat()} to {last.isoformat()}"

    def hours(self) -> Iterator[float]:
        """Where each begins; a day has 23 or 25 when clocks are changed."""
        start = self.since
        while start < self.until:
            yield start
            start += HOUR_S

    def before(self) -> "Period":
        days = 1 if self.kind is PeriodKind.DAY else 7
        return period_of(self.kind, self.first - timedelta(days=days), self.zone)

    def clock(self, moment: float) -> str:
        """As people write it: "14:00", in a week with the day before it."""
        local = datetime.fromtimestamp(moment, self.zone)
        return local.strftime("%H:%M" if self.kind is PeriodKind.DAY else "%a %H:%M")


def period_of(kind: PeriodKind, day: date, zone: ZoneInfo) -> Period:
    """The day, or the week from Monday to Sunday that it is in. Raises ReportError."""
    try:
        first = day if kind is PeriodKind.DAY else day - timedelta(days=day.weekday())
        days = 1 if kind is PeriodKind.DAY else 7
        since, until = (
            datetime(each.year, each.month, each.day, tzinfo=zone).timestamp()
            for each in (first, first + timedelta(days=days))
        )
    except (ValueError, OverflowError):
        raise ReportError(f"there is no report of {day}; give a date since 1970") from None
    if since < 0:
        raise ReportError(f"there is no report of {day}; give a date since 1970")
    return Period(kind, first, zone, since, until)
