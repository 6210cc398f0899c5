"""Alerts as lines of the log, one each."""

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
        for change in notice.changes:
            _log.warning("%s", " ".join(lines(Notice((change,), notice.at))))
