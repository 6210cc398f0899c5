"""Quantiles that can be added up: a histogram with logarithmic bins.

Masson, Rim and Lee, "DDSketch", VLDB 2019: with bins (g^(i-1), g^i] and g = (1 + e) / (1 - e),
every quantile is known to a relative error of e, and two sketches are merged by adding counts.
A sketch is a plain dictionary from bin to count, so that what counts requests can be quick.
"""

from collections.abc import Mapping, MutableMapping
from math import ceil, exp, log

RELATIVE_ERROR = 0.02
LEAST, MOST = 1e-6, 1e12
"""What is not above `LEAST` counts as nought; what is above `MOST` counts as that."""

LOG_G = log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
PER_LOG = 1 / LOG_G
ZERO = ceil(log(LEAST) * PER_LOG)

Sketch = dict[int, int]


def bin_of(value: float) -> int:
    """NaN counts as nought: no sketch can hold it."""
    if not value > LEAST:
        return ZERO
    return ceil(log(value if value < MOST else MOST) * PER_LOG)


def value_of(bin: int) -> float:
    """In the middle of the bin, as far as relative errors go."""
    if bin <= ZERO:
        return 0.0
    return exp(bin * LOG_G) * (1 - RELATIVE_ERROR)


def observe(sketch: Sketch, value: float, count: int = 1) -> None:
    bin = bin_of(value)
    sketch[bin] = sketch.get(bin, 0) + count


def merge(sketch: MutableMapping[int, int], other: Mapping[int, int]) -> None:
    for bin, count in other.items():
        sketch[bin] = sketch.get(bin, 0) + count


def quantile(sketch: Mapping[int, int], share: float) -> float | None:
    """The value that `share` (0 to 1) of what was observed does not exceed; None of nothing."""
    total = sum(sketch.values())
    if not total:
        return None
    rank, seen = share * (total - 1), 0
    for bin in sorted(sketch):
        seen += sketch[bin]
        if seen > rank:
            return value_of(bin)
    return value_of(max(sketch))
