"""Alerts as lines of the log."""

import logging
from dataclasses import dataclass, field

from carpool.watch.notice import Notice, lines
from carpool.watch.severity import Severity

_log = logging.getLogger("carpool.alerts")


@dataclass(frozen=True, slots=True)
class LogLines:
    """A Destination."""

    name: str = field(default="log", init=False)
    kind: str = field(default="log", init=False)
    min_severity: Severity = field(default=Severity.INFO, init=False)

    def send(self, notice: Notice) -> None:
        for line in lines(notice):
            _log.warning("%s", line)
