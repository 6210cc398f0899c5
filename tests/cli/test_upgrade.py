"""`carpool upgrade`, rehearsed with engines that are none: stopped, let through, and back."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gateway_process import MODEL, GatewayProcess, gateway_process, until
from typer.testing import CliRunner, Result

from carpool.cli import app
from carpool.store.admin_key import AdminKeyStore

ENGINE = Path(__file__).parents[1] / "evals" / "mock_version.py"
CONFIG = f"""
[[models]]
name = "{MODEL}"
[[models.backends]]
engine = "vllm"
version = "1.0"
program = ["{sys.executable}", "{ENGINE}", "{{version}}"]
"""
Upgrade = Callable[..., Result]


def upgrader(gateway: GatewayProcess, home: Path) -> Upgrade:
    """`carpool upgrade` against this gateway, with the rest of its arguments."""
    assert gateway.admin_url is not None
    key = AdminKeyStore(gateway.store.database).renew().text
    env = {"CARPOOL_ADMIN_KEY": key, "CARPOOL_HOME": str(home / "data")}
    fixed = ("upgrade", "--url", gateway.admin_url)

    def upgrade(*arguments: str) -> Result:
        return CliRunner().invoke(app, (*fixed, *arguments), env=env)

    return upgrade


def asked(gateway: GatewayProcess) -> str:
    """The engine that answers now, by the ledger."""
    num_rows = len(gateway.rows(gateway.visitor))
    assert gateway.visitor.ask().status_code == 200
    until(lambda: len(gateway.rows(gateway.visitor)) > num_rows)
    return str(gateway.rows(gateway.visitor)[-1]["backend"])


def test_an_upgrade_is_stopped_let_through_and_taken_back(tmp_path: Path) -> None:
    with gateway_process("", tmp_path, "--admin-port", "0", config=CONFIG) as gateway:
        upgrade = upgrader(gateway, tmp_path)
        stopped = upgrade("--to", "2.0-template", "--repeats", "2", "--no-bench")
        assert stopped.exit_code == 3, stopped.output
        assert f"The gate stopped {MODEL}@2.0-template; {MODEL} serves on" in stopped.output
        assert "the chat template changed" in stopped.output
        assert asked(gateway) == MODEL

        passed = upgrade(
            *("--to", "1.1", "--repeats", "2", "--json"),
            *("--bench-seconds", "1", "--bench-streams", "2", "--max-slowdown", "1000"),
        )
        assert passed.exit_code == 0, passed.output
        told = json.loads(passed.stdout)
        assert told["has_gone_over"]
        assert told["reasons"] == []
        assert told["bench"]["new"]["num_failed"] == 0
        assert asked(gateway) == f"{MODEL}@1.1"

    lock = json.loads((tmp_path / "carpool.lock").read_text())["models"][MODEL]
    assert lock["candidate"] is None
    assert lock["engines"][0]["current"]["engine_version"] == "1.1"
    assert lock["engines"][0]["previous"]["backend"]["version"] == "1.0"

    with gateway_process("", tmp_path, "--admin-port", "0", config=CONFIG) as gateway:
        upgrade = upgrader(gateway, tmp_path)
        nothing = upgrade("--to", "1.1")
        assert nothing.exit_code == 2
        assert "runs just this already" in nothing.output
        back = upgrade("--back")
        assert back.exit_code == 0, back.output
        assert f"{MODEL} is back on vllm 1.0." in back.output
        assert asked(gateway) == f"{MODEL}@1.0"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgrade]:
    """A gateway that no test changes."""
    home = tmp_path_factory.mktemp("upgrade")
    with gateway_process("", home, "--admin-port", "0", config=CONFIG) as gateway:
        yield upgrader(gateway, home)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give one of --to VERSION, --back and --abandon"),
        (("--to", "1.1", "--back"), "give one of --to VERSION, --back and --abandon"),
        (("--back",), "has not been upgraded: nothing to go back to"),
        (("other", "--to", "1.1"), f"the gateway has no model 'other'; it has {MODEL}"),
        (("--to", "../1.1"), "version is '../1.1', but must be letters, digits"),
        (("--to", "1.1", "--command", "/no/{version}/vllm"), "there is no program /no/1.1/vllm"),
        (("--to", "3.0", "--no-bench"), "the new engine ends again and again"),
        (("--to", "1.1", "--backend", "llama.cpp"), "does not depend on the version"),
        (("--to", "1.1", "--set", "none.yaml"), "cannot read none.yaml"),
    ],
)
def test_what_is_to_mend_is_told_and_changes_nothing(
    served: Upgrade, arguments: tuple[str, ...], told: str
) -> None:
    result = served(*arguments)
    assert result.exit_code == 2, result.output
    assert told in result.output
    ended = served("--abandon")
    assert "no engine was left behind" in ended.output


def test_a_gateway_that_is_not_there_or_refuses_the_key(served: Upgrade) -> None:
    away = served("--to", "1.1", "--url", "http://127.0.0.1:1")
    assert away.exit_code == 2
    assert "no admin API of a gateway at http://127.0.0.1:1" in away.output


def test_a_wrong_admin_key_is_not_shown(served: Upgrade, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("cpa-wrong-secret")
    result = served("--to", "1.1", "--admin-key-file", str(file))
    assert result.exit_code == 2
    assert "the gateway refuses: no valid admin key" in result.output
    assert "secret" not in result.output
