"""Who asked how much, over time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from carpool.watch.chunk import CALLER_FIELDS, CallersChunk
from carpool.watch.span import Span

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class CallerSeries:
    """Sums of a key's requests at a model, by `CALLER_FIELDS` and bucket: `requests`,
    `prompt_tokens`, `cached_tokens`, `output_tokens`, `service_s`, `kv_token_s`, `prompt_logs`.
    `known` are the buckets in which anything was recorded. An empty `key_id` is all keys that
    were too many to tell apart."""

    key_id: str
    person_id: str
    model: str
    starts: list[float]
    sums: Array
    known: Array

    @property
    def columns(self) -> dict[str, list[float | None]]:
        """By name; 0 where the key did nothing, None where nothing was recorded."""
        flags: list[bool] = self.known.tolist()
        return {
            name: [value if flag else None for value, flag in zip(row, flags, strict=True)]
            for name, row in zip(CALLER_FIELDS, self.sums.tolist(), strict=True)
        }

    def total(self, name: str) -> float:
        return float(self.sums[CALLER_FIELDS.index(name)].sum())


def gather_callers(
    chunks: Iterable[tuple[str, int, CallersChunk]],
    recorded: Iterable[tuple[int, Array]],
    span: Span,
) -> list[CallerSeries]:
    """`chunks` by model and start; `recorded` are the starts and slots of all chunks."""
    numbers: dict[tuple[str, str], int] = {}
    people: list[str] = []
    cells: list[Array] = [np.zeros(0, np.int64)]
    values: list[Array] = [np.zeros((len(CALLER_FIELDS), 0))]
    for model, start, chunk in chunks:
        of_chunk = []
        for key_id, person_id in zip(chunk.key_ids, chunk.person_ids, strict=True):
            number = numbers.setdefault((key_id, model), len(numbers))
            if number == len(people):
                people.append(person_id)
            of_chunk.append(number)
        places, inside = span.places(start, chunk.slot)
        cells.append(np.array(of_chunk, np.int64)[chunk.caller[inside]] * span.num_points + places)
        values.append(np.stack([chunk.sums[name][inside].astype(float) for name in CALLER_FIELDS]))
    size = (len(numbers), span.num_points)
    cell, value = np.concatenate(cells), np.concatenate(values, axis=1)
    sums = np.stack([np.bincount(cell, row, size[0] * size[1]).reshape(size) for row in value])
    known = np.zeros(span.num_points, bool)
    for start, slots in recorded:
        known[span.places(start, slots)[0]] = True
    tokens = (sums[1] + sums[3]).sum(axis=1)
    starts = span.starts()
    found = sorted(numbers.items(), key=lambda each: -float(tokens[each[1]]))
    return [
        CallerSeries(key_id, people[number], model, starts, sums[:, number], known)
        for (key_id, model), number in found
        if sums[0, number].any()
    ]
