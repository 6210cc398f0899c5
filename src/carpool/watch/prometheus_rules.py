"""The rules as Prometheus has them, over the figures of `/metrics` (docs/metrics.md).

No figure there is about a person, and none about the plan: the rules that need those are the
gateway's alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from carpool.watch.alert_rules import AlertRule
from carpool.watch.severity import Severity

GATEWAY_ALONE = ("memory_limit", "noisy_key", "plan_drift", "calibration_old")


class Expression(NamedTuple):
    """`promql` has a value for each model (or replica, or destination) that is in trouble;
    `description` may have Prometheus' {{ $labels.x }} and {{ $value }}."""

    promql: str
    summary: str
    description: str
    remedy: str


def rules_file(rules: Mapping[str, AlertRule]) -> str:
    """YAML that promtool accepts."""
    groups: list[dict[str, Any]] = [
        {
            "name": "carpool",
            "rules": [
                _alert(name, expression, rules[name])
                for name, expression in EXPRESSIONS.items()
                if name in rules
            ],
        },
        {
            "name": "carpool-itself",
            "rules": [_alert(rule.name, expression, rule) for rule, expression in ITSELF],
        },
    ]
    head = (
        "# Alerts of Carpool, made by: carpool watch export prometheus\n"
        f"# The gateway alone can judge: {', '.join(GATEWAY_ALONE)} (docs/alerts.md).\n"
    )
    return head + yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)


def alert_name(rule: str) -> str:
    """ "ttft_climb" is CarpoolTtftClimb."""
    return "Carpool" + "".join(part.capitalize() for part in rule.split("_"))


def _alert(name: str, expression: Expression, rule: AlertRule) -> dict[str, Any]:
    return {
        "alert": alert_name(name),
        "expr": expression.promql,
        "for": _duration(rule.for_s),
        "keep_firing_for": _duration(rule.resolve_s),
        "labels": {"severity": (rule.severity or rule.usual).value},
        "annotations": {
            "summary": expression.summary,
            "description": expression.description,
            "remedy": expression.remedy,
        },
    }


def _duration(seconds: float) -> str:
    return f"{round(seconds)}s"


def _quantile(q: float, metric: str, window: str, offset: str = "") -> str:
    past = f" offset {offset}" if offset else ""
    rate = f"rate(carpool_gateway_{metric}_bucket[{window}]{past})"
    return f"histogram_quantile({q}, sum by (model, le) ({rate}))"


def _prompt_tokens(window: str, offset: str = "") -> str:
    """Of a completed request, on average."""
    past = f" offset {offset}" if offset else ""
    tokens = f'increase(carpool_gateway_tokens_total{{kind="prompt"}}[{window}]{past})'
    requests = f'increase(carpool_gateway_requests_total{{outcome="completed"}}[{window}]{past})'
    return f"sum by (model) ({tokens}) / sum by (model) ({requests})"


_REFUSED = 'outcome=~"queue_full|queue_timeout"'
_BUSY = "avg_over_time(carpool_gateway_requests_in_flight[10m]) >= 0.9 * carpool_gateway_seats"

