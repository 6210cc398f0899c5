"""Metrics as docs/metrics.md has them, and as a server shows them, in one form."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


class Described(NamedTuple):
    kind: str
    labels: frozenset[str]


def documented(*, is_gateway: bool) -> Mapping[str, Described]:
    """The rows of the tables, by name."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOC.read_text().splitlines()
        if line.startswith("| `carpool_")
    ]
    assert all(len(row) == 4 and row[3] for row in cells)
    rows = {
        name.strip("`"): Described(kind, frozenset(labels.replace(",", " ").split()))
        for name, kind, labels, _ in cells
    }
    return {
        name: row for name, row in rows.items() if name.startswith("carpool_gateway_") is is_gateway
    }


def shown(text: str) -> Mapping[str, Described]:
    """What `/metrics` has, by name."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = Described(family.type, frozenset(labels))
    return found
