"""Sums over what a rig has measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile, interpolated linearly between neighbours; None of nothing."""

    p50: float | None
    p99: float | None


def spread(values: Sequence[float]) -> Spread:
    """In the unit of `values`."""
    if not values:
        return Spread(None, None)
    p50, p99 = np.percentile(np.asarray(values, np.float64), (50, 99))
    return Spread(float(p50), float(p99))


def above(found: float | None, floor: float | None) -> float | None:
    """By how much `found` is more than `floor`; None if one of them is not known."""
    return None if found is None or floor is None else found - floor