EXPRESSIONS: Mapping[str, Expression] = {
    "model_down": Expression(
        "carpool_gateway_replicas_ready == 0",
        "No engine of {{ $labels.model }} takes requests",
        "Requests are held, refused or sent to the fallback, as its when_down says.",
        "Read what the engine's log says last.",
    ),
    "database_away": Expression(
        "max(carpool_gateway_database_away) == 1",
        "The database cannot be used",
        "Usage is kept on disk; keys stay as they were.",
        "See whether the database runs, can be reached and has room on its disk.",
    ),
    "backend_flapping": Expression(
        "increase(carpool_gateway_replica_restarts_total[30m]) >= 2.5 or "
        'changes(carpool_gateway_replica_state{state="ready"}[30m]) >= 6',
        "{{ $labels.replica }} of {{ $labels.model }} goes up and down",
        "It was started again three times in half an hour, or came and went as often.",
        "Read its log; take it out of the configuration until it holds.",
    ),
    "ttft_climb": Expression(
        f"{_quantile(0.99, 'time_to_first_token_seconds', '30m')} > "
        f"3 * {_quantile(0.99, 'time_to_first_token_seconds', '30m', '4h')} and "
        f"{_quantile(0.99, 'time_to_first_token_seconds', '30m')} > 1",
        "First tokens of {{ $labels.model }} come later and later",
        "The 99th percentile is {{ $value | humanizeDuration }}, over three times that of four "
        "hours ago.",
        "Cap the context, quantise the KV cache, or add a GPU, in that order: carpool plan.",
    ),
    "sustained_queue": Expression(
        "min_over_time(carpool_gateway_requests_waiting[10m]) > 0",
        "The queue of {{ $labels.model }} never empties",
        "At least {{ $value }} requests have waited at any time of the last ten minutes.",
        "Cap the context, quantise the KV cache, or add a GPU, in that order: carpool plan.",
    ),
    "stream_slowdown": Expression(
        f"{_quantile(0.5, 'time_per_output_token_seconds', '10m')} > "
        f"2 * {_quantile(0.5, 'time_per_output_token_seconds', '1d')} and on (model) ({_BUSY})",
        "Streams of {{ $labels.model }} are slow while the batch is full",
        "A token takes {{ $value | humanizeDuration }}, twice as long as over the last day.",
        "Give it fewer seats (max_num_seqs), or another GPU.",
    ),
    "kv_pressure": Expression(
        "avg_over_time(carpool_gateway_kv_tokens_reserved[10m]) > 0.95 * carpool_gateway_kv_tokens "
        "or sum by (instance) (rate(carpool_num_preemptions_total[10m])) > 0.1",
        "KV memory runs out",
        "It is spoken for to more than 95 %, or the engine takes requests out of the batch again "
        "to make room.",
        "Cap the context, quantise the KV cache, or add a GPU, in that order: carpool plan.",
    ),
    "context_creep": Expression(
        f"{_prompt_tokens('6h')} > 1.5 * ({_prompt_tokens('3d', '1d')})",
        "Prompts of {{ $labels.model }} have grown",
        "They are {{ $value | humanize }} tokens long on average, half as long again as in the "
        "three days before.",
        "carpool usage --by person shows whose; cap the context with max_prompt_tokens.",
    ),
    "capacity": Expression(
        f"sum by (model) (rate(carpool_gateway_requests_total{{{_REFUSED}}}[30m])) > 0.01",
        "Requests to {{ $labels.model }} are turned away",
        "The queue is full, or they wait in it for too long.",
        "Cap the context, quantise the KV cache, or add a GPU, in that order: carpool plan.",
    ),
    "bursts": Expression(
        "max_over_time(carpool_gateway_requests_waiting[30m]) > carpool_gateway_seats and "
        "min_over_time(carpool_gateway_requests_waiting[30m]) == 0",
        "Requests to {{ $labels.model }} come in bursts",
        "The queue takes them up and empties again.",
        "Nothing, if the waits are short; else send what can wait with a key of the batch lane.",
    ),
}

ITSELF: tuple[tuple[AlertRule, Expression], ...] = (
    (
        AlertRule(name="keys_old", for_s=60, resolve_s=60, usual=Severity.CRITICAL),
        Expression(
            "carpool_gateway_keys_age_seconds > 60",
            "Revoked keys still work",
            "The gateway has not read the keys for {{ $value | humanizeDuration }}.",
            "See whether the database runs and can be reached.",
        ),
    ),
    (
        AlertRule(name="gateway_core_full", for_s=300, resolve_s=300, usual=Severity.WARNING),
        Expression(
            "histogram_quantile(0.99, sum by (instance, le) "
            "(rate(carpool_gateway_event_loop_lag_seconds_bucket[5m]))) > 0.05",
            "The gateway's core is full",
            "What is due comes {{ $value | humanizeDuration }} late.",
            "Serve with more workers (docs/workers.md).",
        ),
    ),
    (
        AlertRule(name="alerts_undelivered", for_s=60, resolve_s=60, usual=Severity.CRITICAL),
        Expression(
            "carpool_gateway_alert_destination_failing == 1",
            "Alerts cannot be delivered to {{ $labels.destination }}",
            "The gateway's log and its dashboard say why.",
            "Check the webhook's URL or the mail server.",
        ),
    ),
)
