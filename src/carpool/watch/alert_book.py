"""Which alerts there are, and what is to be told of them: a state machine without a clock.

    (none) -> PENDING -> FIRING -> RESOLVED -> (none)
       ^         |         ^  |
       +---------+         +--+  calm for less than the rule's resolve_s

Time is what passes between two judgements, and at most `MAX_STEP_S` of it: a clock that jumps, a
machine that slept or a while without data neither fires nor resolves anything.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from carpool.watch.alert import Alert, AlertState, Change, ChangeKind, Sighting, fingerprint
from carpool.watch.alert_rules import AlertRule
from carpool.watch.severity import Severity

MAX_STEP_S = 60.0
KEEP_RESOLVED_S = 86_400.0
MAX_ALERTS = 500
"""More are not taken on: a rule whose subjects clients can make up must not eat the memory."""


class AlertBook:
    """Alerts by fingerprint, one for each rule, model and subject. `repeat_s`: how often an alert
    that goes on is told again."""

    def __init__(self, rules: Mapping[str, AlertRule], repeat_s: float) -> None:
        self._rules = rules
        self._repeat_s = repeat_s
        self._alerts: dict[str, Alert] = {}
        self._judged_at: float | None = None

    def judge(
        self, sightings: Iterable[Sighting], now: float, unknown: Collection[str] = ()
    ) -> list[Change]:
        """What is to be told. An alert of which nothing is seen is calm, unless its rule is
        among the `unknown`: those that cannot be judged now stay as they are."""
        passed_s = 0.0 if self._judged_at is None else now - self._judged_at
        passed_s = min(max(passed_s, 0.0), MAX_STEP_S)
        self._judged_at = now
        seen = {_fingerprint(each): each for each in sightings if each.rule in self._rules}
        changes = []
        for each in list(self._alerts.values()):
            if each.rule in unknown:
                continue
            change = self._step(each, seen.pop(each.fingerprint, None), now, passed_s)
            if change is not None:
                changes.append(change)
        for key, sighting in seen.items():
            if sighting.is_over and sighting.rule not in unknown and key not in self._alerts:
                change = self._begin(sighting, now)
                if change is not None:
                    changes.append(change)
        return changes

    def restore(self, alerts: Iterable[Alert]) -> None:
        """Those of before, of rules that there still are: time begins anew for them."""
        for alert in alerts:
            if alert.rule in self._rules:
                self._put(replace(alert, calm_s=None))

    def acknowledge(self, key: str, until: float | None) -> Alert | None:
        """Tell nothing more of it until then; None where no such alert is open."""
        alert = self._alerts.get(key)
        if alert is None or alert.state is AlertState.RESOLVED:
            return None
        return self._put(replace(alert, acknowledged_until=until))

    def alerts(self) -> list[Alert]:
        """Those that fire first, then those that may soon, then what is over; the worst and the
        newest first."""
        order = {AlertState.FIRING: 0, AlertState.PENDING: 1, AlertState.RESOLVED: 2}

        def key(alert: Alert) -> tuple[int, int, float, str]:
            newest = alert.resolved_at or alert.fired_at or alert.since
            return order[alert.state], -alert.severity.rank, -newest, alert.fingerprint

        return sorted(self._alerts.values(), key=key)

    # ------------------------------------------------------------------ one alert

    def _begin(self, sighting: Sighting, now: float) -> Change | None:
        if len(self._alerts) >= MAX_ALERTS and not self._forget_one():
            return None
        alert = Alert(
            rule=sighting.rule,
            severity=self._severity(sighting),
            model=sighting.model,
            subject=sighting.subject,
            summary=sighting.summary,
            remedies=sighting.remedies,
            state=AlertState.PENDING,
            since=now,
        )
        return self._pending(alert, now)

    def _step(
        self, alert: Alert, sighting: Sighting | None, now: float, passed_s: float
    ) -> Change | None:
        if sighting is not None and sighting.is_over:
            alert = replace(
                alert,
                summary=sighting.summary,
                remedies=sighting.remedies,
                severity=self._severity(sighting),
            )
        is_over = sighting is not None and sighting.is_over
        match alert.state:
            case AlertState.PENDING if is_over:
                return self._pending(replace(alert, over_s=alert.over_s + passed_s), now)
            case AlertState.PENDING:
                del self._alerts[alert.fingerprint]
                return None
            case AlertState.FIRING:
                is_calm = sighting is None or sighting.is_calm
                return self._firing(alert, is_calm, now, passed_s)
            case AlertState.RESOLVED if is_over and sighting is not None:
                del self._alerts[alert.fingerprint]
                return self._begin(sighting, now)
        if now - (alert.resolved_at or now) > KEEP_RESOLVED_S:
            del self._alerts[alert.fingerprint]
        return None

    def _pending(self, alert: Alert, now: float) -> Change | None:
        if alert.over_s < self._rules[alert.rule].for_s:
            self._put(alert)
            return None
        fired = replace(alert, state=AlertState.FIRING, fired_at=now, quiet_s=0.0)
        return self._told(ChangeKind.FIRING, fired, now)

    def _firing(self, alert: Alert, is_calm: bool, now: float, passed_s: float) -> Change | None:
        calm_s = None
        if is_calm:
            calm_s = 0.0 if alert.calm_s is None else alert.calm_s + passed_s
        alert = replace(alert, calm_s=calm_s, quiet_s=alert.quiet_s + passed_s)
        if calm_s is not None and calm_s >= self._rules[alert.rule].resolve_s:
            ended = replace(alert, state=AlertState.RESOLVED, resolved_at=now)
            return self._told(ChangeKind.RESOLVED, ended, now)
        if alert.quiet_s >= self._repeat_s and not is_calm:
            return self._told(ChangeKind.STILL_FIRING, replace(alert, quiet_s=0.0), now)
        self._put(alert)
        return None

    def _told(self, kind: ChangeKind, alert: Alert, now: float) -> Change | None:
        is_silent = alert.acknowledged_until is not None and now < alert.acknowledged_until
        self._put(alert)
        return None if is_silent else Change(kind, alert)

    def _severity(self, sighting: Sighting) -> Severity:
        return self._rules[sighting.rule].severity or sighting.severity

    def _put(self, alert: Alert) -> Alert:
        self._alerts[alert.fingerprint] = alert
        return alert

    def _forget_one(self) -> bool:
        """The oldest of those that are over; False where all are open."""
        over = [each for each in self._alerts.values() if each.state is AlertState.RESOLVED]
        if not over:
            return False
        oldest = min(over, key=lambda alert: alert.resolved_at or 0.0)
        del self._alerts[oldest.fingerprint]
        return True


def _fingerprint(sighting: Sighting) -> str:
    return fingerprint(sighting.rule, sighting.model, sighting.subject)
