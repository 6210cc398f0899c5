"""The search for the capacity, against simulated queues: no engine, no clock."""

from collections.abc import Callable, Sequence
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.bench.capacity_search import (
    MOST_LEVELS,
    CapacitySearch,
    FoundCapacity,
    Outcome,
    SearchConfig,
    Verdict,
    rising,
)

Drive = Callable[[int], Sequence[float]]


def config(**changes: object) -> SearchConfig:
    return SearchConfig(**({"planned": 32, "tolerance_s": 2.0} | changes))  # type: ignore[arg-type]


def search(config: SearchConfig, drive: Drive) -> tuple[FoundCapacity, list[int]]:
    """What is found, and the levels driven for it."""
    searching, levels = CapacitySearch(config), []
    while (level := searching.next_level()) is not None:
        levels.append(level)
        searching.observe(level, drive(level))
    return searching.found(), levels


def exactly(p99: Callable[[int], float], num: int = 170) -> Drive:
    return lambda level: [p99(level)] * num


def queue(seconds_each: float, random: Random, num: int = 170) -> Drive:
    """A closed queue: with n in flight, a request finds up to n - 1 prefills before its own."""

    def drive(level: int) -> list[float]:
        return [seconds_each * (1 + random.betavariate(8, 2) * (level - 1)) for _ in range(num)]

    return drive


def test_the_plan_and_its_double_come_first() -> None:
    _, levels = search(config(planned=10), exactly(lambda n: n / 5))
    assert levels[:2] == [10, 20]


@pytest.mark.parametrize("planned", [1, 8, 64, 300])
@pytest.mark.parametrize("capacity", [3, 17, 60, 250])
def test_a_line_is_found_in_few_levels(planned: int, capacity: int) -> None:
    slope = 2.0 / (capacity + 0.5)
    found, levels = search(config(planned=planned), exactly(lambda n: slope * n))
    assert found.outcome is Outcome.RESOLVED
    assert found.low <= capacity < (found.high or 0)
    assert abs(found.max_num_seqs - capacity) <= max(1, 0.1 * capacity)
    assert found.is_monotone
    assert found.confidence >= 0.8
    assert len(levels) <= 14


def test_where_it_was_the_last_time_is_tried_first() -> None:
    found, levels = search(config(planned=5, hint=40), exactly(lambda n: n / 21))
    assert levels[:3] == [5, 10, 40]
    assert 40 <= found.max_num_seqs <= 42
    assert len(levels) <= 5


@pytest.mark.parametrize("planned", [4, 64, 500])
def test_a_cliff_is_found(planned: int) -> None:
    """Flat until the seats are taken, then a queue."""
    found, levels = search(config(planned=planned), exactly(lambda n: 0.2 if n <= 50 else 30.0))
    assert found.outcome is Outcome.RESOLVED
    assert found.low <= 50 < (found.high or 0)
    assert (found.high or 0) <= 1.21 * found.low
    assert len(levels) <= 20


def test_a_plan_that_holds_with_ease_is_taken_up_to_the_most() -> None:
    found, levels = search(config(planned=4, max_concurrency=50), exactly(lambda n: 0.1))
    assert levels == [4, 8, 32, 50]
    assert found.outcome is Outcome.AT_LEAST
    assert (found.max_num_seqs, found.low, found.high) == (50, 50, None)


def test_one_alone_may_be_too_slow() -> None:
    found, _ = search(config(planned=4), exactly(lambda n: 2.5 * n))
    assert found.outcome is Outcome.TOO_SLOW
    assert found.max_num_seqs == 0


def test_few_samples_leave_it_unresolved() -> None:
    found, levels = search(config(), exactly(lambda n: 0.05 * n, num=20))
    assert found.outcome is Outcome.UNRESOLVED
    assert found.low == 0
    assert len(levels) <= MOST_LEVELS


