"""The scripted server and what is held against it."""

import pytest

from benchmarks.bench_truth import Figure, Scene, measure
from benchmarks.truth_client import Timing
from carpool.bench.level import Level, Limits
from carpool.bench.load import FixedConcurrency


@pytest.mark.parametrize(
    ("reported", "true", "unit", "is_near"),
    [
        (82.0, 80.0, "ms", True),
        (82.1, 80.0, "ms", False),
        (1019.0, 1000.0, "ms", True),
        (1019.0, 1000.0, "tok/s", True),
        (1021.0, 1000.0, "tok/s", False),
        (1.5, 1.0, "tok/s", False),
    ],
)
def test_near_is_two_per_cent_or_two_milliseconds(reported, true, unit, is_near):
    assert Figure("x", reported, true, unit).is_near is is_near


def test_only_judged_figures_are_missed():
    figures = [Figure("a", 9, 1), Figure("b", 9, 1, is_judged=False)]
    assert Scene("carpool", "a load", figures, 1).misses == ["a"]


def test_requests_are_found_again_at_the_server():
    level = Level("x", FixedConcurrency(3), Limits(max_requests=9))
    result, truth, everything = measure(Timing(ttft_ms=30, gap_ms=5), level, num_tokens=4)
    assert truth.users == [str(record.number) for record in result.records]
    assert len(everything.users) == 9
    assert [len(each) for each in truth.written] == [4] * 9
    due = [record.due for record in result.records]
    # The median: a process may lose its core between a stamp and its write.
    differences = sorted(truth.ttft_ms(due) - [record.ttft_ms for record in result.records])
    assert differences[4] == pytest.approx(0, abs=2)
