"""How much KV memory is held, how much of it is written, and what share is wasted."""

from collections.abc import Callable

import pytest

from carpool.lab.lab_engine import LabEngine
from carpool.lab.step_record import (
    StepRecord,
    num_prompt_tokens,
    num_written_slots,
    wasted_share,
)
from carpool.lab.workload import SyntheticRequest
from carpool.scheduling.config import MemoryPolicy
from carpool.scheduling.outputs import ScheduledRequest
from carpool.scheduling.request import Request


def running(name: str, num_prompt_tokens: int, num_computed_tokens: int) -> Request:
    request = Request(name, range(num_prompt_tokens), max_tokens=4)
    request.block_table = [0]
    request.num_computed_tokens = num_computed_tokens
    return request


def test_the_wasted_share_is_the_mean_over_steps_not_over_slots() -> None:
    steps = [StepRecord(1, 100, 50, 0), StepRecord(1, 4, 4, 0)]
    assert wasted_share(steps) == pytest.approx(0.25)


def test_steps_that_hold_nothing_waste_nothing() -> None:
    assert wasted_share([]) == 0.0
    assert wasted_share([StepRecord(0, 0, 0, 0), StepRecord(1, 8, 4, 0)]) == 0.5


def test_written_slots_are_those_of_the_step_and_of_those_who_sit_it_out() -> None:
    scheduled = running("scheduled", 10, 2)
    sits_out = running("sits out", 10, 7)
    finished = running("finished", 10, 9)
    finished.block_table = []
    step = [ScheduledRequest(scheduled, 2, 3, False)]
    assert num_written_slots(step, [scheduled, sits_out, finished]) == 5 + 7


def test_output_tokens_are_not_prompt_tokens() -> None:
    step = [
        ScheduledRequest(running("chunk", 10, 2), 2, 3, False),
        ScheduledRequest(running("resumed", 10, 0), 0, 12, True),
        ScheduledRequest(running("decode", 10, 11), 11, 1, True),
    ]
    assert num_prompt_tokens(step) == 3 + 10


def answer_one(engine: LabEngine) -> list[StepRecord]:
    """Prompt 6, output 3 of at most 10: KV slots for 6, 7 and 8 tokens."""
    engine.ask(
        SyntheticRequest(
            request_id="a", prompt_token_ids=tuple(range(6)), num_output_tokens=3, max_tokens=10
        )
    )
    while engine.is_busy:
        engine.step()
    return list(engine.steps)


def test_paged_memory_is_held_block_by_block(make_engine: Callable[..., LabEngine]) -> None:
    assert answer_one(make_engine(block_size=4)) == [
        StepRecord(1, 8, 6, 6),
        StepRecord(1, 8, 7, 0),
        StepRecord(1, 8, 8, 0),
    ]


def test_reserved_memory_is_held_for_the_longest_answer(
    make_engine: Callable[..., LabEngine],
) -> None:
    steps = answer_one(make_engine(block_size=4, memory_policy=MemoryPolicy.RESERVE_MAX))
    assert [step.held_slots for step in steps] == [16, 16, 16]
    assert [step.written_slots for step in steps] == [6, 7, 8]
