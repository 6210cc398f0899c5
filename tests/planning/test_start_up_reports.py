"""The planner against what engines said of themselves when they started.

`start_up_reports.jsonl` holds public reports, each with its source. The bounds are those the
documentation states; `make bench-planner` prints the figures.
"""

import pytest

from benchmarks.planner import REPORTS, Score, exactness, failed_starts, score, summary
from benchmarks.planner_reports import read_reports


@pytest.fixture(scope="module")
def result() -> Score:
    return score(read_reports(REPORTS))


@pytest.mark.parametrize(
    ("engine", "quantity", "most_median", "most_p90"),
    [
        ("vllm", "kv_tokens", 0.03, 0.10),
        ("vllm", "weights", 0.01, 0.06),
        ("sglang", "kv_tokens", 0.05, 0.15),
        ("llama.cpp", "kv_tokens", 0.01, 0.01),
        ("llama.cpp", "kv_memory", 0.01, 0.02),
    ],
)
def test_errors_stay_in_bounds(
    result: Score, engine: str, quantity: str, most_median: float, most_p90: float
) -> None:
    errors = summary(result.errors[engine, "all", quantity, False])
    assert errors["median_abs_error"] <= most_median, errors
    assert errors["p90_abs_error"] <= most_p90, errors


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_a_token_takes_what_engines_say_it_takes(result: Score, engine: str) -> None:
    errors = summary(result.errors[engine, "all", "kv_bytes_per_token", False])
    assert errors["median_abs_error"] <= 0.001, errors


def test_where_a_token_takes_something_else_the_report_leaves_something_open(
    result: Score,
) -> None:
    exact = exactness(result)
    assert exact["within_2_percent"] >= 0.9 * exact["reports"]
    assert exact["unexplained"] == []


def test_starts_that_failed_are_foreseen(result: Score) -> None:
    starts = failed_starts(result.foreseen)
    assert starts["recall"] >= 0.90, starts
    assert starts["false_alarms"] <= 0.05, starts


def test_what_is_not_predicted_says_why(result: Score) -> None:
    reasons = [reason for rows in result.unpredicted.values() for _, reason in rows]
    assert all(reasons)
