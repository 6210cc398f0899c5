"""Latencies as Prometheus wants them: counted in fixed buckets, without locks or label look-ups."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.core import HistogramMetricFamily


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """`counts[i]` observations were at most `bounds[i]` and over the bound before it;
    the last count is of those over every bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        """As one more series of `family`."""
        buckets, total = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(labels, buckets, sum_value=self.sum)


class Histogram:
    """Counts observations in fixed buckets. Written by one thread; reading needs no lock."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)
