"""`carpool plan` with what `carpool verify` measured."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carpool.cli import app
from carpool.planning.calibration import Calibration, CalibrationKey
from carpool.store.calibration_store import CalibrationStore
from carpool.store.database import open_database

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        env = {"CARPOOL_HOME": str(tmp_path)}
        return CliRunner().invoke(app, ["plan", *arguments], env=env)

    return invoke


def test_what_was_measured_goes_before_what_is_assumed(run: Run, tmp_path: Path) -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct"
    key = CalibrationKey(engine="vllm", version="0.19", model=model, device="NVIDIA H200 SXM")
    arguments = (model, "--gpu", "H200", "--json")
    before = json.loads(run(*arguments).stdout)
    key = replace(key, device=before["device"]["name"])
    CalibrationStore(open_database(None, {"CARPOOL_HOME": str(tmp_path)})).save(
        Calibration(
            key=key, measured_at=1.8e9, step_fixed_s=0.02, step_per_seq_s=0.001,
            prefill_tokens_per_s=10_000.0, overhead_bytes=3 * 2**30, kv_tokens=None,
            max_num_seqs=40, outcome="resolved", confidence=0.8, tolerance_s=2.0,
            prompt_tokens=1000, output_tokens=100, levels=(),
        )
    )  # fmt: skip
    plan = json.loads(run(*arguments).stdout)
    step = plan["speed"]["planned"]["step_seconds"]
    assert step["known"] == "measured"
    assert step["value"] == pytest.approx(0.02 + 0.001 * plan["speed"]["planned"]["sequences"])
    assert plan["memory_bytes_per_device"]["non_torch"]["known"] == "measured"
    assert json.loads(run(*arguments, "--no-calibration").stdout)["speed"] == before["speed"]
