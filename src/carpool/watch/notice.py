"""A message about alerts, as text for people. Names in it come from clients, so nothing in it
ends a line, moves a cursor or turns the direction of writing."""

import unicodedata
from dataclasses import dataclass

from carpool.watch.alert import Alert, Change, ChangeKind
from carpool.watch.severity import Severity

MAX_CHANGES = 10
"""Of one message; the rest are counted."""
MAX_TEXT_CHARS = 400
MAX_REMEDIES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Notice:
    """What has changed with one judgement, for one destination."""

    changes: tuple[Change, ...]
    at: float

    def at_least(self, severity: Severity) -> "Notice | None":
        """The changes of alerts that are as bad as that, or worse."""
        kept = tuple(each for each in self.changes if each.alert.severity.rank >= severity.rank)
        return Notice(kept, self.at) if kept else None


def title(notice: Notice) -> str:
    """One line: "Carpool: 2 firing, 1 resolved"."""
    if len(notice.changes) == 1:
        change = notice.changes[0]
        return f"Carpool: {change.kind.value}: {_name(change.alert)}"
    firing = sum(each.kind is not ChangeKind.RESOLVED for each in notice.changes)
    resolved = len(notice.changes) - firing
    parts = [f"{firing} firing"] if firing else []
    parts += [f"{resolved} resolved"] if resolved else []
    return f"Carpool: {', '.join(parts)}"


def lines(notice: Notice) -> list[str]:
    """An alert's line, and under it, as "- ...", what to do about it."""
    found: list[str] = []
    for change in notice.changes[:MAX_CHANGES]:
        alert = change.alert
        head = f"[{alert.severity.value}] {change.kind.value}: {_name(alert)}"
        found.append(f"{head}: {plain(alert.summary)}")
        if change.kind is not ChangeKind.RESOLVED:
            found += [f"- {plain(remedy)}" for remedy in alert.remedies[:MAX_REMEDIES]]
    if len(notice.changes) > MAX_CHANGES:
        found.append(f"and {len(notice.changes) - MAX_CHANGES} more; the dashboard has them all")
    return found


def plain(text: str) -> str:
    """One line of at most `MAX_TEXT_CHARS`, without what is not for reading: control characters,
    escape sequences' beginnings, marks that turn the direction of writing."""
    text = "".join(c if _is_readable(c) else " " for c in text[: 2 * MAX_TEXT_CHARS])
    text = " ".join(text.split())
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 3]}..."


def _name(alert: Alert) -> str:
    rule = alert.rule.replace("_", " ")
    where = [plain(each)[:80] for each in (alert.model, alert.subject) if each]
    return f"{rule} ({', '.join(where)})" if where else rule


_JOINERS = frozenset("\u200d\ufe0f")
"""Emoji are made with these, and they do nothing else."""


def _is_readable(char: str) -> bool:
    if char in _JOINERS:
        return True
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
