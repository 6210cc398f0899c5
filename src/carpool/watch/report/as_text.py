"""A report as plain text, for a terminal or a mail."""

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from carpool.watch.notice import plain
from carpool.watch.report.report import Report
from carpool.watch.report.words import (
    HOUR_COLUMNS,
    USE_COLUMNS,
    advice_head,
    heading,
    hour_cells,
    key_figures,
    notes,
    number,
    shown_hours,
    use_cells,
    without_advice,
)

BAR = 20
MAX_NAME = 24
MAX_PEOPLE = 30


def as_text(report: Report) -> str:
    lines = [heading(report), ""]
    lines += [f"  {label:<20} {value}" for label, value in key_figures(report)]
    for title, rows in (
        ("What to do", _advice(report)),
        ("When", _hours(report)),
        ("Who", _people(report)),
        ("Models", _models(report)),
        ("How requests ended", _outcomes(report)),
    ):
        lines += ["", title, *(f"  {row}" for row in rows)]
    lines += ["", *notes(report)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _advice(report: Report) -> Iterator[str]:
    if not report.advice:
        yield without_advice(report)
    for advice in report.advice:
        yield f"[{advice.signal.severity.value}] {advice_head(report, advice)}"
        yield f"    {plain(advice.signal.sentence)}"
        yield from (f"    - {plain(remedy.sentence)}" for remedy in advice.signal.remedies)


def _hours(report: Report) -> Iterator[str]:
    """With a bar for its requests."""
    most = max((hour.requests for hour in report.hours), default=0)
    rows = [
        (*hour_cells(report, hour), "#" * round(BAR * hour.requests / most) if most else "")
        for hour in shown_hours(report)
    ]
    return _table((*HOUR_COLUMNS, ""), rows, 4)


def _people(report: Report) -> Iterator[str]:
    rows = [use_cells(person) for person in report.people[:MAX_PEOPLE]]
    yield from _table(("who", *USE_COLUMNS), rows, 5)
    if len(report.people) > MAX_PEOPLE:
        yield f"and {len(report.people) - MAX_PEOPLE} more"


def _models(report: Report) -> Iterator[str]:
    rows = [use_cells(model) for model in report.models[:MAX_PEOPLE]]
    return _table(("model", *USE_COLUMNS), rows, 5)


def _outcomes(report: Report) -> Iterator[str]:
    rows = [(plain(name), number(count)) for name, count in report.outcomes.items()]
    return _table(("outcome", "requests"), rows, 1)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> Iterator[str]:
    """The first is on the left, the `numbers` after it on the right."""
    rows = [[_cut(cell) for cell in row] for row in rows]
    if not rows:
        yield "none"
        return
    every = [list(columns), *rows]
    widths = [max(cell_len(row[n]) for row in every) for n in range(len(columns))]
    for row in every:
        cells = [
            " " * (width - cell_len(cell)) + cell
            if 1 <= n <= numbers
            else set_cell_size(cell, width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells)


def _cut(cell: str) -> str:
    return cell if cell_len(cell) <= MAX_NAME else set_cell_size(cell, MAX_NAME - 3) + "..."
