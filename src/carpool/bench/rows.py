"""Rows of a file of prompts or of a trace, and complaints that name file, row and field."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carpool.bench.errors import BenchError

MAX_LINE_CHARS = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """`number` counts as an editor does: lines of a text file, from 1; entries of a JSON list."""

    path: Path
    number: int
    value: Any

    def error(self, complaint: str) -> BenchError:
        return BenchError(f"{self.path}, row {self.number}: {complaint}")

    @property
    def fields(self) -> Mapping[str, Any]:
        """Raises BenchError where the row is no object."""
        if not isinstance(self.value, dict):
            raise self.error(f"{_shown(self.value)} is no object with fields")
        return self.value

    def number_of(self, field: str, *, least: float = 0) -> float:
        """Raises BenchError for a field that is missing or no number of at least `least`."""
        if field not in self.fields:
            raise self.error(f"field {field} is missing")
        value = self.fields[field]
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not least <= number < math.inf:
            raise self.error(
                f"field {field} is {_shown(value)}; it must be a number from {least:g}"
            )
        return number

    def count_of(self, field: str, *, least: int = 0) -> int:
        """Raises BenchError for what is no whole number."""
        number = self.number_of(field, least=least)
        if number != int(number):
            raise self.error(f"field {field} is {_shown(self.fields[field])}; it must be whole")
        return int(number)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, by their number. Raises BenchError."""
    try:
        with path.open(encoding="utf-8-sig", newline=None) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\n")
    except OSError as error:
        raise BenchError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BenchError(f"{path}: no UTF-8 text: {error.reason} at byte {error.start}") from None


def jsonl_rows(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path):
        try:
            yield Row(path, number, json.loads(line))
        except ValueError as error:
            raise Row(path, number, None).error(f"no JSON: {error}") from None


def json_rows(path: Path) -> Iterator[Row]:
    """The entries of a JSON list."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BenchError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise BenchError(f"{path}: no JSON: {error}") from None
    if not isinstance(value, list):
        raise BenchError(f"{path}: a JSON list is needed, one entry a conversation")
    for number, entry in enumerate(value, 1):
        yield Row(path, number, entry)


def csv_rows(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for fields in reader:
                yield Row(path, reader.line_num, {k.strip(): v for k, v in fields.items() if k})
    except OSError as error:
        raise BenchError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BenchError(f"{path}: no CSV file: {error}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
