"""What an alert is: a rule, at a model and perhaps a person, and what became of it."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from carpool.watch.severity import Severity


class AlertState(StrEnum):
    PENDING = "pending"
    """It holds, but not yet for as long as its rule wants."""
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What a rule says of one of its subjects now.

    `is_over`: past its threshold. `is_calm`: so far below that an alert may end; between the two
    one that fires goes on, and none begins. `model` and `subject` (a person) are None where the
    rule is about the whole. `remedies`: the cheapest first.
    """

    rule: str
    severity: Severity
    model: str | None = None
    subject: str | None = None
    is_over: bool
    is_calm: bool
    summary: str
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Times are Unix seconds. `over_s`: how long it has held, until it fires; `calm_s`: how long
    it has not, None while it does; `quiet_s`: since it was last told."""

    rule: str
    severity: Severity
    model: str | None
    subject: str | None
    summary: str
    remedies: tuple[str, ...]
    state: AlertState
    since: float
    fired_at: float | None = None
    resolved_at: float | None = None
    acknowledged_until: float | None = None
    over_s: float = 0.0
    calm_s: float | None = None
    quiet_s: float = 0.0

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.rule, self.model, self.subject)


class ChangeKind(StrEnum):
    FIRING = "firing"
    STILL_FIRING = "still firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Change:
    """Something to tell of an alert."""

    kind: ChangeKind
    alert: Alert


def fingerprint(rule: str, model: str | None, subject: str | None) -> str:
    """16 hexadecimal digits, the same for the same alert at any time."""
    parts = "\x00".join((rule, "\x01" if model is None else model, subject or ""))
    return hashlib.blake2b(parts.encode("utf-8", "replace"), digest_size=8).hexdigest()
