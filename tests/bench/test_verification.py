"""A whole verification against an engine whose queue is written down: one prefill at a time."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from mock_engine import (
    MODEL,
    MockEngine,
    Reply,
    SeenRequest,
    chat_events,
    json_reply,
    serving,
    sse_reply,
)

from carpool.bench.capacity_search import SearchConfig, Verdict
from carpool.bench.engine_under_test import attached
from carpool.bench.errors import BenchError
from carpool.bench.memory_watch import MemoryWatch
from carpool.bench.plan_check import PlanCheck
from carpool.bench.prompts import Lengths, MadeUpPrompts
from carpool.bench.step_fit import fit_steps
from carpool.bench.verification import DrivenLevel, Verification, Verified, VerifyConfig
from carpool.bench.verify_dict import verify_as_dict
from carpool.bench.verify_html import verify_as_html
from carpool.bench.verify_text import verify_as_text
from carpool.scheduling.capacity import Capacity, Provenance

PREFILL_S = 0.004
OUTPUT = 8


@dataclass
class QueueingEngine:
    """Answers in order, `PREFILL_S` for each prompt. With `refuses_half` every other request is
    refused, and after `dies_after` requests there is nobody any more."""

    refuses_half: bool = False
    dies_after: int = 10_000
    free_at: float = 0.0
    num_posts: int = 0

    def __call__(self, request: SeenRequest) -> Reply:
        if self.num_posts >= self.dies_after:
            return Reply(raw=b"")
        if request.method == "GET":
            is_list = request.path == "/v1/models"
            return json_reply({"data": [{"id": MODEL}]} if is_list else {}, 200 if is_list else 404)
        self.num_posts += 1
        now = time.monotonic()
        if self.refuses_half and self.num_posts % 2:
            return json_reply({"error": {"message": "too many"}}, 503)
        num_tokens = json.loads(request.body)["max_tokens"]
        self.free_at = max(now, self.free_at) + PREFILL_S
        return sse_reply(
            chat_events(["w"] * num_tokens, prompt=64),
            first_byte_delay=self.free_at - now,
            piece_delay=0.001,
        )


def config(**changes: object) -> SearchConfig:
    """Verdicts of 69 requests."""
    fields = {"planned": 8, "tolerance_s": 0.08, "confidence": 0.5, "max_concurrency": 256}
    return SearchConfig(**(fields | changes))  # type: ignore[arg-type]


def verify(
    script: QueueingEngine,
    search: SearchConfig,
    *,
    budget_s: float = 60.0,
    on_level: Callable[[DrivenLevel, asyncio.Event], None] = lambda level, stop: None,
) -> Verified:
    async def run(engine: MockEngine) -> Verified:
        async with attached(engine.url, model=None, api_key=None) as found:
            stop = asyncio.Event()
            prompts = MadeUpPrompts(lengths=(Lengths(64, 0.3), Lengths(OUTPUT, 0.3)))
            return await Verification(
                found.target,
                prompts,
                VerifyConfig(
                    search=search, prompt_tokens=64, output_tokens=OUTPUT, budget_s=budget_s
                ),
                watch=MemoryWatch(None),
                check_alive=found.check_alive,
                on_level=lambda level: on_level(level, stop),
            ).run(stop)

    with serving(script) as engine:
        return asyncio.run(run(engine))


@pytest.fixture(scope="module")
def verified() -> Verified:
    return verify(QueueingEngine(), config())


def test_the_plan_its_double_and_a_search_are_driven(verified: Verified) -> None:
    roles = [level.role for level in verified.levels]
    assert roles[:3] == ["alone", "planned", "double"]
    assert set(roles[3:]) <= {"search"}
    assert verified.ended is None
    assert [level.concurrency for level in verified.levels[:3]] == [1, 8, 16]
    # About 0.08 / 0.004 wait for their prefill, and some are being answered; a busy machine
    # finds fewer, or none.
    assert verified.found.max_num_seqs <= 48


def test_levels_of_one_concurrency_are_one(verified: Verified) -> None:
    numbers = [level.concurrency for level in verified.measured]
    assert numbers == sorted(set(numbers))
    assert verified.planned is not None
    assert verified.double is not None
    assert verified.mean_prompt_tokens == 64
    assert verified.double.ttft_s > 0
    assert verified.planned.requests_per_s > 0


def test_step_times_follow_from_the_levels(verified: Verified) -> None:
    fit = fit_steps(verified.measured, 64, OUTPUT)
    assert fit.step_fixed_s >= 0
    assert fit.step_per_seq_s >= 0
    assert 100 < fit.prefill_tokens_per_s <= 64 / PREFILL_S


def check_of(verified: Verified, **changes: Any) -> PlanCheck:
    fields: dict[str, Any] = {
        "verified": verified,
        "engine": "vllm",
        "version": "1.0",
        "device": "a device",
        "capacity": Capacity(8, 4096, 2048, Provenance.REPORTED),
        "plan": None,
        "no_plan": "nothing is known of it",
        "predictions": (None, None),
        "fit": fit_steps(verified.measured, 64, OUTPUT),
        "before": None,
        "calibration": None,
        "overhead_bytes": None,
    }
    return PlanCheck(**fields | changes)


def test_the_report_says_the_same_on_a_screen_as_json_and_as_a_page(verified: Verified) -> None:
    check = check_of(verified)
    text = verify_as_text(check)
    assert "at 16 at once it queues and slows rather than fails" in text
    assert "8 of them wait for one of 8 seats" in text
    assert "no plan: nothing is known of it" in text
    fields = json.loads(json.dumps(verify_as_dict(check), allow_nan=False))
    assert fields["planned"] == 8
    assert fields["capacity"]["max_num_seqs"] == verified.found.max_num_seqs
    assert [level["concurrency"] for level in fields["levels"]] == [
        level.concurrency for level in verified.measured
    ]
    page = verify_as_html(check)
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "<link" not in page
    assert page.count("<svg") >= 3


def test_an_engine_that_refuses_at_double_is_said_to_fail() -> None:
    script = QueueingEngine()

    def refuse_from_now_on(level: DrivenLevel, stop: asyncio.Event) -> None:
        script.refuses_half = level.role == "planned"

    verified = verify(
        script,
        config(planned=4, tolerance_s=30.0, max_concurrency=8),
        on_level=refuse_from_now_on,
    )
    double = verified.double
    assert double is not None
    assert double.num_failed > 0
    assert "requests fail" in (check_of(verified).degradation() or "")
    assert verified.levels[2].verdict is Verdict.FAILS


def test_an_engine_that_dies_leaves_what_was_measured() -> None:
    verified = verify(QueueingEngine(dies_after=170), config())
    assert verified.ended is not None
    assert verified.ended.startswith("the engine no longer answers: ")
    assert verified.level(1) is not None
    assert "Cut short: the engine no longer answers" in verify_as_text(check_of(verified))


def test_an_engine_that_is_gone_at_once_is_an_error() -> None:
    with pytest.raises(BenchError):
        verify(QueueingEngine(dies_after=0), config())


def test_a_stop_keeps_the_levels_that_are_done() -> None:
    def stop_after_planned(level: DrivenLevel, stop: asyncio.Event) -> None:
        if level.role == "planned":
            stop.set()

    verified = verify(QueueingEngine(), config(), on_level=stop_after_planned)
    assert verified.ended == "stopped"
    assert verified.planned is not None


def test_a_budget_that_is_spent_ends_it() -> None:
    verified = verify(QueueingEngine(), config(), budget_s=0.5)
    assert verified.ended == "the budget of 0.5 s is spent"
    assert [level.role for level in verified.levels] == ["alone"]
    assert not check_of(verified).holds
