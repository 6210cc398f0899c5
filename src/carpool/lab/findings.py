"""What an experiment found: figures for programs, a table and charts for people."""

from dataclasses import dataclass
from typing import Any

NO_DIFFERENCE = 0.05
"""Ratios closer to 1 than this are within what two runs of the same thing differ by."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column says what was tried."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One bar per label and series. `unit` names the axis, `number_format` writes the values;
    the axis ends at `limit` where there is one."""

    title: str
    unit: str
    labels: tuple[str, ...]
    series: dict[str, tuple[float, ...]]
    number_format: str = "{:,.1f}"
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """`name` is the key in JSON, `figures` one object per row of the table, `sentence` what
    they mean on this machine."""

    name: str
    figures: tuple[dict[str, Any], ...]
    table: Table
    charts: tuple[Chart, ...]
    sentence: str


def times(new: float, old: float, what: str) -> str:
    """`new` measured by `old`, where more is better: "2.4 times WHAT"."""
    ratio = new / old
    if abs(ratio - 1) < NO_DIFFERENCE:
        return f"about {what}"
    if ratio < 1:
        return f"only {ratio:.2f} times {what}"
    return f"{ratio:.1f} times {what}"
