"""Sends messages to one destination from a thread of its own: whoever has news never waits."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from carpool.watch.notice import Notice
from carpool.watch.outbox import Outbox, OutboxStatus
from carpool.watch.severity import Severity

LAST_WORDS_S = 3.0

_log = logging.getLogger("carpool.alerts")


class DeliveryFailed(Exception):
    """It may be taken later. The message is for people, and has no secret in it."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeliveryRefused(Exception):
    """It will never be taken like this. The message has no secret in it."""


class Destination(Protocol):
    """Where messages go. `send` takes at most a bounded while, and raises DeliveryFailed or
    DeliveryRefused."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def min_severity(self) -> Severity: ...
    def send(self, notice: Notice) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationStatus:
    name: str
    kind: str
    outbox: OutboxStatus


class Courier:
    """`clock`: Unix seconds."""

    def __init__(self, destination: Destination, clock: Callable[[], float] = time.time) -> None:
        self._destination = destination
        self._clock = clock
        self._outbox = Outbox()
        self._changed = threading.Condition()
        self._stops_at: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"alerts-{destination.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def put(self, notice: Notice) -> None:
        """Returns at once."""
        wanted = notice.at_least(self._destination.min_severity)
        if wanted is None:
            return
        with self._changed:
            self._outbox.put(wanted, self._clock())
            self._changed.notify_all()

    def status(self) -> DestinationStatus:
        with self._changed:
            outbox = self._outbox.status()
        return DestinationStatus(
            name=self._destination.name, kind=self._destination.kind, outbox=outbox
        )

    def ask_to_stop(self, by: float) -> None:
        """What is due may still be sent until then, a moment of `time.monotonic`."""
        with self._changed:
            self._stops_at = by
            self._changed.notify_all()

    def stop(self, within_s: float = LAST_WORDS_S) -> None:
        """What is not sent within that is lost, with a line in the log."""
        self.ask_to_stop(time.monotonic() + within_s)
        self.wait()

    def wait(self) -> None:
        """For the end that was asked for."""
        if self._thread.ident is not None and self._stops_at is not None:
            self._thread.join(max(0.0, self._stops_at - time.monotonic()))
        if waiting := self.status().outbox.waiting:
            _log.warning(
                "messages about alerts that were not delivered to %s: %d",
                self._destination.name,
                waiting,
            )

    def _run(self) -> None:
        while (notice := self._next()) is not None:
            self._try(notice)

    def _next(self) -> Notice | None:
        """Waits for what is due; None at the end."""
        with self._changed:
            while True:
                notice = self._outbox.first(self._clock())
                if self._stops_at is not None and (
                    notice is None or time.monotonic() >= self._stops_at
                ):
                    return None
                if notice is not None:
                    return notice
                due = self._outbox.next_try()
                self._changed.wait(None if due is None else max(0.05, due - self._clock()))

    def _try(self, notice: Notice) -> None:
        name = self._destination.name
        try:
            self._destination.send(notice)
        except DeliveryFailed as error:
            with self._changed:
                is_news = self._outbox.failed(str(error), self._clock(), error.retry_after_s)
        except DeliveryRefused as refusal:
            with self._changed:
                is_news = self._outbox.refused(notice, str(refusal))
        else:
            with self._changed:
                is_news = self._outbox.delivered(notice, self._clock())
        status = self.status().outbox
        if is_news and status.last_error is not None:
            _log.error("alerts cannot be delivered to %s: %s", name, status.last_error)
        elif is_news:
            _log.warning("alerts are delivered to %s again", name)
