"""`carpool lab batching` from the outside: its JSON, its files, its words, its refusals."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carpool.cli import app
from carpool.lab.batching_lab import LabReport
from carpool.lab.findings import times


@pytest.mark.parametrize(
    ("new", "old", "words"),
    [
        (24.0, 10.0, "2.4 times that"),
        (10.2, 10.0, "about that"),
        (9.8, 10.0, "about that"),
        (5.0, 10.0, "only 0.50 times that"),
    ],
)
def test_ratios_are_told_as_they_are(new: float, old: float, words: str) -> None:
    assert times(new, old, "that") == words


def test_figures_from_a_busy_machine_come_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert LabReport("m", "a machine", 0, 0.1, ()).warning is None
    assert "load average 1.9 on 2 CPUs" in (LabReport("m", "a machine", 0, 1.9, ()).warning or "")


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("lab") / "plots"
    arguments = ["lab", "batching", "--quick", "--json", "--out", str(folder)]
    return CliRunner().invoke(app, arguments), folder


@pytest.mark.model
def test_it_measures_three_things(quick_run: tuple[Result, Path]) -> None:
    result, _ = quick_run
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    batching, memory, fleet = (
        told[name]["runs"] for name in ("batching", "kv_memory", "prefix_cache")
    )
    assert [run["max_num_seqs"] for run in batching] == [1, 2, 2]
    assert all(run["output_tok_s"] > 0 for run in batching)
    assert batching[0]["mean_num_running"] == 1.0
    reserved, paged = memory
    assert 0 < paged["wasted_share"] < reserved["wasted_share"] < 1
    assert paged["peak_num_running"] >= reserved["peak_num_running"]
    off, on = fleet
    assert off["prompt_tokens_computed"] == off["prompt_tokens"]
    assert on["prompt_tokens_computed"] < 0.75 * on["prompt_tokens"]
    for name in ("batching", "kv_memory", "prefix_cache"):
        assert told[name]["sentence"].endswith(".")


@pytest.mark.model
def test_it_draws_a_png_and_an_svg(quick_run: tuple[Result, Path]) -> None:
    result, folder = quick_run
    paths = [folder / "lab-batching.png", folder / "lab-batching.svg"]
    assert json.loads(result.stdout)["files"] == [str(path) for path in paths]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    svg = paths[1].read_text()
    for words in ("one at a time", "continuous", "reserved", "paged", "output tokens / s"):
        assert words in svg


@pytest.mark.model
def test_progress_is_told_on_stderr_and_nothing_else(quick_run: tuple[Result, Path]) -> None:
    result, _ = quick_run
    assert "continuous ..." in result.stderr
    assert len(result.stdout.splitlines()) == 1


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(app, ["lab", "batching"])
    assert result.exit_code == 2
    assert "pip install 'carpool[lab]'" in result.stderr


def test_a_model_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    arguments = ["lab", "batching", "--out", str(tmp_path), "--model", "./no-such.gguf"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("carpool: ")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["lab", "batching", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert result.stderr.startswith("carpool: --out ")
    assert "give another folder" in result.stderr