def test_a_search_that_is_cut_short_says_what_it_knows() -> None:
    searching = CapacitySearch(config())
    assert searching.found().outcome is Outcome.UNRESOLVED
    assert searching.observe(32, [0.5] * 170) is Verdict.HOLDS
    assert searching.observe(64, [3.0] * 170) is Verdict.FAILS
    found = searching.found()
    assert (found.outcome, found.low, found.high) == (Outcome.UNRESOLVED, 32, 64)
    assert 32 <= found.max_num_seqs < 64


def test_failures_are_over_any_tolerance() -> None:
    searching = CapacitySearch(config())
    assert searching.observe(32, [0.1] * 160 + [inf] * 10) is Verdict.FAILS
    assert searching.p99(32) == inf


def test_a_level_that_decides_nothing_is_driven_again_with_its_samples_kept() -> None:
    searching = CapacitySearch(config(planned=10, max_repeats=1))
    one_over = [0.1] * 169 + [2.5]
    searching.observe(10, [0.1] * 170)
    assert searching.observe(20, one_over) is Verdict.UNSURE
    assert searching.next_level() == 20
    assert searching.observe(20, [0.1] * 170) is Verdict.HOLDS


def test_a_higher_level_that_holds_where_a_lower_failed_is_not_believed() -> None:
    """Something else ran on the machine; or the engine is odd. The lower one counts."""
    slow = {10}
    found, levels = search(config(planned=10), exactly(lambda n: 5.0 if n in slow else 0.01 * n))
    assert levels.count(10) == 2
    assert levels.count(20) == 2
    assert not found.is_monotone
    assert found.high == 10
    assert found.low < 10


def test_a_disturbance_that_passes_is_forgiven() -> None:
    runs: list[int] = []

    def drive(level: int) -> list[float]:
        runs.append(level)
        is_disturbed = len(runs) == 1
        return [0.01 * level] * 400 + [4.0] * (6 if is_disturbed else 0)

    found, _ = search(config(planned=10, max_concurrency=20), drive)
    assert found.is_monotone
    assert found.low == 20


@given(st.integers(0, 2**32), st.integers(2, 300), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_noisy_queues_end_near_the_truth(seed: int, capacity: int, planned: int) -> None:
    """The truth: where the 99th percentile of what `queue` draws crosses the tolerance."""
    beta_p99 = 0.9831  # of the beta distribution with 8 and 2
    each = 2.0 / (1 + beta_p99 * (capacity - 1))
    found, levels = search(config(planned=planned), queue(each, Random(seed)))
    assert len(levels) <= MOST_LEVELS
    assert found.low <= found.max_num_seqs
    assert found.high is None or found.max_num_seqs < found.high
    # Of many verdicts at 80 % some are wrong, but never by much.
    assert 0.8 * capacity - 2 <= found.max_num_seqs <= 1.2 * capacity + 2


@given(st.integers(0, 2**32), st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_any_answers_end_the_search(seed: int, planned: int) -> None:
    random = Random(seed)

    def drive(level: int) -> list[float]:
        kind = random.random()
        num = random.choice([0, 1, 20, 170])
        return [4.0 if random.random() < kind**8 else 0.5 for _ in range(num)]

    found, levels = search(config(planned=planned, max_concurrency=200), drive)
    assert levels[0] == planned
    assert len(levels) <= MOST_LEVELS
    assert all(1 <= level <= 200 for level in levels)
    assert found.high is None or found.low < found.high
    assert 0 <= found.max_num_seqs <= 200
    assert 0 <= found.confidence <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planned": 0}, "planned is 0, but must be from 1 to 4096"),
        ({"planned": 5000}, "planned is 5000"),
        ({"tolerance_s": 0.0}, "tolerance_s is 0, but must be above 0"),
        ({"confidence": 1.0}, "confidence is 1, but must be in"),
        ({"precision": 0.0}, "precision is 0, but must be in"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_rising_keeps_what_rises_and_pools_what_falls() -> None:
    assert rising([1, 2, 3], [1, 1, 1]) == [1, 2, 3]
    assert rising([1, 3, 2], [1, 1, 3]) == [1, 2.25, 2.25]
    assert rising([3, 2, 1], [1, 1, 1]) == [2, 2, 2]
