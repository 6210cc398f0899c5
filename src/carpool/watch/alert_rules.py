"""The rules: what may become an alert, how long it must hold, and how long be gone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from carpool.watch.secret_source import AlertConfigError
from carpool.watch.severity import Severity

MODEL_DOWN = "model_down"
DATABASE_AWAY = "database_away"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """`for_s`: how long it must hold before it fires; `resolve_s`: how long it must not, before
    it is over. `severity` None: as bad as the signal says, of which `usual` is the worst."""

    name: str
    for_s: float
    resolve_s: float
    usual: Severity
    severity: Severity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig:
    """What a person wants otherwise. None is as it was."""

    for_s: float | None = None
    resolve_s: float | None = None
    severity: Severity | None = None
    enabled: bool = True

    def __post_init__(self) -> None:
        """Raises AlertConfigError."""
        for name in ("for_s", "resolve_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 7 * 86_400:
                raise AlertConfigError(f"{name} is {value:g}, but must be 0 to 604800 seconds")


def _rule(name: str, usual: Severity, for_s: float, resolve_s: float) -> AlertRule:
    return AlertRule(name=name, for_s=for_s, resolve_s=resolve_s, usual=usual)


DEFAULT_RULES: Mapping[str, AlertRule] = {
    rule.name: rule
    for rule in (
        _rule(MODEL_DOWN, Severity.CRITICAL, 30, 60),
        _rule(DATABASE_AWAY, Severity.CRITICAL, 30, 60),
        _rule("backend_flapping", Severity.CRITICAL, 0, 1800),
        _rule("memory_limit", Severity.CRITICAL, 120, 600),
        _rule("ttft_climb", Severity.WARNING, 300, 900),
        _rule("sustained_queue", Severity.WARNING, 120, 600),
        _rule("stream_slowdown", Severity.WARNING, 300, 900),
        _rule("kv_pressure", Severity.WARNING, 300, 900),
        _rule("context_creep", Severity.WARNING, 600, 3600),
        _rule("noisy_key", Severity.WARNING, 300, 900),
        _rule("capacity", Severity.WARNING, 600, 3600),
        _rule("bursts", Severity.INFO, 600, 3600),
        _rule("plan_drift", Severity.INFO, 3600, 7200),
        _rule("calibration_old", Severity.INFO, 3600, 3600),
    )
}


def rules_with(changes: Mapping[str, RuleConfig]) -> dict[str, AlertRule]:
    """The default rules, changed. Raises AlertConfigError for a name that is none of theirs."""
    for name in changes:
        if name not in DEFAULT_RULES:
            there = ", ".join(DEFAULT_RULES)
            raise AlertConfigError(f"there is no rule {name!r:.60}; there are: {there}")
    rules = {}
    for name, rule in DEFAULT_RULES.items():
        change = changes.get(name, RuleConfig())
        if change.enabled:
            given = {
                field: value
                for field in ("for_s", "resolve_s", "severity")
                if (value := getattr(change, field)) is not None
            }
            rules[name] = replace(rule, **given)
    return rules
