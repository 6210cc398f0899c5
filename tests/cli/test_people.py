"""`carpool people`, `keys limit` and `admin-key` from the outside."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carpool.cli import app
from carpool.store.key_text import KeyKind, parse_key_text

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments, env={"CARPOOL_HOME": str(tmp_path)})

    return invoke


def output(result: Result) -> object:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_person_has_limits_of_their_own_that_no_key_brings(run: Run) -> None:
    run("keys", "add", "Ana", "--rpm", "60")
    shown = output(run("people", "show", "Ana", "--json"))
    assert isinstance(shown, dict)
    assert (shown["rpm"], shown["weight"], len(shown["keys"])) == (None, 1.0, 1)
    limited = output(
        run(
            "people",
            "limit",
            "Ana",
            *["--daily-tokens", "500", "--weight", "2", "--rpm", "9", "--json"],
        )
    )
    assert limited == shown | {"daily_tokens": 500, "weight": 2.0, "rpm": 9}
    freed = output(run("people", "limit", "Ana", "--none", "rpm", "--tpm", "70", "--json"))
    assert freed == shown | {"daily_tokens": 500, "weight": 2.0, "tpm": 70}
    assert output(run("people", "list", "--json")) == [freed]
    assert "tpm 70, daily_tokens 500" in run("people", "list").stdout
    assert output(run("keys", "show", "Ana", "--json"))["rpm"] == 60  # type: ignore[index]


def test_a_key_s_limits_change_and_the_rest_of_it_stays(run: Run) -> None:
    added = output(
        run("keys", "add", "Ana", *["--rpm", "60", "--tpm", "900", "--models", "fast", "--json"])
    )
    assert isinstance(added, dict)
    secret = added.pop("key")
    arguments = [
        "--rpm",
        "30",
        "--max-in-flight",
        "2",
        "--none",
        "tpm",
        "--none",
        "--max-output-tokens",
        "--json",
    ]
    changed = output(run("keys", "limit", added["key_id"], *arguments))
    assert changed == added | {"rpm": 30, "tpm": None, "max_in_flight": 2}
    assert "max_in_flight      2" in run("keys", "limit", "Ana", "--rpm", "31").stdout
    assert secret not in run("keys", "limit", "Ana", "--rpm", "32").output


def test_a_person_who_has_keys_that_work_is_not_removed_by_mistake(run: Run) -> None:
    added = output(run("keys", "add", "Ana", "--json"))
    refused = run("people", "remove", "Ana")
    assert refused.exit_code == 2
    assert added["key_id"] in refused.stderr  # type: ignore[index]
    removed = run("people", "remove", "Ana", "--revoke-keys")
    assert removed.stdout == f"removed Ana ({added['person_id']})\n"  # type: ignore[index]
    assert output(run("people", "list", "--json")) == output(run("keys", "list", "--json")) == []


def test_an_admin_key_is_printed_once_alone(run: Run) -> None:
    first, second = run("admin-key"), run("admin-key", "--json")
    assert parse_key_text(first.stdout.strip(), KeyKind.ADMIN) is not None
    printed = output(second)
    assert isinstance(printed, dict)
    parsed = parse_key_text(printed["key"], KeyKind.ADMIN)
    assert parsed is not None
    assert parsed.key_id == printed["key_id"]
    assert "before has ended" in first.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["people", "show", "nobody"], "no person 'nobody'"),
        (["people", "limit", "Ana"], "name a limit to change"),
        (["people", "limit", "Ana", "--weight", "0"], "weight: takes 0.01 to 100"),
        (["people", "limit", "Ana", "--rpm", "0"], "--rpm"),
        (["people", "limit", "Ana", "--none", "rps"], "there are rpm"),
        (["people", "limit", "Ana", "--none", "rpm", "--rpm", "5"], "given as well"),
        (["keys", "limit", "Ana"], "name a limit to change"),
        (["keys", "limit", "nobody", "--rpm", "5"], "no such key"),
    ],
)
def test_a_mistake_is_told_and_exits_with_2(run: Run, arguments: list[str], message: str) -> None:
    run("keys", "add", "Ana")
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in " ".join(result.stderr.replace("│", " ").split())
