"""The numbers of remedies are those of the planner."""

import pytest

from carpool.hardware.device import find_device
from carpool.models.model_source import find_model
from carpool.planning.engine_kind import EngineKind
from carpool.planning.plan import PlanRequest, make_plan
from carpool.planning.profile import PROFILES
from carpool.planning.settings import Settings
from carpool.watch.plan_numbers import PlanNumbers


def plan_of(engine=EngineKind.VLLM, **settings):
    return make_plan(
        PlanRequest(
            model=find_model("llama-3.1-8b-instruct", lambda name: None),
            device=find_device("RTX 4090"),
            num_devices=1,
            settings=Settings(engine=engine, max_model_len=16_384, **settings),
            profile=PROFILES["chat"],
            num_people=30,
        )
    )


def test_sequences_are_the_plans():
    plan = plan_of()
    numbers = PlanNumbers.of_plan(plan)
    assert numbers.sequences(4000) == plan.pool.num_seqs(4000)
    assert numbers.sequences(8000) == pytest.approx(numbers.sequences(4000) / 2, abs=1)
    assert numbers.assumptions.think_seconds == PROFILES["chat"].think_seconds
    assert numbers.assumptions.num_people == 30


def test_narrower_keys_and_a_gpu_more_hold_more():
    numbers = PlanNumbers.of_plan(plan_of())
    before, narrow, two = (
        numbers.sequences(8000),
        numbers.with_kv_8bit(8000),
        numbers.with_gpu(8000),
    )
    assert narrow == pytest.approx(2 * before, abs=2)
    assert two > narrow


def test_what_is_not_open_has_no_number():
    numbers = PlanNumbers.of_plan(plan_of(kv_dtype="fp8"))
    assert numbers.with_kv_8bit(8000) is None


def test_no_more_than_there_are_seats():
    numbers = PlanNumbers.of_plan(plan_of(max_num_seqs=4))
    assert numbers.sequences(500) == 4
    assert PlanNumbers.of_capacity(8, 32_000).sequences(1.0) == 8
