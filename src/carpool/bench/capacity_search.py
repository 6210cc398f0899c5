"""Which level to drive next, to find the concurrency at which the p99 TTFT gets too long.

First the planned concurrency, then twice that; then further up until one fails, and probes on
either side of where the p99 seems to cross the tolerance, until both sides are known and
close. A state machine without a clock: levels out, times to first token in. That TTFT grows
with concurrency is assumed; where the samples contradict it, levels are repeated, and if they
still do, what counts is the lowest level that fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf, isfinite, sqrt

from carpool.bench.tail import TAIL, quantile, sure_above, sure_below

NEAR = 0.4
"""Levels within this share of the crossing say where it is."""
MOST_LEVELS = 40
"""No search that works needs half of it."""


class Verdict(StrEnum):
    """Of a level: whether its p99 is within the tolerance, as far as its sample can tell."""

    HOLDS = "holds"
    FAILS = "fails"
    UNSURE = "unsure"


class Outcome(StrEnum):
    RESOLVED = "resolved"
    """A level that holds and one that fails are known, as close as was asked for."""
    UNRESOLVED = "unresolved"
    """The search ended before that: by its budget, or samples that decide nothing."""
    AT_LEAST = "at least"
    """The highest level that may be tried still holds."""
    TOO_SLOW = "too slow"
    """One request alone takes longer than the tolerance."""


@dataclass(frozen=True, slots=True)
class SearchConfig:
    """`confidence` is how sure a verdict must be (0.5 to 1); `precision` how far apart, as a
    share, the level that holds and the one that fails may lie. A level that decides nothing
    is driven `max_repeats` times more, its samples taken together. `hint` is where the capacity
    was the last time."""

    planned: int
    tolerance_s: float
    confidence: float = 0.8
    precision: float = 0.1
    max_concurrency: int = 4096
    max_repeats: int = 1
    hint: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.planned <= self.max_concurrency:
            raise ValueError(
                f"planned is {self.planned}, but must be from 1 to {self.max_concurrency}"
            )
        if not self.tolerance_s > 0:
            raise ValueError(f"tolerance_s is {self.tolerance_s:g}, but must be above 0")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence:g}, but must be in [0.5, 1)")
        if not 0 < self.precision <= 1:
            raise ValueError(f"precision is {self.precision:g}, but must be in (0, 1]")


@dataclass(frozen=True, slots=True)
class FoundCapacity:
    """`max_num_seqs`: the concurrency up to which the p99 TTFT is within the tolerance, by the
    samples of all levels (0: none). `low` is the highest level that surely holds (0: none) and
    `high` the lowest that surely fails (None: none); `confidence` is the lesser of those two.
    `is_monotone`: no higher level held where a lower one failed."""

    outcome: Outcome
    max_num_seqs: int
    crossing: float | None
    low: int
    high: int | None
    confidence: float
    is_monotone: bool


class CapacitySearch:
    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self._samples: dict[int, list[float]] = {}
        self._num_runs: dict[int, int] = {}
        self._ratios: list[float] = []

    def next_level(self) -> int | None:
        """None when there is nothing left to find out."""
        first = self.config.planned
        for level in (first, min(2 * first, self.config.max_concurrency)):
            if level not in self._num_runs:
                return level
        if sum(self._num_runs.values()) >= MOST_LEVELS:
            return None
        return self._to_repeat() or self._next_probe()

    def observe(self, concurrency: int, ttft_s: Sequence[float]) -> Verdict:
        """What a level's requests took; infinite for one that failed. A level that was
        driven before is judged by all its samples."""
        self._samples.setdefault(concurrency, []).extend(ttft_s)
        self._samples[concurrency].sort()
        self._num_runs[concurrency] = self._num_runs.get(concurrency, 0) + 1
        low, high = self._bracket()
        self._ratios.append((high or inf) / max(1, low))
        return self.verdict(concurrency)

    def verdict(self, concurrency: int) -> Verdict:
        num, over = self._counts(concurrency)
        if sure_below(num, over) >= self.config.confidence:
            return Verdict.HOLDS
        if sure_above(num, over) >= self.config.confidence:
            return Verdict.FAILS
        return Verdict.UNSURE

    def p99(self, concurrency: int) -> float:
        """Of the level's samples, seconds; infinite where there are none."""
        sample = self._samples.get(concurrency)
        return quantile(sample, 1 - TAIL) if sample else inf

    def found(self) -> FoundCapacity:
        """What is known by now."""
        low, high = self._bracket()
        crossing = self._crossing()
        return FoundCapacity(
            outcome=self._outcome(low, high),
            max_num_seqs=self._capacity(low, high, crossing),
            crossing=crossing,
            low=low,
            high=high,
            confidence=self._confidence(low, high),
            is_monotone=not self._contradictions(),
        )

    # ------------------------------------------------------------ what to drive

    def _to_repeat(self) -> int | None:
        """Of levels that contradict each other the one with fewer samples; else one that
        decides nothing and lies where the crossing may be."""
        may = [level for level, num in self._num_runs.items() if num <= self.config.max_repeats]
        doubtful = {level for pair in self._contradictions() for level in pair}
        if again := sorted(doubtful.intersection(may), key=lambda one: len(self._samples[one])):
            return again[0]
        low, high = self._bracket()
        for level in sorted(may):
            if self.verdict(level) is Verdict.UNSURE and low < level < (high or inf):
                return level
        return None

    def _next_probe(self) -> int | None:
        low, high = self._bracket()
        hint = self.config.hint
        if hint is not None and hint not in self._num_runs and low < hint < (high or inf):
            return min(hint, self.config.max_concurrency)
        if high is None:
            return self._further_up()
        if high <= low + 1 or high <= low * (1 + self.config.precision):
            return None
        if self._is_stuck():
            probe = round(sqrt(max(1, low) * high))
            if low < probe < high and probe not in self._num_runs:
                return probe
        return self._beside_crossing(low, high)

    def _further_up(self) -> int | None:
        """Above where the tolerance would be crossed if the p99 grew in a line with the
        concurrency; at the most four times the highest level so far."""
        highest, most = max(self._num_runs), self.config.max_concurrency
        if highest >= most:
            return None
        p99 = self.p99(highest)
        crossing = highest * self.config.tolerance_s / p99 if p99 > 0 else inf
        wanted = min(crossing * (1 + self.config.precision / 2), 4.0 * highest, float(most))
        return min(most, max(ceil(wanted), ceil(1.25 * highest)))

    def _is_stuck(self) -> bool:
        """Whether the last two probes have not halved what lies between (on a scale of ratios):
        then the curve is no line, and the middle is the better guess."""
        return len(self._ratios) > 2 and self._ratios[-1] > sqrt(self._ratios[-3])

    def _beside_crossing(self, low: int, high: int) -> int | None:
        """Just below where the p99 seems to cross, to see it hold, or just above, to see it
        fail; further off where that has been tried and decided nothing. The side that is
        further off goes first."""
        crossing = self._crossing()
        if crossing is None:
            return None
        half = self.config.precision / 2
        for distance in (1, 2, 4, 8):
            below = min(int(crossing * (1 - half * distance)), ceil(crossing) - distance)
            above = max(ceil(crossing * (1 + half * distance)), int(crossing) + distance)
            is_low_far = crossing / max(1, low) > high / crossing
            for probe in (below, above) if is_low_far else (above, below):
                if low < probe < high and probe not in self._num_runs:
                    return probe
            if distance > 1 and low >= below and high <= above:
                return None
        left = [one for one in range(low + 1, high) if one not in self._num_runs]
        return left[len(left) // 2] if left else None

    # ---------------------------------------------------------- what is known

    def _counts(self, concurrency: int) -> tuple[int, int]:
        sample = self._samples.get(concurrency, [])
        return len(sample), sum(value > self.config.tolerance_s for value in sample)

    def _levels(self, verdict: Verdict) -> list[int]:
        return sorted(level for level in self._samples if self.verdict(level) is verdict)

    def _bracket(self) -> tuple[int, int | None]:
        high = min(self._levels(Verdict.FAILS), default=None)
        holds = [level for level in self._levels(Verdict.HOLDS) if level < (high or inf)]
        return max(holds, default=0), high

    def _contradictions(self) -> list[tuple[int, int]]:
        """Levels that fail, and higher ones that hold."""
        fails, holds = self._levels(Verdict.FAILS), self._levels(Verdict.HOLDS)
        return [(fail, hold) for fail in fails for hold in holds if hold > fail]

    def _crossing(self) -> float | None:
        """Where the p99 crosses the tolerance; None if it does not within the levels. A p99 of
        few samples is a noisy thing, so that a line through the levels around goes before the
        two next to it."""
        first = self._first_crossing()
        if first is None:
            return None
        near = [
            (float(level), self.p99(level), float(len(sample)))
            for level, sample in self._samples.items()
            if sample and first * (1 - NEAR) <= level <= first * (1 + NEAR)
        ]
        if len(near) < 3 or not all(isfinite(p99) for _, p99, _ in near):
            return first
        return where_line_is(self.config.tolerance_s, near, first)

    def _first_crossing(self) -> float | None:
        """Where the p99 of the levels, made to rise, crosses the tolerance. Without a lower
        level, from no time at no load."""
        levels = sorted(level for level, sample in self._samples.items() if sample)
        risen = rising(
            [self.p99(level) for level in levels], [len(self._samples[level]) for level in levels]
        )
        tolerance = self.config.tolerance_s
        before, before_p99 = 0.0, 0.0
        for level, p99 in zip(levels, risen, strict=True):
            if p99 > tolerance:
                part = (tolerance - before_p99) / (p99 - before_p99) if isfinite(p99) else 0.5
                return before + part * (level - before)
            before, before_p99 = float(level), p99
        return None

    def _outcome(self, low: int, high: int | None) -> Outcome:
        if high == 1:
            return Outcome.TOO_SLOW
        if high is None:
            is_top = low >= self.config.max_concurrency
            return Outcome.AT_LEAST if is_top else Outcome.UNRESOLVED
        is_near = high - low <= 2 or high <= low * (1 + self.config.precision) ** 2
        return Outcome.RESOLVED if low and is_near else Outcome.UNRESOLVED

    def _capacity(self, low: int, high: int | None, crossing: float | None) -> int:
        if crossing is None:
            return low
        most = high - 1 if high is not None else crossing
        return int(max(low, min(crossing, most)))

    def _confidence(self, low: int, high: int | None) -> float:
        sure = [sure_below(*self._counts(low))] if low else []
        if high is not None:
            sure.append(sure_above(*self._counts(high)))
        return min(sure, default=0.0)


def where_line_is(
    value: float, points: Sequence[tuple[float, float, float]], otherwise: float
) -> float:
    """The x at which the line nearest to points of (x, y, weight) has that value; `otherwise`
    if it does not rise, or only outside of them."""
    total = sum(weight for _, _, weight in points)
    x0 = sum(weight * x for x, _, weight in points) / total
    y0 = sum(weight * y for _, y, weight in points) / total
    spread = sum(weight * (x - x0) ** 2 for x, _, weight in points)
    slope = sum(weight * (x - x0) * (y - y0) for x, y, weight in points) / spread
    if slope <= 0:
        return otherwise
    x = x0 + (value - y0) / slope
    return x if min(points)[0] <= x <= max(points)[0] else otherwise


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest values that never fall: neighbours that do are set to their weighted mean
    (pool adjacent violators, Barlow et al., 1972)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (one, its, count), (other, others, more) = blocks[-2:]
            mean = (one * its + other * others) / (its + others)
            blocks[-2:] = [(mean, its + others, count + more)]
    return [value for value, _, count in blocks for _ in range(count)]
