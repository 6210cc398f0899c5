"""A draft model beside the model: what it takes, and what it gives."""

from dataclasses import replace

import pytest

from carpool.hardware.device import find_device
from carpool.models.model_source import ModelSource
from carpool.models.published_models import find_published
from carpool.planning.engine_kind import EngineKind
from carpool.planning.errors import PlanError
from carpool.planning.flags import commands
from carpool.planning.plan import Plan, PlanRequest, make_plan
from carpool.planning.profile import find_profile
from carpool.planning.settings import Settings
from carpool.planning.speculation import tokens_per_step


def source(name: str) -> ModelSource:
    found = find_published(name)
    assert found is not None
    return ModelSource(found.id, found.shape, None, found.source)


def plan(draft: str | None = None, **settings: object) -> Plan:
    asked = Settings(engine=EngineKind.VLLM, **settings)  # type: ignore[arg-type]
    request = PlanRequest(
        model=source("Qwen/Qwen3-32B"),
        device=find_device("H100 SXM5"),
        num_devices=1,
        settings=asked,
        profile=find_profile("chat"),
        num_people=20,
    )
    return make_plan(replace(request, draft=None if draft is None else source(draft)))


def test_tokens_of_a_step_are_those_of_the_formula() -> None:
    assert tokens_per_step(0, 1) == 1
    assert tokens_per_step(4, 1) == pytest.approx(1 + 0.7 + 0.7**2 + 0.7**3 + 0.7**4)


def test_a_draft_model_takes_memory_and_gives_speed() -> None:
    alone, both = plan(), plan("Qwen/Qwen3-0.6B", num_draft_tokens=4)
    more = both.memory.weights.value - alone.memory.weights.value
    assert more == pytest.approx(0.596e9 * 2, rel=0.3)
    # 28 layers of 8 heads of 128 beside 64 of the same.
    assert both.pool.bytes_per_token == alone.pool.bytes_per_token * (64 + 28) / 64
    assert alone.planned is not None
    assert both.planned is not None
    assert both.planned.tokens_per_second.value > 1.2 * alone.planned.tokens_per_second.value
    assert '"model": "Qwen/Qwen3-0.6B"' in commands(both)[0].text


def test_weights_in_the_hosts_memory_make_room_and_take_time() -> None:
    alone, offloaded = plan(), plan(host_offload=20 * 2.0**30)
    assert offloaded.memory.kv_cache.value == alone.memory.kv_cache.value + 20 * 2**30
    assert alone.planned is not None
    assert offloaded.planned is not None
    slower = alone.planned.tokens_per_second.value / offloaded.planned.tokens_per_second.value
    assert slower > 10
    assert "--cpu-offload-gb 20" in commands(offloaded)[0].text


@pytest.mark.parametrize(
    ("draft", "num_tokens", "said"),
    [
        (None, 4, "Qwen/Qwen3-32B has no layers that draft tokens; name a small model"),
        ("Qwen/Qwen3-0.6B", 0, "drafts no tokens; say how many, like --draft-tokens 4"),
    ],
)
def test_half_of_a_speculation_is_refused(draft: str | None, num_tokens: int, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan(draft, num_draft_tokens=num_tokens)
