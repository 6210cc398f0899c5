"""Who asked how much, over time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from carpool.watch.chunk import CALLER_FIELDS, CallersChunk
from carpool.watch.span import Span

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class CallerSeries:
    """Sums of a key's requests at a model in each bucket: `requests`, `prompt_tokens`,
    `cached_tokens`, `output_tokens`, `service_s`, `kv_token_s`, `prompt_logs`; 0 where it did
    nothing, None where nothing was recorded. An empty `key_id` is all keys that were too many to
    tell apart."""

    key_id: str
    person_id: str
    model: str
    starts: list[float]
    columns: dict[str, list[float | None]]

    def total(self, name: str) -> float:
        return sum(value for value in self.columns[name] if value is not None)


def gather_callers(
    chunks: Iterable[tuple[str, int, CallersChunk]],
    recorded: Iterable[tuple[int, Array]],
    span: Span,
) -> list[CallerSeries]:
    """`chunks` by model and start; `recorded` are the starts and slots of all chunks."""
    sums: dict[tuple[str, str], Array] = {}
    people: dict[str, str] = {}
    for model, start, chunk in chunks:
        places, inside = span.places(start, chunk.slot)
        callers = chunk.caller[inside]
        values = np.stack([chunk.sums[name][inside].astype(float) for name in CALLER_FIELDS])
        for number in np.unique(callers).tolist():
            key_id = chunk.key_ids[number]
            people.setdefault(key_id, chunk.person_ids[number])
            own = sums.get((key_id, model))
            if own is None:
                own = sums[key_id, model] = np.zeros((len(CALLER_FIELDS), span.num_points))
            of_key = callers == number
            own[:, places[of_key]] += values[:, of_key]
    known = np.zeros(span.num_points, bool)
    for start, slots in recorded:
        known[span.places(start, slots)[0]] = True
    order = sorted(sums, key=lambda each: -float(sums[each][1].sum() + sums[each][3].sum()))
    starts = span.starts()
    return [
        CallerSeries(
            key_id,
            people[key_id],
            model,
            starts,
            _columns(sums[key_id, model], known),
        )
        for key_id, model in order
    ]


def _columns(sums: Array, known: Array) -> dict[str, list[float | None]]:
    flags: Sequence[bool] = known.tolist()
    return {
        name: [value if flag else None for value, flag in zip(row, flags, strict=True)]
        for name, row in zip(CALLER_FIELDS, sums.tolist(), strict=True)
    }
