"""What fires, kept over a restart of the gateway: nobody is told of it twice, and its end is."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from carpool.watch.alert import Alert, AlertState

_ALERTS = TypeAdapter(tuple[Alert, ...])

_log = logging.getLogger("carpool.alerts")


class AlertFile:
    """JSON at `path`. A file that cannot be used is no reason not to watch: it is said, once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_failed = False

    def load(self) -> tuple[Alert, ...]:
        try:
            return _ALERTS.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return ()
        except OSError as error:
            reason = error.strerror or str(error)
        except ValidationError:
            reason = "it holds no alerts"
        _log.warning("what fired before the start is not known: %s: %s", self._path, reason)
        return ()

    def save(self, alerts: Iterable[Alert]) -> None:
        """Those that fire or are over; what is pending begins anew after a restart."""
        kept = tuple(alert for alert in alerts if alert.state is not AlertState.PENDING)
        part = self._path.with_suffix(".part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_ALERTS.dump_json(kept))
            part.replace(self._path)
        except OSError as error:
            if not self._has_failed:
                reason = error.strerror or str(error)
                _log.warning("alerts are not kept for a restart: %s: %s", self._path, reason)
            self._has_failed = True
        else:
            self._has_failed = False
