"""Keeps what the admin API says up to date, a part of it now and a part of it now and then."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from carpool.watch.terminal.admin_client import AdminAway, AdminClient, AdminRefused

EVERY_S = 1.0


class Part(NamedTuple):
    path: str
    every_s: float


PARTS = {
    "now": Part("/now", 1.0),
    "alerts": Part("/alerts", 5.0),
    "outlook": Part("/outlook", 10.0),
    "series": Part("/series?range=24h", 15.0),
    "who": Part("/who", 30.0),
}


class Watcher:
    """`answers` by the names of `PARTS`, those that are known. `trouble`: why they are not what
    they are now, None when they are."""

    def __init__(self, client: AdminClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._due = dict.fromkeys(PARTS, 0.0)
        self._missing: dict[str, str] = {}
        self._away: tuple[str, str] | None = None
        self.answers: dict[str, Any] = {}

    @property
    def trouble(self) -> str | None:
        if self._away is not None:
            since, why = self._away
            return f"away since {since}: {why}; trying again"
        if self._missing:
            reasons = "; ".join(dict.fromkeys(self._missing.values()))
            return f"not all is known: {reasons}"
        return None

    async def refresh(self) -> None:
        """What is due. Raises AdminRefused."""
        now = self._clock()
        due = [name for name, at in self._due.items() if at <= now]
        for name in due:
            self._due[name] = now + PARTS[name].every_s
        if "now" in due and not await self._is_there():
            self._due = dict.fromkeys(PARTS, now)  # all of it at once, when it is back
            self._due["now"] = now + PARTS["now"].every_s
            return
        if self._away is None:
            await asyncio.gather(*(self._ask(name) for name in due if name != "now"))

    async def _is_there(self) -> bool:
        try:
            self.answers["now"] = await self._client.get(PARTS["now"].path)
        except AdminAway as error:
            since = time.strftime("%H:%M:%S") if self._away is None else self._away[0]
            self._away = (since, str(error))
            return False
        self._away = None
        return True

    async def _ask(self, name: str) -> None:
        """What cannot be had is not known: what was is not what is."""
        try:
            self.answers[name] = await self._client.get(PARTS[name].path)
        except (AdminAway, AdminRefused) as error:
            self.answers.pop(name, None)
            self._missing[name] = str(error)
        else:
            self._missing.pop(name, None)
