"""Trends and differences that outliers do not decide. NaN in, and it is left out; never out."""

from math import erfc, sqrt
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def known(values: Array) -> Array:
    return values[~np.isnan(values)]


def middle(values: Array, default: float = 0.0) -> float:
    """The median of what is known."""
    values = known(values)
    return float(np.median(values)) if len(values) else default


def mean(values: Array, default: float = 0.0) -> float:
    values = known(values)
    return float(values.mean()) if len(values) else default


def share(flags: Array, of: Array) -> float:
    """Of the places where `of` is known, the share where `flags` is true."""
    there = ~np.isnan(of)
    return float(flags[there].mean()) if there.any() else 0.0


def blocks(values: Array, size: int, least: float = 0.5) -> Array:
    """Medians of each `size` neighbours, counted from the end; NaN where less than the share
    `least` of them is known."""
    num_blocks = len(values) // size
    if not num_blocks:
        return np.zeros(0)
    rows = values[len(values) - num_blocks * size :].reshape(num_blocks, size)
    rows = np.sort(rows, axis=1)  # what is not known comes last
    counts = (~np.isnan(rows)).sum(axis=1)
    places, last = np.arange(num_blocks), np.maximum(counts - 1, 0)
    medians = (rows[places, last // 2] + rows[places, (last + 1) // 2]) / 2
    return np.where(counts >= max(least * size, 1), medians, np.nan)


def mann_kendall(values: Array) -> float:
    """Kendall's S over its standard deviation, ties corrected: above 3, values rise one way
    by more than chance (Mann 1945; Kendall 1975). 0 for fewer than five."""
    values = known(values)
    number = len(values)
    if number < 5:
        return 0.0
    signs = np.sign(values[None, :] - values[:, None])
    statistic = float(np.triu(signs, 1).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (
        number * (number - 1) * (2 * number + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())
    ) / 18
    if variance <= 0:
        return 0.0
    return float(statistic - np.sign(statistic)) / sqrt(variance)


def theil_sen(values: Array) -> float:
    """The median slope between any two, per place (Theil 1950; Sen 1968)."""
    places = np.flatnonzero(~np.isnan(values))
    if len(places) < 2:
        return 0.0
    values = values[places]
    one, other = np.triu_indices(len(places), 1)
    return float(np.median((values[other] - values[one]) / (places[other] - places[one])))


def rank_test(one: Array, other: Array) -> float:
    """z of Mann and Whitney's U (1947), ties corrected: how much `other` is above `one`."""
    one, other = known(one), known(other)
    if len(one) < 3 or len(other) < 3:
        return 0.0
    together = np.concatenate([one, other])
    _, places, counts = np.unique(together, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[places]
    m, n = len(one), len(other)
    statistic = float(ranks[m:].sum()) - n * (n + 1) / 2
    ties = float((counts**3 - counts).sum()) / ((m + n) * (m + n - 1))
    variance = m * n / 12 * (m + n + 1 - ties)
    return (statistic - m * n / 2) / sqrt(variance) if variance > 0 else 0.0


def change_point(values: Array, level: float) -> int:
    """The place from which on values are above `level`: where their cumulative sum about it is
    least (CUSUM, Page 1954). NaN counts as the level; 0 of nothing."""
    deviations = np.where(np.isnan(values), 0.0, values - level)
    sums = np.concatenate([[0.0], np.cumsum(deviations)])
    return min(int(np.argmin(sums)), max(0, len(values) - 1))


def chance(z: float) -> float:
    """That something normal is above z."""
    return 0.5 * erfc(z / sqrt(2))
