"""What a gateway has to say to its rules: its engines, its database, and the signals."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from carpool.gateway.live_state import LiveState, ModelState
from carpool.store.database import Database
from carpool.store.errors import DatabaseAway
from carpool.store.key_store import KeyStore
from carpool.watch.alert import Sighting
from carpool.watch.alert_config import AlertSetup
from carpool.watch.alert_file import AlertFile
from carpool.watch.alert_rules import DATABASE_AWAY, MODEL_DOWN
from carpool.watch.alert_watch import AlertWatch, Findings
from carpool.watch.severity import Severity
from carpool.watch.signal import Signal

EASE = 0.8
"""A signal is over when it does not hold any more with thresholds that are a fifth lower: one
that hovers about its threshold is one alert, and not one an hour."""

Look = Callable[[float], Sequence[Signal]]
"""The signals that there are now, with every threshold times that. Called in a thread; raises
CarpoolError."""


def make_alert_watch(
    setup: AlertSetup,
    live: LiveState,
    database: Database,
    look: Look,
    folder: Path | None = None,
) -> AlertWatch:
    """What fires is kept in `folder` over a restart."""
    finder = _Finder(setup, live, KeyStore(database), look)
    file = None if folder is None else AlertFile(folder / "alerts.json")
    return AlertWatch(setup.rules, setup.repeat_s, setup.destinations, finder.find, file)


class _Finder:
    def __init__(self, setup: AlertSetup, live: LiveState, keys: KeyStore, look: Look) -> None:
        self._rules = frozenset(setup.rules)
        self._live = live
        self._keys = keys
        self._look = look

    async def find(self, now: float) -> Findings:
        """While the database is away, that alone and the engines can be judged."""
        down = [seen for model in self._live.models() if (seen := _down(model)) is not None]
        try:
            signals = await asyncio.to_thread(self._signals)
        except DatabaseAway as error:
            unknown = self._rules - {MODEL_DOWN, DATABASE_AWAY}
            return Findings([*down, _away()], unknown, str(error))
        return Findings([*down, *signals])

    def _signals(self) -> list[Sighting]:
        names = {person.person_id: person.name for person in self._keys.list_people()}
        held = self._look(1.0)
        ids = {signal.id for signal in held}
        near = (signal for signal in self._look(EASE) if signal.id not in ids)
        return [
            *(_sighting(signal, names, is_over=True) for signal in held),
            *(_sighting(signal, names, is_over=False) for signal in near),
        ]


def _sighting(signal: Signal, names: Mapping[str, str], *, is_over: bool) -> Sighting:
    subject = None
    if signal.subject:
        subject = f"{names.get(signal.person_id, signal.person_id)}, key {signal.subject}"
    return Sighting(
        rule=signal.name.value,
        severity=signal.severity,
        model=signal.model or None,
        subject=subject,
        is_over=is_over,
        is_calm=False,
        summary=signal.sentence,
        remedies=tuple(remedy.sentence for remedy in signal.remedies),
    )


def _down(model: ModelState) -> Sighting | None:
    if model.state != "down":
        return None
    waiting = f"; {model.load.waiting} requests wait" if model.load.waiting else ""
    return Sighting(
        rule=MODEL_DOWN,
        severity=Severity.CRITICAL,
        model=model.name,
        is_over=True,
        is_calm=False,
        summary=f"no engine of {model.name} takes requests{waiting}",
        remedies=("read what the engine's log says last", "give it a fallback (docs/serve.md)"),
    )


def _away() -> Sighting:
    return Sighting(
        rule=DATABASE_AWAY,
        severity=Severity.CRITICAL,
        is_over=True,
        is_calm=False,
        summary="the database cannot be used: usage is kept on disk, keys stay as they were",
        remedies=("see whether the database runs, can be reached and has room on its disk",),
    )
