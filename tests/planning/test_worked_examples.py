"""The examples that the documentation works out by hand."""

import pytest

from carpool.hardware.device import find_device
from carpool.models.model_source import find_model
from carpool.planning.engine_kind import EngineKind
from carpool.planning.plan import PlanRequest, make_plan
from carpool.planning.profile import PROFILES
from carpool.planning.settings import Settings
from carpool.planning.simple import dense_bytes_per_token, simple_plan

PER_TOKEN = dense_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=128)


def test_a_token_of_an_8b_model_takes_131072_bytes() -> None:
    assert PER_TOKEN == 131_072


def test_2048_tokens_take_256_mib() -> None:
    assert 2048 * PER_TOKEN == 256 * 2**20
    assert pytest.approx(250) == 2000 * PER_TOKEN / 2**20


def test_24_gb_with_fp16_weights() -> None:
    plan = simple_plan(24, 8e9, 16, PER_TOKEN)
    assert (round(plan.weights_gib, 1), round(plan.kv_gib, 1)) == (14.9, 7.1)
    assert (plan.num_seqs(4000), plan.num_seqs(16_000)) == (14, 3)


def test_four_bit_weights_carry_more_than_35() -> None:
    assert simple_plan(24, 8e9, 4, PER_TOKEN).num_seqs(4000) > 35


def test_an_8_bit_cache_carries_twice_as_many() -> None:
    half = dense_bytes_per_token(32, 8, 128, kv_bits=8)
    assert simple_plan(24, 8e9, 16, half).kv_gib * 2**30 / (half * 4000) == pytest.approx(
        2 * 7.1 * 2**30 / (PER_TOKEN * 4000), rel=0.01
    )


def test_the_refined_plan_stands_beside_the_simple_one() -> None:
    model = find_model("llama-3.1-8b-instruct", lambda name: None)
    plan = make_plan(
        PlanRequest(
            model=model,
            device=find_device("RTX 4090"),
            num_devices=1,
            settings=Settings(engine=EngineKind.VLLM),
            profile=PROFILES["chat"],
            num_people=10,
        )
    )
    assert plan.pool.bytes_per_token == PER_TOKEN
    assert plan.simple.num_seqs(4000) == 14
    # vLLM leaves a tenth of the card alone, and the card has 23.6 GiB, not 24.
    assert 8 <= plan.seqs_at_context.value <= 13
