"""What lets a new version take over, and what stops it."""

import random
from dataclasses import replace

import pytest

from carpool.evals.compare import compare
from carpool.evals.short_bench import BenchFigures
from carpool.evals.upgrade_gate import GateOptions, judge_upgrade
from tests.evals.made_run import made_run

OLD = BenchFigures(
    num_requests=100, num_failed=0, output_tokens_per_s=100.0, ttft_p50_ms=200.0, tpot_p50_ms=10.0
)


def judged(new: BenchFigures, max_slowdown: float = 1.25) -> tuple[str, ...]:
    options = GateOptions(max_slowdown=max_slowdown)
    return judge_upgrade([], OLD, new, options).reasons


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"output_tokens_per_s": 79.0}, "it generates 79.0 tokens/s, before 100.0"),
        ({"ttft_p50_ms": 300.0}, "its median TTFT is 300 ms, before 200 ms"),
        ({"num_failed": 3}, "under load 3 of 100 requests failed (before 0 of 100)"),
    ],
)
def test_what_is_slower_or_fails_under_load_stops_it(changes: dict[str, float], told: str) -> None:
    (reason,) = judged(replace(OLD, **changes))  # type: ignore[arg-type]
    assert told in reason


def test_a_little_slower_is_let_through() -> None:
    assert judged(replace(OLD, output_tokens_per_s=81.0, ttft_p50_ms=260.0)) == ()
    assert judged(replace(OLD, output_tokens_per_s=51.0), max_slowdown=2.0) == ()


def test_an_alarm_of_the_evals_stops_it_and_a_notice_does_not() -> None:
    dice = random.Random(0)
    same = compare(made_run(dice), made_run(dice))
    worse = compare(made_run(dice), made_run(dice, loss=0.6))
    cut = compare(made_run(dice), replace(made_run(dice), is_complete=False))
    options = GateOptions()
    assert judge_upgrade([same], None, None, options).has_passed
    assert not judge_upgrade([same, worse], None, None, options).has_passed
    assert judge_upgrade([cut], None, None, options).reasons == ("made: not all of it was run",)
