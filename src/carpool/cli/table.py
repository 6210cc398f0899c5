"""A plain table on stdout: drawn to the terminal's width, in a pipe as wide as it takes."""

import sys
from collections.abc import Iterable, Sequence


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> None:
    """The last `numbers` columns are aligned right. Cells are text, never markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for index, column in enumerate(columns):
        is_number = index >= len(columns) - numbers
        table.add_column(column, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else 1000, highlight=False).print(table)
