"""Neighbouring points of a model, packed: column by column, in the smallest types, deflated.

A packed chunk is the deflated form of a line of JSON, which names the columns and their types
(those of `struct`, little-endian), and of the columns one after the other. Figures and callers
are packed apart, as who reads the one seldom wants the other.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from carpool.watch.point import CallerSums, Point

_INTEGERS = (("B", 2**8), ("H", 2**16), ("I", 2**32), ("Q", 2**64))
CALLER_FIELDS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "service_s",
    "kv_token_s",
    "prompt_logs",
)

Array = np.ndarray[Any, np.dtype[Any]]


class ChunkError(ValueError):
    """Bytes that are no packed chunk."""


@dataclass(frozen=True, slots=True)
class FiguresChunk:
    """`slots` are the places in the chunk that have a point. Counters and gauges (sum, count,
    maximum) have a value for each of them; sketches are entries of (slot, bin, count)."""

    slots: Array
    counters: Mapping[str, Array] = field(default_factory=dict)
    gauges: Mapping[str, tuple[Array, Array, Array]] = field(default_factory=dict)
    sketches: Mapping[str, tuple[Array, Array, Array]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallersChunk:
    """Entries: `slot[i]` is the place, `caller[i]` the index into `key_ids` and `person_ids`."""

    slots: Array
    key_ids: Sequence[str]
    person_ids: Sequence[str]
    slot: Array
    caller: Array
    sums: Mapping[str, Array]


def pack_figures(points: Mapping[int, Point]) -> bytes:
    """Of points by their slot."""
    slots = sorted(points)
    columns = _Columns()
    columns.add("slots", slots)
    for name in _names(points[slot].counters for slot in slots):
        columns.add(f"c {name}", [points[slot].counters.get(name, 0) for slot in slots])
    for name in _names(points[slot].gauges for slot in slots):
        gauges = [points[slot].gauges.get(name) for slot in slots]
        for part in ("sum", "count", "max"):
            columns.add(f"g {part} {name}", [getattr(g, part) if g else 0 for g in gauges])
    for name in _names(points[slot].sketches for slot in slots):
        entries = [
            (slot, bin, count)
            for slot in slots
            for bin, count in sorted(points[slot].sketches.get(name, {}).items())
        ]
        for part, values in zip(("slot", "bin", "n"), zip(*entries, strict=True), strict=True):
            columns.add(f"s {part} {name}", values)
    return columns.packed({})


def pack_callers(points: Mapping[int, Point]) -> bytes:
    people: dict[str, str] = {}
    entries: list[tuple[int, str, CallerSums]] = []
    for slot in sorted(points):
        for key_id, sums in points[slot].callers.items():
            people.setdefault(key_id, sums.person_id)
            entries.append((slot, key_id, sums))
    index = {key_id: number for number, key_id in enumerate(people)}
    columns = _Columns()
    columns.add("slots", sorted(points))
    columns.add("slot", [slot for slot, _, _ in entries])
    columns.add("caller", [index[key_id] for _, key_id, _ in entries])
    for name in CALLER_FIELDS:
        columns.add(name, [getattr(sums, name) for _, _, sums in entries])
    return columns.packed({"keys": list(people), "people": list(people.values())})


def unpack_figures(packed: bytes) -> FiguresChunk:
    """Raises ChunkError."""
    columns, _ = _unpack(packed)
    counters: dict[str, Array] = {}
    parts: dict[str, dict[str, dict[str, Array]]] = {"g": {}, "s": {}}
    for title, values in columns.items():
        kind, _, name = title.partition(" ")
        if kind == "c":
            counters[name] = values
        elif kind in parts:
            part, _, name = name.partition(" ")
            parts[kind].setdefault(name, {})[part] = values
    try:
        return FiguresChunk(
            columns["slots"],
            counters,
            {name: (g["sum"], g["count"], g["max"]) for name, g in parts["g"].items()},
            {name: (s["slot"], s["bin"], s["n"]) for name, s in parts["s"].items()},
        )
    except KeyError as error:
        raise ChunkError(f"no column {error}") from None


def unpack_callers(packed: bytes) -> CallersChunk:
    """Raises ChunkError."""
    columns, more = _unpack(packed)
    try:
        sums = {name: columns[name] for name in CALLER_FIELDS}
        return CallersChunk(
            columns["slots"], more["keys"], more["people"], columns["slot"], columns["caller"], sums
        )
    except KeyError as error:
        raise ChunkError(f"no column {error}") from None


class _Columns:
    def __init__(self) -> None:
        self._titles: list[tuple[str, str, int]] = []
        self._bytes: list[bytes] = []

    def add(self, title: str, values: Sequence[float]) -> None:
        if all(float(value).is_integer() for value in values):
            whole = [int(value) for value in values]
            values, code = whole, _integer_type(whole)
        else:
            code = "f"
        self._titles.append((title, code, len(values)))
        self._bytes.append(struct.pack(f"<{len(values)}{code}", *values))

    def packed(self, more: Mapping[str, Any]) -> bytes:
        header = json.dumps({"columns": self._titles, **more}, separators=(",", ":"))
        return zlib.compress(b"".join((header.encode(), b"\n", *self._bytes)), 6)


def _integer_type(values: Sequence[int]) -> str:
    """The smallest that holds them."""
    least, most = min(values, default=0), max(values, default=0)
    if least >= 0:
        return next((code for code, limit in _INTEGERS if most < limit), "d")
    return "h" if least >= -(2**15) and most < 2**15 else "d"


def _names(of_points: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({name for names in of_points for name in names})


def _unpack(packed: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    try:
        header, _, body = zlib.decompress(packed).partition(b"\n")
        more = json.loads(header)
        columns: dict[str, Array] = {}
        offset = 0
        for title, code, length in more.pop("columns"):
            columns[title] = np.frombuffer(body, np.dtype(f"<{code}"), length, offset)
            offset += columns[title].nbytes
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise ChunkError(str(error)) from None
    return columns, more
