"""Intervals and tests for counts of passes: small samples, exact where that is possible."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Z_95 = 1.959963984540054


class Interval(NamedTuple):
    low: float
    high: float


class Counts(NamedTuple):
    """Of one case: how many of how many repeats had something, before and after."""

    old: int
    num_old: int
    new: int
    num_new: int


def wilson(count: int, total: int, z: float = Z_95) -> Interval:
    """The score interval of a rate (Wilson, 1927). All there is, 0 to 1, of no repeats."""
    if total == 0:
        return Interval(0.0, 1.0)
    rate = count / total
    scale = 1 + z * z / total
    middle = (rate + z * z / (2 * total)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def newcombe(counts: Counts, z: float = Z_95) -> Interval:
    """The interval of new rate - old rate (Newcombe, 1998, method 10: two Wilson intervals)."""
    if not counts.num_old or not counts.num_new:
        return Interval(-1.0, 1.0)
    old, new = counts.old / counts.num_old, counts.new / counts.num_new
    of_old = wilson(counts.old, counts.num_old, z)
    of_new = wilson(counts.new, counts.num_new, z)
    return Interval(
        new - old - math.hypot(new - of_new.low, of_old.high - old),
        new - old + math.hypot(of_new.high - new, old - of_old.low),
    )


class ExactTest(NamedTuple):
    """`p` of what was seen; `least_p` is the smallest that the totals leave room for."""

    p: float
    least_p: float


def more_than_before(cases: Iterable[Counts]) -> ExactTest:
    """How probable so many in the new runs, or more, would be if old and new were the same.

    Exact, conditional on each case's total: new counts are then hypergeometric, and their sum
    is a convolution of those (the exact form of the Mantel-Haenszel test). Of one repeat a
    case it is McNemar's exact test, of one case Fisher's; one-sided, all three. Cases where
    all repeats agree say nothing, whatever they agree on.
    """
    distribution, observed = [1.0], 0
    for case in cases:
        total, num = case.old + case.new, case.num_old + case.num_new
        if not case.num_old or not case.num_new or total in (0, num):
            continue
        least, weights = _hypergeometric(total, case.num_new, num)
        distribution = _convolved(distribution, weights)
        observed += case.new - least
    return ExactTest(min(1.0, math.fsum(distribution[observed:])), distribution[-1])


def sign_p(num_up: int, num_down: int) -> float:
    """The two-sided sign test: how often as many of `num_up` + `num_down` fair coins or more
    fall to one side."""
    total = num_up + num_down
    tail = sum(math.comb(total, k) for k in range(max(num_up, num_down), total + 1))
    return min(1.0, 2 * tail / (1 << total))


def significant(tests: Sequence[ExactTest], alpha: float) -> list[bool]:
    """Which are significant at the family-wise rate `alpha`, in their order: step by step as
    Holm (1979), each over those left that could come out so at all (Tarone, 1990)."""
    left = set(range(len(tests)))
    while left:
        factor = 1
        while sum(tests[index].least_p <= alpha / factor for index in left) > factor:
            factor += 1
        best = min(left, key=lambda index: tests[index].p)
        if tests[best].p > alpha / factor:
            break
        left.remove(best)
    return [index not in left for index in range(len(tests))]


def median(values: Sequence[float]) -> float | None:
    ordered: list[float] = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _hypergeometric(marked: int, drawn: int, num: int) -> tuple[int, list[float]]:
    """The least number of marked among those drawn, and the probabilities from there on."""
    least, most = max(0, drawn - (num - marked)), min(marked, drawn)
    ways = [
        math.comb(marked, k) * math.comb(num - marked, drawn - k) for k in range(least, most + 1)
    ]
    all_ways = math.comb(num, drawn)
    return least, [way / all_ways for way in ways]


def _convolved(left: list[float], right: list[float]) -> list[float]:
    result = [0.0] * (len(left) + len(right) - 1)
    for index, weight in enumerate(left):
        for offset, other in enumerate(right):
            result[index + offset] += weight * other
    return result
