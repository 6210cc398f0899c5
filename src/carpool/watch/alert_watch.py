"""Judges the rules every few seconds and hands over what is to be told. Nothing waits for it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from carpool.errors import CarpoolError
from carpool.watch.alert import Alert, AlertState, Change, Sighting
from carpool.watch.alert_book import AlertBook
from carpool.watch.alert_file import AlertFile
from carpool.watch.alert_rules import AlertRule
from carpool.watch.courier import LAST_WORDS_S, Courier, Destination, DestinationStatus
from carpool.watch.notice import Notice

EVERY_S = 10.0

_log = logging.getLogger("carpool.alerts")


@dataclass(frozen=True, slots=True)
class Findings:
    """What is seen now. Rules in `unknown` cannot be judged, for the reason in `blind`."""

    sightings: Sequence[Sighting]
    unknown: Collection[str] = ()
    blind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsView:
    """`blind`: why some rules cannot be judged now, None when all can."""

    alerts: tuple[Alert, ...]
    destinations: tuple[DestinationStatus, ...]
    judged_at: float | None
    blind: str | None


class AlertWatch:
    """`find` looks at everything there are rules for; it raises CarpoolError where it cannot.
    What fires is kept in `file`, if there is one."""

    def __init__(
        self,
        rules: Mapping[str, AlertRule],
        repeat_s: float,
        destinations: Sequence[Destination],
        find: Callable[[float], Awaitable[Findings]],
        file: AlertFile | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rules = rules
        self._book = AlertBook(rules, repeat_s)
        self._file = file
        if file is not None:
            self._book.restore(file.load())
        self._kept = self._to_keep()
        self._couriers = [Courier(each, clock) for each in destinations]
        self._find = find
        self._clock = clock
        self._judged_at: float | None = None
        self._blind: str | None = None

    async def run(self) -> None:
        """Until cancelled."""
        for courier in self._couriers:
            courier.start()
        while True:
            await self.judge()
            await asyncio.sleep(EVERY_S)

    async def judge(self) -> list[Change]:
        """Once; what was handed over."""
        now = self._clock()
        try:
            findings = await self._find(now)
        except CarpoolError as error:
            findings = Findings((), frozenset(self.rules), str(error))
        except Exception:
            # A fault in one signal must not be the end of all alerts: it is said, and tried again.
            _log.exception("the rules cannot be judged")
            blind = "judging the rules failed; the gateway's log says how"
            findings = Findings((), frozenset(self.rules), blind)
        if findings.blind is not None and self._blind is None:
            _log.warning("some alerts cannot be judged: %s", findings.blind)
        self._blind, self._judged_at = findings.blind, now
        changes = self._book.judge(findings.sightings, now, findings.unknown)
        if changes:
            notice = Notice(tuple(changes), now)
            for courier in self._couriers:
                courier.put(notice)
        await self._keep()
        return changes

    async def _keep(self) -> None:
        if self._file is not None and self._kept != (to_keep := self._to_keep()):
            await asyncio.to_thread(self._file.save, self._book.alerts())
            self._kept = to_keep

    def _to_keep(self) -> list[tuple[str, AlertState, float | None]]:
        """What is worth a write."""
        return [
            (alert.fingerprint, alert.state, alert.acknowledged_until)
            for alert in self._book.alerts()
            if alert.state is not AlertState.PENDING
        ]

    def view(self) -> AlertsView:
        return AlertsView(
            alerts=tuple(self._book.alerts()),
            destinations=self.destinations(),
            judged_at=self._judged_at,
            blind=self._blind,
        )

    def destinations(self) -> tuple[DestinationStatus, ...]:
        return tuple(courier.status() for courier in self._couriers)

    def acknowledge(self, key: str, hours: float) -> Alert | None:
        """Tell nothing of it for that long; None where no such alert is open."""
        until = self._clock() + hours * 3600.0
        return self._book.acknowledge(key, until if hours > 0 else None)

    def stop(self) -> None:
        """Blocks for a moment: what is due may still be sent."""
        by = time.monotonic() + LAST_WORDS_S
        for courier in self._couriers:
            courier.ask_to_stop(by)
        for courier in self._couriers:
            courier.wait()
