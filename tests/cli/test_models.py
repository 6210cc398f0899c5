"""`carpool pull` and `carpool models` from the outside: output, exit codes, stderr."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carpool import __version__
from carpool.cli import app
from carpool.models.cache import ModelCache

Run = Callable[..., Result]


@pytest.fixture
def run(cache: ModelCache) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments, env={"CARPOOL_HOME": str(cache.home)})

    return invoke


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"carpool {__version__}\n")


def test_help_lists_the_exit_codes(run: Run) -> None:
    assert "Exit codes" in run("--help").stdout
    assert "Exit codes" in run("pull", "--help").stdout


def test_pull_list_remove(run: Run, write_gguf: Callable[..., Path]) -> None:
    pulled = run("pull", str(write_gguf()), "--json")
    assert pulled.exit_code == 0, pulled.stderr
    model = json.loads(pulled.stdout)
    assert (model["name"], model["quantization"]) == ("tiny", "F16")
    assert "tiny: llama" in run("pull", "tiny").stdout

    rows = json.loads(run("models", "--json").stdout)
    assert [row["name"] for row in rows] == ["smollm2-135m", "tiny"]
    table = run("models").stdout
    assert "not fetched" in table
    assert "tiny" in table

    assert "removed tiny" in run("models", "rm", "tiny").stdout
    assert not Path(model["folder"]).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pull", "smolm2-135m"], "did you mean 'smollm2-135m'?"),
        (["pull", "./none.gguf"], "no such file"),
        (["models", "rm", "none"], "no model named 'none'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run: Run, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("carpool: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_cut_file_is_one_line_and_exit_code_2(run: Run, write_gguf: Callable[..., Path]) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:5000])
    result = run("pull", str(path))
    assert result.exit_code == 2
    assert "truncated: needs" in result.stderr.splitlines()[-1]


def test_ctrl_c_is_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("carpool.engine.resolve.resolve", interrupt)
    result = run("pull", "smollm2-135m")
    assert (result.exit_code, result.stderr) == (130, "carpool: stopped\n")


def test_help_imports_no_executor() -> None:
    script = "import sys; import carpool.cli; print([m for m in sys.modules if 'openvino' in m])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"
