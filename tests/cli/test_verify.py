"""`carpool verify` from the outside: what it keeps, what it says of bad input, how it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mock_engine import MODEL, MockEngine, Reply, SeenRequest, answer, json_reply, serving
from typer.testing import CliRunner, Result

from carpool.cli import app
from carpool.cli.calibrations import Measured, flags_label
from carpool.cli.serve_plan import announce_plans
from carpool.gateway.model_config import BackendConfig, ModelConfig
from carpool.store.calibration_store import CalibrationStore
from carpool.store.database import open_database

Run = Callable[..., Result]
QUICK = ("--budget", "10", "--confidence", "0.5", "--tolerance", "5", "--max-concurrency", "4")
LENGTHS = ("--prompt", "32", "--output", "4")


def steady(request: SeenRequest) -> Reply:
    """A token every other millisecond."""
    return replace(answer(request), piece_delay=0.002)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'carpool.db'}"


@pytest.fixture
def run(tmp_path: Path, database: str) -> Run:
    def invoke(*arguments: str) -> Result:
        env = {"CARPOOL_HOME": str(tmp_path), "CARPOOL_DATABASE": database}
        return CliRunner().invoke(app, ["verify", *arguments], env=env)

    return invoke


def test_a_plan_that_holds_is_kept_and_applied(run: Run, database: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with serving(steady) as engine:
        result = run(
            engine.url, "--at", "2", *QUICK, *LENGTHS, "--apply", "--json", "--html", str(page)
        )
        backend = BackendConfig(engine=engine.url)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["holds"]
    assert report["capacity"]["outcome"] == "at least"
    assert report["capacity"]["max_num_seqs"] == 4
    assert "alone: " in result.stderr
    assert page.read_text().startswith("<!doctype html>")
    calibration = Measured(database).of(backend, MODEL)
    assert calibration is not None
    assert calibration.is_applied
    assert calibration.max_num_seqs == 4
    assert calibration.key.model == MODEL


@pytest.fixture
def measured(run: Run, database: str) -> Callable[[BackendConfig], None]:
    """Keeps a calibration, as if it was of another engine."""

    def keep(backend: BackendConfig) -> None:
        with serving(steady) as engine:
            assert run(engine.url, "--at", "2", *QUICK, *LENGTHS).exit_code == 0
        store = CalibrationStore(open_database(database))
        [calibration] = store.all()
        key = replace(calibration.key, address=backend.engine)
        store.save(replace(calibration, key=key, max_num_seqs=3))

    return keep


def test_serve_admits_what_was_measured_once_it_is_applied(
    measured: Callable[[BackendConfig], None], database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = BackendConfig(engine="http://127.0.0.1:9")
    measured(backend)
    model = ModelConfig(name="fast", backends=(backend,))

    def planned(measured: Measured | None) -> BackendConfig:
        made = announce_plans([model], force=False, is_quiet=False, measured=measured)
        return made.models[0].backends[0]

    assert planned(Measured(database)) == backend
    store = CalibrationStore(open_database(database))
    store.apply(next(one.key for one in store.all() if one.max_num_seqs == 3))
    capsys.readouterr()
    assert planned(Measured(database)).measured_num_seqs == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("measured: fast admits 3 requests at once, as carpool verify found on")
    assert planned(None) == backend


def test_a_plan_that_does_not_hold_is_another_exit_code(run: Run) -> None:
    with serving(steady) as engine:
        result = run(
            engine.url, "--at", "2", "--budget", "10", "--tolerance", "0.001",
            "--confidence", "0.5", "--max-concurrency", "2", *LENGTHS, "--apply",
        )  # fmt: skip
    assert result.exit_code == 3, result.stderr
    assert "DOES NOT HOLD" in result.stdout
    assert "Not applied" in result.stdout


def refusing(status: int, message: str) -> Callable[[SeenRequest], Reply]:
    return lambda request: json_reply({"error": {"message": message}}, status)


def test_an_endpoint_that_is_down_is_named(run: Run) -> None:
    result = run("http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "cannot connect to http://127.0.0.1:9" in result.stderr


def test_a_wrong_key_is_named_and_not_shown(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret-key\n")
    with serving(refusing(401, "bad key secret-key")) as engine:
        result = run(engine.url, "--api-key-file", str(file))
    assert result.exit_code == 2
    assert "the key was refused" in result.stderr
    assert "secret-key" not in result.output


def test_a_model_that_is_not_there_is_named_with_those_that_are(run: Run) -> None:
    with serving(steady) as engine:
        result = run(engine.url, "--model", "other")
    assert result.exit_code == 2
    assert f"has no model 'other'; it has {MODEL}" in result.stderr


def test_an_engine_without_usage_is_measured_all_the_same(run: Run) -> None:
    def without_usage(request: SeenRequest) -> Reply:
        reply = steady(request)
        pieces = tuple(piece for piece in reply.pieces if b'"usage"' not in piece)
        return replace(reply, pieces=pieces) if request.method == "POST" else reply

    with serving(without_usage) as engine:
        result = run(engine.url, "--at", "2", *QUICK, *LENGTHS)
    assert result.exit_code == 0, result.stderr
    assert "the engine reports no usage, so that lengths are not checked" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://127.0.0.1:9", "--", "--threads", "1"], "an engine that runs has its arguments"),
        (["--apply"], "--apply needs requests like those of your people"),
        (["--html", "/nowhere/a.html"], "there is no folder /nowhere"),
        (["--at", "5", "--max-concurrency", "4"], "--at is 5, over --max-concurrency 4"),
        (["--profile", "nobody"], "profile 'nobody' is not known"),
        (["model", "--backend", "nothing"], '"nothing" is no engine'),
        (["http://127.0.0.1:9", "--api-key-file", "/nowhere"], "/nowhere: cannot be read"),
    ],
)
def test_bad_options_are_named(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, database: str) -> None:
    with serving(steady) as engine:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "carpool", "verify", engine.url, "--at", "2",
                "--budget", "60", "--confidence", "0.999", *LENGTHS, "--json",
            ],
            env=os.environ | {"CARPOOL_HOME": str(tmp_path), "CARPOOL_DATABASE": database},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline().startswith("alone: ")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    report = json.loads(stdout)
    assert report["ended"] == "stopped"
    assert report["levels"][0]["concurrency"] == 1


def test_flags_are_the_same_however_they_are_written() -> None:
    assert flags_label(["--b=2", "--a", "1"]) == flags_label(["--a=1", "--b", "2"]) == "--a=1 --b=2"
    assert flags_label([]) == ""


def test_the_engine_is_asked_as_who_it_is(run: Run) -> None:
    """Metrics say which engine it is; its own version goes into the key."""

    def vllm(request: SeenRequest) -> Reply:
        pages = {
            "/metrics": Reply(pieces=(b"vllm:num_requests_running 0\n",), framing="length"),
            "/version": json_reply({"version": "0.19.1"}),
        }
        return pages.get(request.path) or steady(request)

    with serving(vllm) as engine:
        assert isinstance(engine, MockEngine)
        result = run(engine.url, "--at", "2", *QUICK, *LENGTHS, "--json")
    report = json.loads(result.stdout)
    assert (report["engine"], report["version"]) == ("vllm", "0.19.1")
