"""Commands to paste, for every engine."""

import shlex

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
