"""Chunks of several models and processes, laid over each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from carpool.watch.chunk import FiguresChunk
from carpool.watch.series_names import (
    COUNTERS,
    OUTCOME,
    SHARED_GAUGES,
    SHARES,
    SKETCHES,
)
from carpool.watch.sketch import PER_LOG, RELATIVE_ERROR, ZERO
from carpool.watch.span import Span

Array = np.ndarray[Any, np.dtype[Any]]
Column = list[float | None]
Chunks = Sequence[tuple[int, FiguresChunk]]
"""With the unix seconds at which they start."""


class Gathered:
    """The chunks of each model. Columns have None where nothing is known, never NaN."""

    def __init__(self, span: Span, models: Sequence[Chunks]) -> None:
        self._span = span
        self._models = models
        self._recorded = np.zeros(span.num_points, bool)
        for chunks in models:
            for start, chunk in chunks:
                places, _ = span.places(start, chunk.slots)
                self._recorded[places] = True
        self._sketches: dict[str, _Sketches] = {}

    def columns(self, names: Sequence[str]) -> dict[str, Column]:
        return {name: self._column(name) for name in names}

    def _column(self, name: str) -> Column:
        figure, _, part = name.partition(".")
        if name.startswith(OUTCOME):
            return self._counter(name)
        if name in COUNTERS:
            return self._counter(COUNTERS[name])
        if name == "tokens_per_second":
            sums = self._sum("output_tokens")
            return _listed(sums / self._span.seconds, self._recorded)
        if name == "prefix_hit_rate":
            prompt = self._sum("prompt_tokens")
            return _listed(self._sum("cached_tokens") / np.maximum(prompt, 1), prompt > 0)
        if figure in SKETCHES:
            return self._sketch(figure, part)
        return self._gauge(figure, part)

    def _sum(self, name: str) -> Array:
        sums = np.zeros(self._span.num_points)
        for chunks in self._models:
            for start, chunk in chunks:
                if (values := chunk.counters.get(name)) is not None:
                    places, inside = self._span.places(start, chunk.slots)
                    sums[places] += values[inside]
        return sums

    def _counter(self, name: str) -> Column:
        return _listed(self._sum(name), self._recorded)

    def _gauge(self, name: str, part: str) -> Column:
        values = np.zeros(self._span.num_points)
        known = np.zeros(self._span.num_points, bool)
        join = np.maximum if name in SHARED_GAUGES else np.add
        for chunks in self._models:
            own, has = self._gauge_of_model(chunks, name, part)
            values = np.where(has, np.where(known, join(values, own), own), values)
            known |= has
        return _listed(values, known)

    def _gauge_of_model(self, chunks: Chunks, name: str, part: str) -> tuple[Array, Array]:
        num_points = self._span.num_points
        sums, counts, most = np.zeros(num_points), np.zeros(num_points), np.zeros(num_points)
        for start, chunk in chunks:
            if (gauge := chunk.gauges.get(name)) is not None:
                places, inside = self._span.places(start, chunk.slots)
                sums[places] += gauge[0][inside]
                counts[places] += gauge[1][inside]
                most[places] = np.maximum(most[places], gauge[2][inside])
        has = counts > 0
        return (most if part == "max" else sums / np.maximum(counts, 1)), has

    def _sketch(self, name: str, part: str) -> Column:
        if name not in self._sketches:
            self._sketches[name] = _Sketches(self._span, self._models, name)
        sketches = self._sketches[name]
        if part == "count":
            return _listed(sketches.counts, self._recorded)
        values = sketches.means() if part == "mean" else sketches.quantiles(SHARES[part])
        return _listed(values, sketches.counts > 0)


class _Sketches:
    """One figure's sketches of all places: entries in the order of place and bin."""

    def __init__(self, span: Span, models: Sequence[Chunks], name: str) -> None:
        found = [
            (*span.places(start, sketch[0]), sketch)
            for chunks in models
            for start, chunk in chunks
            if (sketch := chunk.sketches.get(name)) is not None
        ]
        empty = np.zeros(0, np.int64)
        places = np.concatenate([empty, *(places for places, _, _ in found)])
        bins = np.concatenate([empty, *(sketch[1][inside] for _, inside, sketch in found)])
        counts = np.concatenate([empty, *(sketch[2][inside] for _, inside, sketch in found)])
        order = np.lexsort((bins, places))
        self._places, self._n = places[order], counts[order].astype(float)
        bins = bins[order].astype(float)
        self._values = np.where(bins <= ZERO, 0.0, np.exp(bins / PER_LOG) * (1 - RELATIVE_ERROR))
        self.counts = np.bincount(self._places, self._n, span.num_points)

    def means(self) -> Array:
        sums = np.bincount(self._places, self._n * self._values, len(self.counts))
        return sums / np.maximum(self.counts, 1)

    def quantiles(self, share: float) -> Array:
        if not len(self._n):
            return np.zeros(len(self.counts))
        seen = np.cumsum(self._n)
        before = np.cumsum(self.counts) - self.counts
        ranks = before + share * np.maximum(self.counts - 1, 0)
        places = np.searchsorted(seen, ranks, side="right")
        return self._values[np.minimum(places, len(self._values) - 1)]


def _listed(values: Array, known: Array) -> Column:
    return [
        value if is_known else None
        for value, is_known in zip(values.tolist(), known.tolist(), strict=True)
    ]
