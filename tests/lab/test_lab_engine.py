"""Requests in the lab end where they should, and their times are those of the clock."""

from collections.abc import Callable

import pytest

from carpool.lab.batching import batching_figures
from carpool.lab.lab_engine import LabEngine, LabError, answer_all
from carpool.lab.workload import SyntheticRequest
from carpool.scheduling.config import BatchingPolicy


def make_request(name: str, num_output_tokens: int, is_short: bool = True) -> SyntheticRequest:
    return SyntheticRequest(
        request_id=name,
        prompt_token_ids=(1, 2, 3, 4),
        num_output_tokens=num_output_tokens,
        max_tokens=20,
        is_short=is_short,
    )


def test_times_are_those_of_the_steps(make_engine: Callable[..., LabEngine]) -> None:
    engine = make_engine(seconds_per_token=1.0)
    (timing,) = answer_all(engine, [make_request("a", 3)], lambda done, total: None)
    assert timing.token_ids == [0, 0, 0]
    assert timing.ttft == pytest.approx(4.0)
    assert timing.latency == pytest.approx(6.0)


def test_progress_counts_finished_requests(make_engine: Callable[..., LabEngine]) -> None:
    told: list[tuple[int, int]] = []
    requests = [make_request("a", 1), make_request("b", 3)]
    answer_all(make_engine(), requests, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (1, 2), (2, 2)]


def test_a_request_that_can_never_run_says_so(make_engine: Callable[..., LabEngine]) -> None:
    with pytest.raises(LabError, match=r"too small .* 24 tokens, but the context holds 16"):
        make_engine(max_model_len=16).ask(make_request("a", 3))


def test_short_requests_do_not_wait_for_a_static_batch_to_end(
    make_engine: Callable[..., LabEngine],
) -> None:
    requests = [make_request("long", 16, is_short=False)]
    requests += [make_request(f"short-{number}", 2) for number in range(5)]

    def short_p99(policy: BatchingPolicy) -> float:
        engine = make_engine(0.0, seconds_per_step=1.0, max_num_seqs=2, batching_policy=policy)
        timings = answer_all(engine, requests, lambda done, total: None)
        return batching_figures("", 2, timings, engine.steps).short_latency_p99_s

    assert short_p99(BatchingPolicy.CONTINUOUS) < 0.6 * short_p99(BatchingPolicy.STATIC)
