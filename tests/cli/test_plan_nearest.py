"""What does not fit says what would, and a hub that is away says what else there is."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carpool.cli import app

HUB = """
class errors:
    class HfHubHTTPError(Exception): pass
def hf_hub_download(repo, name):
    raise OSError("We couldn't connect to 'https://huggingface.co'")
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["qwen3-32b", "--gpu", "4090"], "--weights awq"),
        (["llama-3.1-70b-instruct", "--gpu", "A100 SXM4 80GB"], "--weights awq"),
        (["llama-3.1-405b-instruct", "--gpu", "H100 SXM5"], "--gpus 4 --weights awq"),
        (
            ["qwen3-8b", "--gpu", "RTX 4090", "--max-model-len", "40960", "--weights", "bf16",
             "--memory-share", "0.85"],
            "--max-model-len 20480",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_what_would(arguments: list[str], options: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "does not fit" in result.stdout
    assert f"It would fit with {options}." in result.stdout
    again = run(*arguments[:3], *options.split(), *arguments[5:])
    assert "does not fit: " not in again.stdout.splitlines()[0]


@pytest.mark.parametrize("has_client", [True, False])
def test_a_hub_that_cannot_be_reached_leaves_files_and_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_client: bool
) -> None:
    monkeypatch.delitem(sys.modules, "huggingface_hub", raising=False)
    if has_client:
        (tmp_path / "huggingface_hub.py").write_text(HUB)
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setattr("carpool.engine.hub_config.find_spec", lambda name: None)
    try:
        result = run("someorg/some-model", "--gpu", "RTX 4090")
    finally:
        sys.modules.pop("huggingface_hub", None)
    assert result.exit_code == 2
    said = "cannot be reached or does not have it" if has_client else "needs a client"
    assert said in result.stderr
    assert "give the path of its config.json or folder" in result.stderr
    assert "carpool plan --models lists it" in result.stderr
