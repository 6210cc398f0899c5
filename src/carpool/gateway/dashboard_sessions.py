"""Who is logged in at the dashboard: a random token in a cookie, its hash in this process."""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

IDLE_S = 30 * 60.0
"""A session that asks nothing for so long ends: an open page asks every few seconds."""
LIFE_S = 12 * 3600.0
"""However busy it is."""
MAX_SESSIONS = 64
_TOKEN_BYTES = 32


@dataclass(slots=True)
class _Session:
    admin_key_id: str
    begun_at: float
    seen_at: float


class DashboardSessions:
    """They end with this process. `monotonic` is seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._sessions: dict[bytes, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, admin_key_id: str) -> str:
        """The token of a session of whoever showed this admin key. The one that was quiet for
        longest makes room."""
        now = self._monotonic()
        for digest in [each for each, session in self._sessions.items() if _is_over(session, now)]:
            del self._sessions[digest]
        if len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda each: self._sessions[each].seen_at)]
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions[_digest(token)] = _Session(admin_key_id, now, now)
        return token

    def admin_key_id(self, token: str) -> str | None:
        """Of the key by which the session began; None where it is over, or never was."""
        digest = _digest(token)
        session = self._sessions.get(digest)
        if session is None:
            return None
        now = self._monotonic()
        if _is_over(session, now):
            del self._sessions[digest]
            return None
        session.seen_at = now
        return session.admin_key_id

    def end(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)


def _is_over(session: _Session, now: float) -> bool:
    return now - session.seen_at >= IDLE_S or now - session.begun_at >= LIFE_S


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
