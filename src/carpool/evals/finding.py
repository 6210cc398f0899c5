"""Something that two runs differ in."""

from dataclasses import dataclass
from enum import StrEnum

from carpool.evals.signals import FindingKind


class Severity(StrEnum):
    ALARM = "alarm"
    """An upgrade that does this is not to go live."""
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Finding:
    """`cases` are those in which it shows; `p_value` None: it is no matter of chance."""

    kind: FindingKind
    severity: Severity
    sentence: str
    cases: tuple[str, ...] = ()
    p_value: float | None = None
