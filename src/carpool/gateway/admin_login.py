"""Who may use the admin API: whoever has the key that `carpool admin-key` printed last."""

import asyncio
import logging
import time
from collections.abc import Callable

from carpool.gateway.admin_error import AdminError
from carpool.gateway.rate_limit import RateLimit
from carpool.store.admin_key import AdminKey, AdminKeyStore
from carpool.store.errors import DatabaseAway
from carpool.store.key_text import KeyKind, parse_key_text, secret_matches

FAILURES_PER_MINUTE = 30
"""Beyond these a wrong key is told to wait. The right one is never kept out by others' tries:
there are 256 bits of it to guess."""
REMEMBERED_S = 0.5
"""For so long a key that was replaced may go on working, and the database is not asked."""
_NOBODY = b"\0" * 32

_log = logging.getLogger(__name__)


class AdminLogin:
    def __init__(
        self, store: AdminKeyStore, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._failures = RateLimit(FAILURES_PER_MINUTE)
        self._lock = asyncio.Lock()
        self._known: AdminKey | None = None
        self._known_at: float | None = None

    async def admin_key_id(self, authorization: bytes) -> str:
        """Of the key in an Authorization header. Raises AdminError, with one message for all
        that do not do, and StoreError."""
        scheme, _, credentials = authorization.partition(b" ")
        text = credentials.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""
        parsed = parse_key_text(text, KeyKind.ADMIN)
        key = await self._current()
        # Hashed and compared whatever there is: the time taken says nothing.
        is_right = secret_matches(
            parsed.secret if parsed else b"", key.secret_sha256 if key else _NOBODY
        )
        if key is None or parsed is None or not is_right or parsed.key_id != key.key_id:
            raise self._refused()
        return key.key_id

    async def is_current(self, key_id: str) -> bool:
        """Whether this is still the admin key, for somebody who showed it before. While the
        database is away, nobody can have changed it from here."""
        try:
            key = await self._current()
        except DatabaseAway:
            return True
        return key is not None and key.key_id == key_id

    async def _current(self) -> AdminKey | None:
        async with self._lock:
            now = self._monotonic()
            if self._known_at is None or now - self._known_at >= REMEMBERED_S:
                self._known = await asyncio.to_thread(self._store.current)
                self._known_at = now
            return self._known

    def _refused(self) -> AdminError:
        now = self._monotonic()
        wait = self._failures.wait_s(1, now)
        if wait > 0:
            return AdminError(
                429,
                "too_many_failed_logins",
                f"more than {FAILURES_PER_MINUTE} wrong admin keys a minute; try again later",
                retry_after_s=wait,
            )
        self._failures.take(1, now)
        if self._failures.remaining(now) == 0:
            _log.warning("more than %d wrong admin keys a minute", FAILURES_PER_MINUTE)
        return AdminError(
            401,
            "bad_admin_key",
            "no valid admin key: send `Authorization: Bearer cpa-...` with the key that "
            "`carpool admin-key` printed",
        )
