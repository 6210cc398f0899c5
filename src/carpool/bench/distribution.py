"""Percentiles of a sample, with what is known about them. Pure.

A percentile of few samples is a guess: its confidence interval comes from order statistics.
The number of samples below the true q-quantile is binomial(n, q), whatever the distribution,
so the k-th smallest bounds the quantile from below with probability P(binomial(n, q) >= k)
(David and Nagaraja, Order Statistics, 3rd ed., section 7.1). No samples, no interval.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any


@dataclass(frozen=True, slots=True)
class Quantile:
    """`value` is None of no samples, and infinite where so many requests never got there.

    `low` and `high` are the ends of the confidence interval; None: the samples are too few to
    tell. `is_resolved`: both ends are known.
    """

    value: float | None
    low: float | None
    high: float | None

    @property
    def is_resolved(self) -> bool:
        return self.low is not None and self.high is not None

    def as_dict(self) -> dict[str, Any]:
        """JSON knows no infinity: "never" in its place."""
        return {
            "value": _in_json(self.value),
            "low": _in_json(self.low),
            "high": _in_json(self.high),
            "is_resolved": self.is_resolved,
        }


class Distribution:
    """A sample, sorted. `num_missing` requests failed before they had a figure; they count as
    infinite, so that a server cannot better its percentiles by failing."""

    __slots__ = ("num_missing", "values")

    def __init__(self, values: Iterable[float], num_missing: int = 0) -> None:
        self.values: Sequence[float] = sorted(values)
        self.num_missing = num_missing

    def __len__(self) -> int:
        return self.count

    @property
    def count(self) -> int:
        """Samples, missing ones included."""
        return len(self.values) + self.num_missing

    @property
    def mean(self) -> float | None:
        """Of those that have the figure."""
        return math.fsum(self.values) / len(self.values) if self.values else None

    @property
    def min(self) -> float | None:
        return self.values[0] if self.values else None

    @property
    def max(self) -> float | None:
        return self.values[-1] if self.values else None

    @property
    def p50(self) -> Quantile:
        return self.quantile(0.5)

    @property
    def p90(self) -> Quantile:
        return self.quantile(0.9)

    @property
    def p95(self) -> Quantile:
        return self.quantile(0.95)

    @property
    def p99(self) -> Quantile:
        return self.quantile(0.99)

    def quantile(self, q: float, confidence: float = 0.95) -> Quantile:
        """The value, interpolated linearly between neighbours, and its two-sided interval."""
        if not self.count:
            return Quantile(None, None, None)
        low, high = interval_ranks(self.count, q, confidence)
        return Quantile(
            self._interpolated(q),
            None if low is None else self._at(low),
            None if high is None else self._at(high),
        )

    def as_dict(self) -> dict[str, Any]:
        quantiles = {name: getattr(self, name).as_dict() for name in ("p50", "p90", "p95", "p99")}
        return {
            "count": self.count,
            "num_missing": self.num_missing,
            "mean": self.mean,
            "min": self.min,
            "max": self.max,
            **quantiles,
        }

    def _at(self, index: int) -> float:
        return self.values[index] if index < len(self.values) else math.inf

    def _interpolated(self, q: float) -> float:
        position = q * (self.count - 1)
        below = math.floor(position)
        low, share = self._at(below), position - below
        if share == 0:
            return low
        high = self._at(below + 1)
        return high if math.isinf(high) else low + share * (high - low)


def interval_ranks(n: int, q: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """Indices (from 0) of the samples among `n` sorted ones that bound the q-quantile, each
    side wrong with a probability of at most (1 - confidence) / 2; None: no sample does."""
    tail = (1 - confidence) / 2
    first, cumulative = _binomial_cdf(n, q)

    def cdf(k: int) -> float:
        """P(binomial(n, q) <= k)"""
        return cumulative[k - first]

    # The sample at index k is above the quantile when at most k samples are below that, and
    # below it when k + 1 are.
    window = range(first, min(n, first + len(cumulative)))
    low = next((k for k in reversed(window) if cdf(k) <= tail), None)
    high = next((k for k in window if 1 - cdf(k) <= tail), None)
    return low, high


def _binomial_cdf(n: int, q: float) -> tuple[int, list[float]]:
    """A first k and P(binomial(n, q) <= k) from it on, for all k within 8 standard deviations:
    what is outside of them is less than a float's last digit."""
    reach = 8 * math.sqrt(n * q * (1 - q)) + 8
    first, last = max(0, math.floor(n * q - reach)), min(n, math.ceil(n * q + reach))
    logs = (
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(q)
        + (n - k) * math.log1p(-q)
        for k in range(first, last + 1)
    )
    return first, list(accumulate(math.exp(log) for log in logs))


def _in_json(value: float | None) -> float | str | None:
    return "never" if value is not None and math.isinf(value) else value
