"""The plan that `carpool serve` makes first."""

import pytest

from carpool.cli.serve_plan import announce_plan, announce_plans, plan_to_serve
from carpool.gateway.model_config import BackendConfig, ModelConfig
from carpool.planning.errors import PlanError


def test_the_plan_is_three_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    announce_plan("embedded", "smollm2-135m", ["--max-model-len", "2048"], force=False)
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 3
    assert output.err.count("plan: ") == 3


def test_the_engines_arguments_are_planned_with() -> None:
    arguments = ["--max-model-len=512", "--max-num-seqs", "2", "--kv-cache-memory", "1GiB"]
    plan = plan_to_serve("embedded", "smollm2-135m", arguments)
    assert plan.settings.max_model_len == 512
    # Two sequences fill no more than this.
    assert plan.pool.kv_tokens == 1024


def test_llama_servers_slots_are_planned_as_they_are_started() -> None:
    assert plan_to_serve("llama.cpp", "smollm2-135m", []).pool.kv_tokens == 8 * 4096


def test_what_does_not_fit_needs_force(capsys: pytest.CaptureFixture[str]) -> None:
    model = "meta-llama/Llama-3.1-405B-Instruct"
    with pytest.raises(PlanError, match=r"does not fit: the weights take .* --force"):
        announce_plan("embedded", model, [], force=False)
    announce_plan("embedded", model, [], force=True)
    assert "does not fit" in capsys.readouterr().err


def test_what_cannot_be_planned_is_started_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    announce_plan("embedded", "/nowhere/model", [], force=False)
    assert capsys.readouterr().err.startswith("plan: none, /nowhere/model")


def test_nothing_is_said_where_the_log_is_for_machines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    announce_plan("embedded", "smollm2-135m", [], force=False, is_quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("backend", "seats", "length"),
    [
        (BackendConfig(), "planned", 8192),
        (BackendConfig(args=("--max-num-seqs", "3")), 3, 8192),
        (BackendConfig(args=("--max-num-seqs=3", "--max-model-len=512")), 3, 512),
        (BackendConfig(max_num_seqs=5, max_model_len=1024), 5, 1024),
        (BackendConfig(args=("--max-num-seqs", "many")), None, 8192),
        (BackendConfig(engine="llama.cpp"), 8, 4096),
        (BackendConfig(engine="llama.cpp", args=("--parallel", "4")), 4, 4096),
        (BackendConfig(engine="llama.cpp", args=("--ctx-size", "16384")), 8, 2048),
        (BackendConfig(engine="vllm+http://127.0.0.1:1"), None, None),
    ],
)
def test_an_engine_gets_the_seats_and_the_length_of_the_plan(
    backend: BackendConfig, seats: int | str | None, length: int | None
) -> None:
    model = ModelConfig(name="smollm2-135m", backends=(backend,))
    planned = announce_plans([model], force=False, is_quiet=True)
    made = planned.models[0].backends[0]
    if seats == "planned":
        capacity = planned.plans["smollm2-135m"].capacity
        assert capacity is not None
        seats = capacity.max_num_seqs
    assert (made.max_num_seqs, made.max_model_len) == (seats, length)
    assert made.args == backend.args


def test_the_three_lines_name_the_seats_that_the_engine_gets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ModelConfig(name="smollm2-135m", backends=(BackendConfig(args=("--max-num-seqs=7",)),))
    announce_plans([model], force=False, is_quiet=False)
    assert "plan: 7 seats, " in capsys.readouterr().err
