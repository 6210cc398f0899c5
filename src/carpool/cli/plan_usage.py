"""Who uses a model, and how: a preset, a team's own requests, or single figures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from carpool.planning.figure import Known
    from carpool.planning.profile import Profile
    from carpool.planning.usage_log import Row

_HOURS = 160.0
"""Of a month, if nobody says: a team's working hours."""
_LEDGER_S = 30 * 86_400.0


class UsageLog(NamedTuple):
    """A team's own requests: what they are called, where they are from, and the rows."""

    name: str
    where: str
    rows: "Sequence[Row]"


def read_usage_log(
    path: Path | None, from_ledger: bool, since: float | None, database: str | None
) -> UsageLog | None:
    """Raises `PlanError` for two sources, and for one without requests."""
    from carpool.planning.errors import PlanError
    from carpool.planning.usage_log import read_rows

    if path is not None and from_ledger:
        raise PlanError("--usage and --from-ledger exclude each other; give one of them")
    if path is not None:
        return UsageLog(path.stem, str(path), read_rows(path))
    if not from_ledger:
        return None
    import time
    from contextlib import closing

    from carpool.store.database import open_database
    from carpool.store.usage_log import usage_log

    with closing(open_database(database)) as opened:
        rows = usage_log(opened, time.time() - _LEDGER_S if since is None else since)
    if not rows:
        raise PlanError("the ledger has no requests since then; give a longer --since")
    return UsageLog("ledger", f"the ledger, {len(rows):,} requests", rows)


def hours_of_use(given: float | None, log: UsageLog | None) -> "tuple[float, Known | None]":
    """Of a month, and how they are known."""
    from carpool.planning.figure import Known
    from carpool.planning.usage_log import hours_per_month

    if given is not None:
        return given, None
    recorded = None if log is None else hours_per_month(log.rows, log.where)
    return (_HOURS, Known.ASSUMED) if recorded is None else (recorded, Known.MEASURED)


def find_people(
    name: str,
    log: UsageLog | None,
    context: str | None,
    context_spread: int | None,
    think: float | None,
    prompt: int | None,
    output: int | None,
) -> "Profile":
    """A preset, what a log says instead of it, and what options say instead of both."""
    from carpool.planning.profile import find_profile
    from carpool.planning.usage_log import profile_from_rows

    own = {
        "context_tokens": None if context is None else parse_tokens("--context", context),
        "context_spread": None if context_spread is None else float(context_spread),
        "think_seconds": think,
        "prompt_tokens": prompt,
        "output_tokens": output,
    }
    given = {field: value for field, value in own.items() if value is not None}
    profile = find_profile(name)
    if log is not None:
        profile = profile_from_rows(log.rows, log.where, log.name, profile)
    sources = dict(profile.sources) | dict.fromkeys(given, "given on the command line")
    return replace(profile, **given, sources=tuple(sources.items()))  # type: ignore[arg-type]


def parse_tokens(option: str, text: str) -> int:
    """4000, or 16k for 16,000, or 16Ki for 16,384."""
    from carpool.planning.errors import PlanError

    digits, factor = text.strip().lower(), 1
    for unit, size in (("ki", 1024), ("k", 1000)):
        if digits.endswith(unit):
            digits, factor = digits.removesuffix(unit), size
            break
    if not digits.isdecimal() or int(digits) == 0:
        raise PlanError(f"{option} is {text!r}; write a number of tokens like 4000, 16k or 16Ki")
    return int(digits) * factor
