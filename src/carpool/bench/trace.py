"""Recorded loads: when requests came, and how long they and their answers were.

Azure's LLM inference traces (CSV: TIMESTAMP, ContextTokens, GeneratedTokens) and Mooncake's
(JSON lines: timestamp in milliseconds, input_length, output_length, hash_ids of 512-token
blocks, which say what prompts have in common).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from carpool.bench.errors import BenchError
from carpool.bench.prompts import Shape
from carpool.bench.rows import Row, csv_rows, jsonl_rows

MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order they came; `timestamps` in seconds."""

    name: str
    timestamps: tuple[float, ...]
    shapes: tuple[Shape, ...]


def read_trace(path: Path, max_requests: int | None = None) -> Trace:
    """By the file's ending: .csv is Azure's form, .jsonl Mooncake's. Raises BenchError, which
    names the first row that is wrong."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".jsonl", ".ndjson"):
        raise BenchError(f"{path}: a trace is a .csv (Azure's form) or a .jsonl (Mooncake's)")
    entries = _azure(path) if suffix == ".csv" else _mooncake(path)
    timestamps: list[float] = []
    shapes: list[Shape] = []
    for row, timestamp, shape in entries:
        if timestamps and timestamp < timestamps[-1]:
            raise row.error("its timestamp is before that of the row above")
        timestamps.append(timestamp)
        shapes.append(shape)
        if max_requests is not None and len(shapes) == max_requests:
            break
    if not shapes:
        raise BenchError(f"{path}: no requests in it")
    return Trace(path.name, tuple(timestamps), tuple(shapes))


def _azure(path: Path) -> Iterator[tuple[Row, float, Shape]]:
    for row in csv_rows(path):
        context = row.count_of("ContextTokens", least=1)
        generated = row.count_of("GeneratedTokens")
        # An answer of no tokens cannot be asked for.
        yield row, _azure_time(row), Shape(context, max(1, generated))


def _azure_time(row: Row) -> float:
    """Like 2023-11-16 18:15:46.6805900: seven digits of a second, which is one too many for
    Python, with or without a time zone; or seconds."""
    text = str(row.fields.get("TIMESTAMP") or "").strip()
    if not text:
        raise row.error("field TIMESTAMP is missing")
    try:
        return float(text)
    except ValueError:
        pass
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        moment = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError:
        raise row.error(f"field TIMESTAMP is {text!r}; it must be a date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() + (float(f"0.{digits}") if dot and digits else 0.0)


def _mooncake(path: Path) -> Iterator[tuple[Row, float, Shape]]:
    for row in jsonl_rows(path):
        ids = row.fields.get("hash_ids", [])
        if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
            raise row.error("field hash_ids must be a list of whole numbers")
        shape = Shape(
            row.count_of("input_length", least=1),
            max(1, row.count_of("output_length")),
            tuple(ids),
        )
        yield row, row.number_of("timestamp") / 1000, shape
