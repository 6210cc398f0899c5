"""A team's own usage in place of a preset: what its requests are like, from a CSV file or from
the rows of the ledger.

Either a row a request, with the ledger's columns (prompt_tokens, output_tokens; where they
are there, cached_tokens, and started_at, total_ms and person_id for the think time), or sums
as `carpool usage --csv` prints them, with num_requests.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from carpool.planning.errors import PlanError
from carpool.planning.profile import Profile

LONGEST_THINK_S = 1800.0
"""After a longer silence somebody was away, not thinking."""

Row = Mapping[str, Any]
"""Figures as numbers or as text."""
HOUR_S = 3600.0
HOURS_PER_MONTH = 730.0
SHORTEST_SPAN_S = 7 * 24 * HOUR_S
"""What is shorter than a week says nothing of a month."""


def profile_from_usage(path: Path, base: Profile) -> Profile:
    """`base` with what the file says; the rest stays, with its source. Raises `PlanError`."""
    return profile_from_rows(read_rows(path), str(path), path.stem, base)


def profile_from_rows(rows: Sequence[Row], where: str, name: str, base: Profile) -> Profile:
    """`base` with what the rows say; `where` they are from stands in errors and sources.
    Raises `PlanError`."""
    is_sums = "num_requests" in rows[0]
    counts = [_number(where, row, "num_requests") if is_sums else 1.0 for row in rows]
    total = sum(counts)
    if total <= 0:
        raise PlanError(f"{where}: no requests in it; give a longer time, or a --profile")
    prompts, outputs = _column(where, rows, "prompt_tokens"), _column(where, rows, "output_tokens")
    prompt, output = sum(prompts) / total, sum(outputs) / total
    cached = sum(_column(where, rows, "cached_tokens")) if "cached_tokens" in rows[0] else 0.0
    # A running sequence holds its prompt and, on average, half of its answer; those with long
    # answers run longer, so that they are weighed by what they write.
    context, spread = _held(prompts, outputs) if not is_sums else (prompt + output / 2, 0.0)
    changes: dict[str, float | int] = {
        "prompt_tokens": max(1, round(prompt)),
        "output_tokens": max(1, round(output)),
        "context_tokens": max(1, round(context)),
        "context_spread": spread,
        "cached_share": min(0.99, cached / sum(prompts)) if sum(prompts) else 0.0,
    }
    if (think := _think_seconds(where, rows)) is not None:
        changes["think_seconds"] = think
    sources = dict(base.sources) | dict.fromkeys(changes, f"measured: {where}")
    return replace(base, name=name, sources=tuple(sources.items()), **changes)  # type: ignore[arg-type]


def hours_per_month(rows: Sequence[Row], where: str) -> float | None:
    """Clock hours in which somebody was served, scaled to a month; None for sums, and for less
    than a week."""
    if not rows or not {"started_at", "total_ms"} <= rows[0].keys():
        return None
    starts = _column(where, rows, "started_at")
    ends = [start + ms / 1000 for start, ms in zip(starts, _column(where, rows, "total_ms"),
                                                   strict=True)]  # fmt: skip
    span = max(ends) - min(starts)
    if span < SHORTEST_SPAN_S:
        return None
    hours = {
        hour
        for start, end in zip(starts, ends, strict=True)
        for hour in range(int(start // HOUR_S), int(end // HOUR_S) + 1)
    }
    return min(HOURS_PER_MONTH, len(hours) * HOURS_PER_MONTH * HOUR_S / span)


def _held(prompts: Sequence[float], outputs: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of tokens that a running sequence holds."""
    held = [prompt + output / 2 for prompt, output in zip(prompts, outputs, strict=True)]
    weight = sum(outputs)
    if not weight:
        return fmean(held), pstdev(held)
    mean = sum(h * o for h, o in zip(held, outputs, strict=True)) / weight
    variance = sum(o * (h - mean) ** 2 for h, o in zip(held, outputs, strict=True)) / weight
    return mean, variance**0.5


def _think_seconds(where: str, rows: Sequence[Row]) -> float | None:
    """The median time between a person's answer and their next request."""
    if not {"started_at", "total_ms", "person_id"} <= rows[0].keys():
        return None
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        start = _number(where, row, "started_at")
        spans[row["person_id"]].append((start, start + _number(where, row, "total_ms") / 1000))
    gaps = []
    for own in spans.values():
        own.sort()
        for (_, end), (start, _) in pairwise(own):
            if 0 < start - end < LONGEST_THINK_S:
                gaps.append(start - end)
    return median(gaps) if gaps else None


def read_rows(path: Path) -> list[Row]:
    """Of a CSV file; at least one. Raises `PlanError`."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[Row] = list(csv.DictReader(file))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise PlanError(f"{path}: no CSV file ({error})") from None
    if not rows:
        raise PlanError(f"{path}: no requests in it; give a longer time, or a --profile")
    for name in ("prompt_tokens", "output_tokens"):
        if name not in rows[0]:
            raise PlanError(
                f"{path}: no column {name}; columns: {', '.join(map(str, rows[0]))}; give what "
                "carpool usage --csv prints, or a line a request"
            )
    return rows


def _column(where: str, rows: Sequence[Row], name: str) -> list[float]:
    return [_number(where, row, name) for row in rows]


def _number(where: str, row: Row, name: str) -> float:
    try:
        value = float(row[name] or 0)
    except (TypeError, ValueError):
        raise PlanError(f"{where}: {name} is {row[name]!r}; it must be a number") from None
    if not 0 <= value < float("inf"):
        raise PlanError(f"{where}: {name} is {row[name]!r}; it must not be below 0")
    return value
