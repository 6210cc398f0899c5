"""Alerts in the admin API: what fires, what may soon, and whether it can be told."""

import math
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_error import AdminError
from carpool.gateway.admin_fields import Fields, NoQuery, read_fields, read_query
from carpool.watch.alert import Alert
from carpool.watch.alert_watch import AlertWatch
from carpool.watch.courier import DestinationStatus

MAX_HOURS = 30 * 24


class _AcknowledgeFields(Fields):
    hours: float


class AdminAlerts:
    def __init__(self, watch: AlertWatch) -> None:
        self._watch = watch

    def routes(self) -> list[Route]:
        acknowledge = "/alerts/{fingerprint}/acknowledge"
        return [
            Route("/alerts", self.list_alerts, methods=["GET"]),
            Route(acknowledge, self.acknowledge, methods=["POST"]),
        ]

    async def list_alerts(self, request: Request) -> Response:
        read_query(request, NoQuery)
        view = self._watch.view()
        return JSONResponse(
            {
                "alerts": [_alert(alert) for alert in view.alerts],
                "destinations": [_destination(status) for status in view.destinations],
                "evaluated_at": _iso(view.judged_at),
                "blind_reason": view.blind,
            }
        )

    async def acknowledge(self, request: Request) -> Response:
        fields = await read_fields(request, _AcknowledgeFields)
        if not 0 <= fields.hours <= MAX_HOURS or math.isnan(fields.hours):
            message = f"hours must be 0 (no longer) to {MAX_HOURS}"
            raise AdminError(422, "invalid_field", message, param="hours")
        alert = self._watch.acknowledge(request.path_params["fingerprint"], fields.hours)
        if alert is None:
            raise AdminError(404, "not_found", "no such alert is open; it may be over")
        return JSONResponse(_alert(alert))


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "fingerprint": alert.fingerprint,
        "rule": alert.rule,
        "severity": alert.severity.value,
        "state": alert.state.value,
        "model": alert.model,
        "subject": alert.subject,
        "summary": alert.summary,
        "remedies": list(alert.remedies),
        "since": _iso(alert.since),
        "fired_at": _iso(alert.fired_at),
        "resolved_at": _iso(alert.resolved_at),
        "acknowledged_until": _iso(alert.acknowledged_until),
    }


def _destination(status: DestinationStatus) -> dict[str, Any]:
    outbox = status.outbox
    return {
        "name": status.name,
        "kind": status.kind,
        "state": outbox.state.value,
        "waiting": outbox.waiting,
        "delivered": outbox.delivered,
        "failed": outbox.failed,
        "dropped": outbox.dropped,
        "last_error": outbox.last_error,
        "last_delivered_at": _iso(outbox.last_delivered_at),
    }


def _iso(moment: float | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
