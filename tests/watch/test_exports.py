"""Rules for Prometheus, and a dashboard for Grafana: promtool's word, and that all figures in
them exist."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from metrics_doc import documented

from carpool.watch.alert_rules import DEFAULT_RULES, RuleConfig, rules_with
from carpool.watch.grafana import WIDTH, dashboard
from carpool.watch.prometheus_rules import (
    EXPRESSIONS,
    GATEWAY_ALONE,
    alert_name,
    rules_file,
)
from carpool.watch.severity import Severity

FIGURES = re.compile(r"carpool_[a-z_]+")


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = os.environ.get("CARPOOL_TEST_PROMTOOL")
    if not program:
        pytest.skip("CARPOOL_TEST_PROMTOOL names no promtool")
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def exist(promql: str) -> bool:
    names = documented(is_gateway=True).keys() | documented(is_gateway=False).keys()
    found = {name.removesuffix("_bucket") for name in FIGURES.findall(promql)}
    return found <= names


@pytest.fixture
def rules_path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yml"
    path.write_text(rules_file(DEFAULT_RULES))
    return path


def test_every_rule_is_there_or_the_gateways_alone():
    assert {*EXPRESSIONS, *GATEWAY_ALONE} == set(DEFAULT_RULES)
    assert not set(EXPRESSIONS) & set(GATEWAY_ALONE)


def test_rules_are_about_figures_that_exist():
    groups = yaml.safe_load(rules_file(DEFAULT_RULES))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert all(exist(rule["expr"]) for rule in rules)


def test_promtool_takes_them(rules_path):
    done = promtool("check", "rules", "--lint-fatal", rules_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_person_changed_is_in_them():
    changed = rules_with(
        {
            "sustained_queue": RuleConfig(for_s=7, resolve_s=8, severity=Severity.INFO),
            "bursts": RuleConfig(enabled=False),
        }
    )
    rules = {
        each["alert"]: each for each in yaml.safe_load(rules_file(changed))["groups"][0]["rules"]
    }
    assert "CarpoolBursts" not in rules
    queue = rules["CarpoolSustainedQueue"]
    assert (queue["for"], queue["keep_firing_for"]) == ("7s", "8s")
    assert queue["labels"] == {"severity": "info"}


def _series(name: str, values: str) -> dict[str, str]:
    return {"series": f"carpool_gateway_{name}", "values": values}


def _histogram(
    name: str, low: str, high: str, low_values: str, values: str
) -> list[dict[str, str]]:
    buckets = ((low, low_values), (high, values), ("+Inf", values))
    return [_series(f'{name}_bucket{{model="m", le="{le}"}}', each) for le, each in buckets]


TTFT, TPOT = "time_to_first_token_seconds", "time_per_output_token_seconds"
MODEL = '{model="m"}'
REPLICA = '{model="m", replica="r"}'
REFUSED = 'requests_total{model="m", outcome="queue_full"}'
COMPLETED = 'requests_total{model="m", outcome="completed"}'
PROMPT = 'tokens_total{model="m", kind="prompt"}'

# By rule: minutes between two samples, how many there are, and what they are.
IN_TROUBLE = {
    "model_down": (1, 5, [_series(f"replicas_ready{MODEL}", "0x5")]),
    "database_away": (1, 5, [_series("database_away", "1x5")]),
    "backend_flapping": (1, 31, [_series(f"replica_restarts_total{REPLICA}", "0+1x31")]),
    "sustained_queue": (1, 30, [_series(f"requests_waiting{MODEL}", "3x30")]),
    "capacity": (5, 20, [_series(REFUSED, "0+30x20")]),
    "bursts": (
        5,
        20,
        [_series(f"requests_waiting{MODEL}", "0 0 9 " * 7), _series(f"seats{MODEL}", "4x20")],
    ),
    "kv_pressure": (
        1,
        30,
        [_series(f"kv_tokens_reserved{MODEL}", "99x30"), _series(f"kv_tokens{MODEL}", "100x30")],
    ),
    "ttft_climb": (5, 72, _histogram(TTFT, "0.5", "4", "0+45x48 2160x24", "0+45x72")),
    "stream_slowdown": (
        5,
        288,
        [
            *_histogram(TPOT, "0.05", "0.4", "0+45x280 12600x8", "0+45x288"),
            _series(f"requests_in_flight{MODEL}", "4x288"),
            _series(f"seats{MODEL}", "4x288"),
        ],
    ),
    "context_creep": (
        60,
        120,
        [_series(PROMPT, "0+24000x100 2400000+114000x20"), _series(COMPLETED, "0+60x120")],
    ),
}
CALM = [
    _series(f"replicas_ready{MODEL}", "1x288"),
    _series("database_away", "0x288"),
    _series(f"replica_restarts_total{REPLICA}", "1x288"),
    _series(f"requests_waiting{MODEL}", "0 0 1 0 0 " * 58),
    _series(f"requests_in_flight{MODEL}", "1 2 1 4 0 " * 58),
    _series(f"seats{MODEL}", "4x288"),
    _series(f"kv_tokens_reserved{MODEL}", "40x288"),
    _series(f"kv_tokens{MODEL}", "100x288"),
    *_histogram(TTFT, "0.5", "4", "0+45x288", "0+45x288"),
    *_histogram(TPOT, "0.05", "0.4", "0+45x288", "0+45x288"),
    _series(PROMPT, "0+2000x288"),
    _series(COMPLETED, "0+5x288"),
    _series(REFUSED, "1x288"),
    _series('alert_destination_failing{destination="log"}', "0x288"),
    _series("keys_age_seconds", "0.5x288"),
]


@pytest.mark.parametrize("minutes", [1, 5, 60])
def test_every_rule_fires_in_its_trouble_and_none_on_a_calm_day(rules_path, minutes):
    assert IN_TROUBLE.keys() == EXPRESSIONS.keys()
    tests = [
        _trouble(rule, minutes, num_samples, series)
        for rule, (every, num_samples, series) in IN_TROUBLE.items()
        if every == minutes
    ]
    if minutes == 5:
        tests.append(_calm())
    path = rules_path.with_name("tests.yml")
    content = {"rule_files": [rules_path.name], "evaluation_interval": f"{minutes}m"}
    path.write_text(yaml.safe_dump(content | {"tests": tests}))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def _trouble(rule: str, minutes: int, num_samples: int, series: list) -> dict:
    expected = {
        "expr": f'count(ALERTS{{alertname="{alert_name(rule)}", alertstate="firing"}})',
        "eval_time": f"{minutes * num_samples}m",
        "exp_samples": [{"value": 1}],
    }
    return {
        "interval": f"{minutes}m",
        "input_series": series,
        "promql_expr_test": [expected],
    }


def _calm() -> dict:
    return {
        "interval": "5m",
        "input_series": CALM,
        "promql_expr_test": [
            {"expr": "count(ALERTS)", "eval_time": f"{minutes}m", "exp_samples": []}
            for minutes in range(5, 1440, 95)
        ],
    }


# ---------------------------------------------------------------------- Grafana


@pytest.fixture(scope="module")
def board() -> dict:
    return json.loads(dashboard())


def test_panels_have_ids_of_their_own_and_do_not_overlap(board):
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(0 <= x < WIDTH for x, _ in cells)


def test_every_panel_asks_the_data_source_that_is_chosen(board):
    kinds = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
    assert kinds == {"datasource": "datasource", "model": "query"}
    for panel in board["panels"]:
        assert panel["type"] in {"timeseries", "stat"}
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_panels_show_figures_that_exist_in_queries_that_promtool_takes(board, tmp_path):
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert all(exist(query) for query in queries)
    plain = [query.replace("$__rate_interval", "5m").replace("$model", ".*") for query in queries]
    assert not any("$" in query for query in plain)
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(plain)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_the_model_that_grafana_imports(board):
    needed = {"uid", "title", "schemaVersion", "panels", "templating", "time", "annotations"}
    assert needed <= board.keys()
    assert "id" not in board
    assert "__inputs" not in board
