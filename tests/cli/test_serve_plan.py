"""The plan that `carpool serve` makes first."""

import pytest

from carpool.cli.serve_plan import announce_plan, plan_to_serve
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
