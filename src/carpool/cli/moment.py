"""Points in time as people write them."""

import re
import time
from datetime import UTC, datetime

import typer

_UNITS_S = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_SPAN = re.compile(r"(\d{1,6})([mhdw])", re.ASCII)


def parse_expiry(text: str) -> float:
    """Unix seconds of "30d" (from now on) or "2027-01-31" (its first moment, UTC)."""
    return _moment(text, sign=1)


def parse_since(text: str) -> float:
    """Unix seconds of "7d" (before now) or "2027-01-31" (its first moment, UTC)."""
    return _moment(text, sign=-1)


def _moment(text: str, sign: int) -> float:
    if match := _SPAN.fullmatch(text.strip()):
        number, unit = match.groups()
        return time.time() + sign * int(number) * _UNITS_S[unit]
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write it like 12h, 30d or 2027-01-31 (UTC)"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
