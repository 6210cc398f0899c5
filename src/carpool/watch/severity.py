"""How bad it is."""

from enum import StrEnum


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for the least."""
        return _RANKS[self]


_RANKS = {severity: rank for rank, severity in enumerate(Severity)}
