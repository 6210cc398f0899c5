"""`carpool keys` and `carpool usage` from the outside: output, exit codes, secrets shown once."""

import csv
import io
import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carpool.cli import app
from carpool.store.database import open_database
from carpool.store.key_text import parse_key_text
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow
from carpool.store.usage_store import UsageStore

Run = Callable[..., Result]
Used = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments, env={"CARPOOL_HOME": str(tmp_path)})

    return invoke


@pytest.fixture
def used(tmp_path: Path) -> Used:
    """Put a request of 10 + 5 tokens into the ledger."""

    def insert(request_id: str, person_id: str, key_id: str, model: str, ago_s: float = 0) -> None:
        row = UsageRow(
            request_id,
            time.time() - ago_s,
            person_id,
            key_id,
            model,
            "embedded",
            "chat",
            Lane.INTERACTIVE,
            10,
            2,
            5,
            "reported",
            4.0,
            120.0,
            8.0,
            200.0,
            "completed",
            200,
            True,
            False,
        )
        with closing(open_database(None, {"CARPOOL_HOME": str(tmp_path)})) as database:
            UsageStore(database).insert([row])

    return insert


def test_a_key_is_printed_once_alone(run: Run) -> None:
    added = run("keys", "add", "Ana", "--label", "laptop")
    assert added.exit_code == 0, added.output
    text = added.stdout.strip()
    parsed = parse_key_text(text)
    assert parsed is not None
    secret = text[16:]
    for verb in (["list"], ["show", "Ana"], ["list", "--json"], ["show", "Ana", "--json"]):
        shown = run("keys", *verb)
        assert shown.exit_code == 0, shown.output
        assert parsed.key_id in shown.stdout
        assert secret not in shown.output

    rotated = run("keys", "rotate", parsed.key_id)
    again = parse_key_text(rotated.stdout.strip())
    assert again is not None
    assert again.key_id == parsed.key_id
    assert again.secret != parsed.secret
    revoked = run("keys", "revoke", "Ana")
    assert revoked.stdout == f"revoked {parsed.key_id} (laptop) of Ana\n"
    assert json.loads(run("keys", "list", "--json").stdout)[0]["state"] == "revoked"


def test_options_end_up_in_the_key(run: Run) -> None:
    arguments = "--models fast,deep --rpm 60 --tpm 1000 --max-in-flight 4 --max-prompt-tokens 100"
    more = "--max-output-tokens 50 --daily-tokens 7000 --monthly-tokens 8000 --weight 2"
    last = "--expires 2099-01-31 --lane batch --private --json"
    added = json.loads(run("keys", "add", "Ana", *f"{arguments} {more} {last}".split()).stdout)
    assert parse_key_text(added.pop("key")) is not None
    assert json.loads(run("keys", "show", added["key_id"], "--json").stdout) == added
    expected = {
        "person": "Ana",
        "label": "Ana",
        "weight": 2.0,
        "models": ["deep", "fast"],
        "rpm": 60,
        "tpm": 1000,
        "max_in_flight": 4,
        "max_prompt_tokens": 100,
        "max_output_tokens": 50,
        "daily_tokens": 7000,
        "monthly_tokens": 8000,
        "lane": "batch",
        "is_private": True,
        "expires_at": "2099-01-31T00:00:00Z",
        "state": "works",
    }
    assert added | expected == added
    assert "7,000" in run("keys", "show", "Ana").stdout
    assert "deep, fast" in run("keys", "list").stdout


def test_a_span_is_from_now_on(run: Run) -> None:
    run("keys", "add", "Ana", "--expires", "30d")
    expires = json.loads(run("keys", "list", "--json").stdout)[0]["expires_at"]
    moment = time.time() + 30 * 86_400
    days = {time.strftime("%Y-%m-%d", time.gmtime(moment + slack)) for slack in (-60, 60)}
    assert expires[:10] in days


def test_usage_of_a_key_says_what_is_left(run: Run, used: Used) -> None:
    added = json.loads(run("keys", "add", "Ana", "--monthly-tokens", "9000", "--json").stdout)
    used("1", added["person_id"], added["key_id"], "fast")
    used("2", "ben", "benkey", "fast")
    mine = run("keys", "usage", "Ana").stdout
    assert "tokens this month: 15 of 9,000\n" in mine
    assert "benkey" not in mine
    everybody = json.loads(run("keys", "usage", "--json").stdout)
    assert everybody["tokens_this_month"] == 30
    assert {row["name"] for row in everybody["keys"]} == {"Ana", "benkey"}


def test_usage_is_summed_up_by_what_is_asked(run: Run, used: Used) -> None:
    used("1", "ana", "k1", "fast")
    used("2", "ana", "k2", "deep")
    used("3", "ben", "k3", "fast", 10 * 86_400)
    by_person = json.loads(run("usage", "--json").stdout)
    assert [(row["name"], row["num_requests"]) for row in by_person] == [("ana", 2), ("ben", 1)]
    recent = json.loads(run("usage", "--by", "model", "--since", "7d", "--json").stdout)
    assert {row["name"]: row["num_requests"] for row in recent} == {"fast": 1, "deep": 1}
    older = json.loads(run("usage", "--by", "key", "--until", "7d", "--json").stdout)
    assert [row["group_id"] for row in older] == ["k3"]
    table = run("usage", "--by", "day").stdout.splitlines()
    header = " ".join(table[0].split())
    assert header == "day requests failed prompt cached output queue ms ttft ms"
    assert len(table) == 3


def test_csv_can_be_read_and_holds_no_formula(run: Run, used: Used) -> None:
    used("1", "ana", "k1", '=HYPERLINK("http://x")')
    used("2", "ana", "k1", "[red]a, b[/red]")
    rows = list(csv.DictReader(io.StringIO(run("usage", "--by", "model", "--csv").stdout)))
    assert {row["name"] for row in rows} == {'\'=HYPERLINK("http://x")', "[red]a, b[/red]"}
    assert rows[0]["prompt_tokens"] == "10"
    assert "[red]a, b[/red]" in run("usage", "--by", "model").stdout


def test_nothing_used_is_an_empty_table(run: Run) -> None:
    assert json.loads(run("usage", "--json").stdout) == []
    assert len(run("usage").stdout.splitlines()) == 1
    assert run("keys", "list").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nobody"], "no such key and no such person"),
        (["revoke", "cp-aaaaaaaaaaaa-secret"], "no such key"),
        (["add", " "], "name: takes 1 to 100 printable characters"),
        (["add", "Ana", "--weight", "0"], "weight: takes 0.01 to 100"),
        (["add", "Ana", "--models", ","], "models: takes 1 to 100"),
        (["add", "Ana", "--expires", "2001-01-01"], "expires_at: must be in the future"),
        (["list", "--database", "mysql://x"], "write sqlite:///"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run: Run, arguments: list[str], message: str
) -> None:
    result = run("keys", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("carpool: ")
    assert message in result.stderr
    assert "secret" not in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["soon", "30", "-1d", "2027-13-01", "9999999d"])
def test_a_time_that_is_none_is_refused_with_examples(run: Run, text: str) -> None:
    result = run("keys", "add", "Ana", "--expires", text)
    assert result.exit_code == 2
    assert "2027-01-31" in result.stderr
