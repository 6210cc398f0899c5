"""A dashboard for Grafana, over the figures of `/metrics`: its classic JSON model, which every
version imports (schemaVersion 41 is that of Grafana 12)."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

SCHEMA_VERSION = 41
WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_MODEL = 'model=~"$model"'


class Target(NamedTuple):
    promql: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str
    targets: Sequence[Target]
    description: str = ""
    kind: str = "timeseries"
    width: int = 8
    height: int = 8


def dashboard() -> str:
    """JSON to import; Grafana asks for the data source."""
    return json.dumps(_dashboard(), indent=2) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "uid": "carpool",
        "title": "Carpool",
        "description": "Is it well, how full is it, what is coming",
        "tags": ["carpool", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_source_variable(), _model_variable()]},
        "panels": _placed(PANELS),
    }


def _source_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _model_variable() -> dict[str, Any]:
    query = "label_values(carpool_gateway_seats, model)"
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "model"},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """From left to right, and in rows as high as their first."""
    placed, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y = 0, y + height
        if x == 0:
            height = panel.height
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        placed.append(_panel(number, panel, place))
        x += panel.width
    return placed


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.kind == "stat":
        options = {"colorMode": "value", "reduceOptions": {"calcs": ["lastNotNull"]}}
    else:
        defaults["custom"] = {"fillOpacity": 10, "showPoints": "never", "spanNulls": False}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "editorMode": "code",
                "expr": target.promql,
                "legendFormat": target.legend,
                "range": panel.kind != "stat",
                "instant": panel.kind == "stat",
            }
            for index, target in enumerate(panel.targets)
        ],
    }


def _gauge(name: str) -> str:
    return f"sum by (model) (carpool_gateway_{name}{{{_MODEL}}})"


def _rate(name: str, by: str, labels: str = _MODEL) -> str:
    return f"sum by ({by}) (rate(carpool_gateway_{name}{{{labels}}}[$__rate_interval]))"


def _quantiles(metric: str, *quantiles: float) -> tuple[Target, ...]:
    rate = _rate(f"{metric}_bucket", "model, le")
    return tuple(
        Target(f"histogram_quantile({q}, {rate})", f"p{q * 100:g} {{{{model}}}}") for q in quantiles
    )


def _stat(title: str, promql: str, description: str) -> Panel:
    return Panel(title, "short", (Target(promql, ""),), description, "stat", 4, 4)


_PROMPT = f'{_MODEL}, kind="prompt"'
_CACHED = f'{_MODEL}, kind="cached"'
_COMPLETED = f'{_MODEL}, outcome="completed"'

PANELS: tuple[Panel, ...] = (
    _stat(
        "In flight",
        f"sum(carpool_gateway_requests_in_flight{{{_MODEL}}})",
        "Requests at the engines now",
    ),
    _stat("Seats", f"sum(carpool_gateway_seats{{{_MODEL}}})", "Requests that may be there at once"),
    _stat("Waiting", f"sum(carpool_gateway_requests_waiting{{{_MODEL}}})", "The queue now"),
    _stat(
        "Engines ready",
        f"sum(carpool_gateway_replicas_ready{{{_MODEL}}})",
        "Engines that take requests",
    ),
    _stat("Alerts", "sum(carpool_gateway_alerts_firing)", "Alerts that fire"),
    _stat(
        "Alerts undelivered",
        "sum(carpool_gateway_alert_messages_waiting)",
        "Messages that wait for their destination",
    ),
    Panel(
        "Time to first token",
        "s",
        _quantiles("time_to_first_token_seconds", 0.5, 0.99),
        "A steady climb over the day is capacity that runs out; a sawtooth is bursts.",
        width=12,
    ),
    Panel(
        "Queue",
        "short",
        (Target(_gauge("requests_waiting"), "{{model}}"),),
        "Above zero for long: too few seats",
        width=12,
    ),
    Panel(
        "Seats taken",
        "short",
        (
            Target(_gauge("requests_in_flight"), "in flight {{model}}"),
            Target(_gauge("seats"), "seats {{model}}"),
        ),
    ),
    Panel(
        "KV memory spoken for",
        "percentunit",
        (Target(f"{_gauge('kv_tokens_reserved')} / {_gauge('kv_tokens')}", "{{model}}"),),
    ),
    Panel("Wait for a seat", "s", _quantiles("queue_time_seconds", 0.5, 0.99)),
    Panel("Time per output token", "s", _quantiles("time_per_output_token_seconds", 0.5, 0.99)),
    Panel(
        "Tokens a second",
        "short",
        (Target(_rate("tokens_total", "model, kind"), "{{kind}} {{model}}"),),
    ),
    Panel(
        "Prompt tokens a request",
        "short",
        (
            Target(
                f"{_rate('tokens_total', 'model', _PROMPT)} / "
                f"{_rate('requests_total', 'model', _COMPLETED)}",
                "{{model}}",
            ),
        ),
        "When this creeps up, fewer fit at once",
    ),
    Panel(
        "Prompt tokens from the cache",
        "percentunit",
        (
            Target(
                f"{_rate('tokens_total', 'model', _CACHED)} / "
                f"{_rate('tokens_total', 'model', _PROMPT)}",
                "{{model}}",
            ),
        ),
    ),
    Panel(
        "Requests by outcome",
        "reqps",
        (Target(_rate("requests_total", "outcome"), "{{outcome}}"),),
    ),
    Panel(
        "Preemptions",
        "ops",
        (Target("sum(rate(carpool_num_preemptions_total[$__rate_interval]))", "embedded engines"),),
        "Requests that lost their KV blocks to others",
    ),
    Panel(
        "Engines",
        "short",
        (
            Target(
                f"sum by (model, state) (carpool_gateway_replica_state{{{_MODEL}}})",
                "{{state}} {{model}}",
            ),
        ),
    ),
    Panel(
        "Event loop's lag",
        "s",
        (
            Target(
                "histogram_quantile(0.99, sum by (le) "
                "(rate(carpool_gateway_event_loop_lag_seconds_bucket[$__rate_interval])))",
                "p99",
            ),
        ),
        "The gateway's own delay",
    ),
    Panel("Alerts that fire", "short", (Target("carpool_gateway_alerts_firing > 0", "{{rule}}"),)),
)  # fmt: skip
