"""Keeps the key ring level with the database."""

import asyncio
import logging
import time

from carpool.gateway.key_ring import KeyRing
from carpool.store.errors import StoreError
from carpool.store.key_store import KeyStore

POLL_S = 0.4

_log = logging.getLogger(__name__)


class KeyWatch:
    """Asks for the version of the keys every `POLL_S` seconds and loads them when it changed, so
    that a revoked key is refused within a second by every worker. While the database is away
    the keys known last go on working."""

    def __init__(self, ring: KeyRing, store: KeyStore) -> None:
        self._ring = ring
        self._store = store
        self._is_away = False
        self._loading = asyncio.Lock()
        self._level_at = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the ring was last known to be level with the database."""
        return time.monotonic() - self._level_at

    def load(self) -> None:
        """Raises StoreError: without any keys nobody could be let in."""
        self._ring.load(self._store.snapshot())

    async def refresh(self) -> None:
        """Load what has just been changed, without waiting for the next poll."""
        try:
            await self._load()
        except StoreError as error:
            _log.warning("the keys cannot be read at the moment: %s", error)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                if await asyncio.to_thread(self._store.version) != self._ring.version:
                    await self._load()
            except StoreError as error:
                if not self._is_away:
                    _log.warning("the keys cannot be read, the last known ones hold: %s", error)
                self._is_away = True
            else:
                self._is_away = False
                self._level_at = time.monotonic()

    async def _load(self) -> None:
        """One at a time, so that an older snapshot never comes after a newer one."""
        async with self._loading:
            self._ring.load(await asyncio.to_thread(self._store.snapshot))
