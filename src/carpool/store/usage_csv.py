"""Sums of usage as CSV, for spreadsheets."""

import csv
import dataclasses
import io
from collections.abc import Iterable
from typing import Any

from carpool.store.usage_store import UsageTotal


def usage_csv(totals: Iterable[UsageTotal]) -> str:
    """A header and a line a total."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(UsageTotal))
    for total in totals:
        writer.writerow(map(_cell, dataclasses.astuple(total)))
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Model names come from clients: none may become a formula in somebody's spreadsheet."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@"))
    return f"'{value}" if is_formula else value
