"""`carpool bench`: options, results and exit codes, against an engine of no cost."""

import csv
import json
import re
import signal
import subprocess
import sys
import time

import pytest
from mock_engine import Reply, answer, json_reply, serving
from typer.testing import CliRunner

from carpool.cli import app
from carpool.store.database import open_database
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow
from carpool.store.usage_store import UsageStore

FEW = ("--max-requests", "6", "--ramp", "0", "--warm-up", "0", "--output-tokens", "3")


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("CARPOOL_API_KEY", raising=False)


def bench(*arguments: str):
    """The generator's lag is not judged here: this machine may be busy."""
    return CliRunner().invoke(app, ["bench", *arguments, "--max-lag", "1e6"])


def test_a_screen_and_three_files(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "a.csv", "a.html")]
    with serving() as engine:
        options = [part for path in paths for part in (f"--{path.suffix[1:]}", str(path))]
        done = bench(engine.url, "-c", "1,2", *FEW, *options)
    assert done.exit_code == 0, done.output
    assert "TTFT ms" in done.stdout
    assert "1 stream:" in done.stdout
    document = json.loads(paths[0].read_text())
    assert [level["num_requests"] for level in document["levels"]] == [6, 6]
    assert len(document["levels"][0]["requests"]) == 6
    rows = list(csv.DictReader(paths[1].read_text().splitlines()))
    assert len(rows) == 12
    assert rows[0]["error"] == ""
    page = paths[2].read_text()
    assert page.count("<svg") == 11  # four of each level, three of both
    assert not re.search(r"<script|src=|href=|@import|url\(", page)


def test_json_on_stdout_and_nothing_else():
    with serving() as engine:
        done = bench(engine.url, *FEW, "--json", "-")
    assert json.loads(done.stdout)["levels"][0]["num_ok"] == 6


def test_a_missed_limit_is_exit_code_3():
    with serving() as engine:
        done = bench(engine.url, *FEW, "--ttft", "0.001")
    assert done.exit_code == 3
    assert "goodput 0.0%" in done.stdout


def test_too_many_errors_are_exit_code_3_and_what_was_measured_is_shown(tmp_path):
    """What the server complains of is text: no markup of a page, no formula of a spreadsheet."""

    def script(request):
        if request.method == "POST":
            posted.append(request)
        return json_reply({"error": "=<b>full"}, 503) if len(posted) > 4 else answer(request)

    posted = []
    files = ("--html", str(tmp_path / "a.html"), "--csv", str(tmp_path / "a.csv"))
    with serving(script) as engine:
        done = bench(engine.url, *FEW, "--max-errors", "1", *files)
    assert done.exit_code == 3
    assert "1 x overloaded: =<b>full" in done.stdout
    assert "=&lt;b&gt;full" in (tmp_path / "a.html").read_text()
    assert ",'=<b>full," in (tmp_path / "a.csv").read_text()


def test_a_generator_that_was_late_is_exit_code_3():
    with serving() as engine:
        done = CliRunner().invoke(app, ["bench", engine.url, "--rate", "50", *FEW, "--max-lag=-1"])
    assert done.exit_code == 3
    assert "NOT CERTIFIED" in done.stdout


def test_a_key_from_a_file_is_sent_and_not_shown(tmp_path):
    path = tmp_path / "key"
    path.write_text("sk-secret\n")
    with serving() as engine:
        done = bench(engine.url, *FEW, "--api-key-file", str(path), "--json", "-")
        sent = {request.headers.get("authorization") for request in engine.requests}
    assert sent == {"Bearer sk-secret"}
    assert "sk-secret" not in done.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-c", "0"), "whole numbers from 1"),
        (("--rate", "fast"), "'fast' is not a number"),
        (("-c", "1", "--rate", "1"), "--concurrency and --rate exclude each other"),
        (("--input-tokens", "0"), "1 or more"),
        (("--max-seconds", "0"), "max_seconds is 0"),
        (("--api-key-file", "/nowhere/key"), "cannot be read"),
        (("--html", "/nowhere/a.html"), "cannot be written"),
        (("--prompts", "/nowhere/a.txt"), "cannot be read"),
        (("--trace", "{bad}"), "row 2: field ContextTokens is 'x'"),
        (("--model", "other"), "no model 'other'"),
    ],
)
def test_faults_are_told_in_a_line_before_anything_is_sent(options, says, tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,x,2\n")
    with serving() as engine:
        done = bench(engine.url, *(option.replace("{bad}", str(bad)) for option in options))
        posted = [request for request in engine.requests if request.method == "POST"]
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
    assert not posted


def test_an_endpoint_that_is_down_is_exit_code_2():
    done = bench("http://127.0.0.1:9")
    assert done.exit_code == 2
    assert "is it running?" in done.stderr


def test_a_trace_is_replayed_with_its_lengths(tmp_path):
    trace = tmp_path / "a.csv"
    rows = "".join(f"{second / 10},100,{second + 1}\n" for second in range(4))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    with serving() as engine:
        done = bench(engine.url, "--trace", str(trace), "--speed", "10", "--json", "-")
    requests = json.loads(done.stdout)["levels"][0]["requests"]
    assert [each["output_tokens"] for each in requests] == [1, 2, 3, 4]


def test_prompts_as_long_as_those_of_the_ledger(tmp_path):
    url = f"sqlite:///{tmp_path}/carpool.db"
    database = open_database(url)
    UsageStore(database).insert([usage_row(number) for number in range(3)])
    database.close()
    with serving() as engine:
        done = bench(engine.url, "--ledger", "--database", url, *FEW, "--json", "-")
    requests = json.loads(done.stdout)["levels"][0]["requests"]
    assert sorted(each["output_tokens"] for each in requests) == [11, 11, 12, 12, 13, 13]


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    path = tmp_path / "a.json"
    with serving(lambda request: answer(request) if len(posts(engine)) < 9 else silent) as engine:
        silent = Reply(stall_after=0)
        command = [sys.executable, "-m", "carpool", "bench", engine.url, "--ramp", "0"]
        process = subprocess.Popen(
            [*command, "--warm-up", "0", "--json", str(path)], stdout=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 30
        while len(posts(engine)) < 9 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped by hand" in output
    assert json.loads(path.read_text())["levels"][0]["num_ok"] == 6  # two were first words


def posts(engine) -> list:
    return [request for request in engine.requests if request.method == "POST"]


def usage_row(number: int) -> UsageRow:
    return UsageRow(
        request_id=str(number),
        started_at=1000.0 + number,
        person_id="p",
        key_id="k",
        model="m",
        backend="b",
        api="chat",
        lane=Lane.INTERACTIVE,
        prompt_tokens=100,
        cached_tokens=0,
        output_tokens=11 + number,
        usage_source="reported",
        queue_ms=0.0,
        ttft_ms=1.0,
        tpot_ms=1.0,
        total_ms=10.0,
        outcome="completed",
        status=200,
        is_stream=True,
        is_fallback=False,
    )
