"""`carpool eval` from the outside: output, files and exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway_process import until
from mock_engine import Reply, SeenRequest, serving
from typer.testing import CliRunner, Result

from carpool.cli import app
from carpool.evals.eval_run import read_run
from carpool.evals.eval_set import read_eval_set
from carpool.store.database import open_database
from carpool.store.key_store import KeyStore
from carpool.store.recorded_requests import RecordedRequest, RecordedRequestStore
from tests.evals.mock_version import CHAT, Version

START_S = 60
CARPOOL = Path(sys.executable).with_name("carpool")
SET = """
cases:
- {id: right, prompt: Hi, checks: [{contains: Paris}]}
- {id: wrong, prompt: Hi, checks: [{contains: Rome}]}
"""
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*arguments: str | Path) -> Result:
        env = {"CARPOOL_HOME": str(tmp_path / "home"), "CARPOOL_API_KEY": None}
        return CliRunner().invoke(app, ["eval", *map(str, arguments)], env=env)

    return invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "set.yaml"
    path.write_text(SET)
    return path


def test_the_smoke_set_passes_and_is_kept(run: Run, tmp_path: Path) -> None:
    with serving(Version().reply) as engine:
        result = run("run", "smoke", "--against", f"{engine.url}/v1", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["num_passed"] == told["num_answers"] == told["num_planned"]
    assert told["engine_version"] == "1.0"
    (kept,) = (tmp_path / "home" / "evals").iterdir()
    assert len(read_run(kept).results) == told["num_answers"]
    assert str(kept) in result.stderr


def test_checks_that_fail_are_told_with_3(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with serving(Version().reply) as engine:
        result = run("run", file, "--against", engine.url, "--repeats", "2", "--out", out)
    assert result.exit_code == 3
    assert "2 of 4 answers of team-model passed" in result.output
    assert 'wrong: contains: "It is Paris." lacks "Rome"' in result.output
    assert len(read_run(out).results) == 4


def test_an_endpoint_that_dies_leaves_what_was_measured(
    run: Run, file: Path, tmp_path: Path
) -> None:
    left = [3]

    def script(request: SeenRequest) -> Reply:
        left[0] -= request.path == CHAT
        return Version().reply(request) if left[0] >= 0 else Reply(raw=b"")

    out = tmp_path / "out.jsonl"
    with serving(script) as engine:
        options = ("--repeats", "9", "--concurrency", "1", "--out", out)
        result = run("run", file, "--against", engine.url, *options)
    assert result.exit_code == 2
    assert "went away in the middle" in result.output
    assert "The run broke off: 4 of 18 requests were made." in result.output
    assert len(read_run(out).results) == 4


def test_ctrl_c_leaves_what_was_measured(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    held = [2]

    def script(request: SeenRequest) -> Reply:
        held[0] -= request.path == CHAT
        return Version().reply(request) if held[0] >= 0 else Reply(head_delay=60)

    with serving(script) as engine:
        command = ("eval", "run", file, "--against", engine.url, "--repeats", "9", "--out", out)
        process = subprocess.Popen(
            [CARPOOL, *command, "--concurrency", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"CARPOOL_HOME": str(tmp_path)},
        )
        with process:
            until(lambda: sum(each.path == CHAT for each in engine.requests) == 3, START_S)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "The run broke off: 2 of 18 requests were made." in stdout
    assert len(read_run(out).results) == 2


def test_compare_endpoints_and_stored_runs(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    with serving(Version().reply) as engine:
        run("run", "smoke", "--against", engine.url, "--out", old)
        same = run("compare", old, engine.url, "--repeats", "1")
    with serving(Version(words_per_message=5).reply) as engine:
        run("run", "smoke", "--against", engine.url, "--out", new)
    changed = run("compare", old, new)
    as_json = run("compare", old, new, "--json")
    assert same.exit_code == 0, same.output
    assert "Verdict: no difference beyond chance" in same.output
    assert changed.exit_code == as_json.exit_code == 3
    assert "ALARM: the chat template changed" in changed.output
    assert json.loads(as_json.stdout)["findings"][0]["kind"] == "template_changed"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "none.yaml", "--against", "http://127.0.0.1:1"), "cannot read none.yaml"),
        (("run", "smoke", "--against", "http://127.0.0.1:1"), "http://127.0.0.1:1 is down"),
        (("run", "smoke", "--against", "nowhere"), "nowhere is no address"),
        (("compare", "a.jsonl", "b.jsonl"), "cannot read a.jsonl"),
    ],
)
def test_what_is_to_mend_is_told_with_2(run: Run, arguments: tuple[str, ...], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_requests_become_a_set_only_with_consent(run: Run, tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/home/carpool.db")
    _, new = KeyStore(database).add_key_for("ada", None)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    kept = RecordedRequest("cp-1", time.time(), new.key.key_id, new.key.person_id, "m", body)
    RecordedRequestStore(database).insert([kept])
    database.close()
    out = tmp_path / "team.yaml"
    refused = run("record", out)
    assert refused.exit_code == 2
    assert "pass --consent" in refused.output
    assert not out.exists()
    made = run("record", out, "--key", "ada", "--consent")
    assert made.exit_code == 0, made.output
    assert [case.case_id for case in read_eval_set(out).cases] == ["cp-1"]
    assert out.stat().st_mode & 0o077 == 0
    again = run("record", out, "--consent")
    assert "is there already" in again.output
    nothing = run("record", tmp_path / "other.yaml", "--model", "none", "--consent")
    assert "no such request was recorded" in nothing.output


def test_recording_is_switched_on_and_off_by_key(tmp_path: Path) -> None:
    env = {"CARPOOL_HOME": str(tmp_path)}

    def keys(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["keys", *arguments], env=env)

    assert keys("add", "ada").exit_code == 0
    assert keys("record", "ada").exit_code == 2
    on = json.loads(keys("record", "ada", "--days", "2", "--consent", "--json").stdout)
    assert on["record_until"] is not None
    off = keys("record", "ada", "--off")
    assert "Nothing of" in off.output
    assert json.loads(keys("show", "ada", "--json").stdout)["record_until"] is None
