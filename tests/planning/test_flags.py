"""Commands to paste, for every engine."""

import shlex
from dataclasses import replace

import pytest

from carpool.hardware.device import find_device
from carpool.models.model_source import find_model
from carpool.planning.engine_kind import EngineKind
from carpool.planning.flags import Command, commands
from carpool.planning.plan import Plan, PlanRequest, make_plan
from carpool.planning.profile import PROFILES
from carpool.planning.settings import Settings


def plan_of(name: str = "qwen3-8b", weights: str | None = None, **settings: object) -> Plan:
    engine = settings.pop("engine", EngineKind.VLLM)
    ranks = settings.get("tensor_parallel", 1)
    return make_plan(
        PlanRequest(
            model=find_model(name, lambda name: None),
            device=find_device("RTX 4090"),
            num_devices=int(str(ranks)),
            settings=Settings(engine=engine, **settings),  # type: ignore[arg-type]
            profile=PROFILES["chat"],
            num_people=10,
            weight_format=weights,
        )
    )


def words(command: Command) -> list[str]:
    return shlex.split(command.text.replace("\\\n", " "))


def test_every_engine_has_a_command_and_every_flag_a_reason() -> None:
    found = commands(plan_of())
    names = {command.engine for command in found}
    assert names == {"vLLM", "SGLang", "TGI", "llama-server", "Ollama", "Carpool"}
    assert all(flag.why for command in found for flag in command.flags)
    assert all(words(command) for command in found)


@pytest.mark.parametrize(
    ("engine", "first"),
    [(EngineKind.VLLM, "vLLM"), (EngineKind.SGLANG, "SGLang"),
     (EngineKind.LLAMA_CPP, "llama-server")],
)  # fmt: skip
def test_the_planned_engine_comes_first(engine: EngineKind, first: str) -> None:
    assert commands(plan_of(weights="awq", engine=engine))[0].engine == first


def test_vllms_flags_follow_the_plan() -> None:
    plan = plan_of(weights="fp8", tensor_parallel=2, kv_dtype="fp8", max_model_len=8192)
    line = words(commands(plan)[0])
    assert plan.people is not None
    for flag, value in (
        ("--max-model-len", "8192"),
        ("--max-num-seqs", str(plan.people.num_seats)),
        ("--tensor-parallel-size", "2"),
        ("--kv-cache-dtype", "fp8"),
        ("--quantization", "fp8"),
    ):
        assert line[line.index(flag) + 1] == value


def test_llama_servers_context_is_split_over_its_slots() -> None:
    plan = plan_of(weights="Q4_K_M", engine=EngineKind.LLAMA_CPP)
    line = words(commands(plan)[0])
    slots = int(line[line.index("--parallel") + 1])
    assert int(line[line.index("--ctx-size") + 1]) == slots * (plan.settings.max_model_len or 0)
    assert plan.people is not None
    assert slots == plan.people.num_seats


def test_what_does_not_start_has_no_commands() -> None:
    assert commands(plan_of("qwen3-32b")) == []


@pytest.mark.parametrize(
    ("ranks", "engine", "trouble"),
    [
        (3, EngineKind.VLLM, "32 attention heads do not divide by tensor parallel 3; give "
                             "--tensor-parallel 2 or --tensor-parallel 4"),
        (4, EngineKind.VLLM, None),
        (3, EngineKind.LLAMA_CPP, None),
    ],
)  # fmt: skip
def test_ranks_have_whole_heads(ranks: int, engine: EngineKind, trouble: str | None) -> None:
    assert plan_of(tensor_parallel=ranks, engine=engine).trouble == trouble


def test_replicas_have_seats_and_cache_of_their_own() -> None:
    one = plan_of(max_model_len=8192)
    two = make_plan(
        replace(one.request, num_devices=2, settings=replace(one.request.settings, data_parallel=2))
    )
    assert one.capacity is not None
    assert two.capacity is not None
    assert two.capacity.max_num_seqs == 2 * one.capacity.max_num_seqs
    assert two.capacity.kv_tokens == 2 * one.capacity.kv_tokens
    assert "--data-parallel-size 2" in commands(two)[0].text


def test_carpools_command_hands_the_engine_its_flags() -> None:
    carpool = next(c for c in commands(plan_of()) if c.engine == "Carpool")
    assert "--backend vllm" in carpool.text
    assert carpool.text.index("-- ") < carpool.text.index("--max-num-seqs")
