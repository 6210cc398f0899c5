"""The keys, in memory: who sends a request, without asking the database."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.store.key import Key
from carpool.store.key_store import KeySnapshot
from carpool.store.key_text import parse_key_text, secret_matches
from carpool.store.person import Person

_NOBODY = b"\0" * 32


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a key stands for. Nothing else in a request says who sends it."""

    key: Key
    person: Person


class KeyRing:
    """The last snapshot of the keys. `on_revoked` hears of every key that stopped working, then
    `on_changed` that another snapshot is there."""

    def __init__(
        self,
        on_revoked: Callable[[str], None] = lambda key_id: None,
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._keys: Mapping[str, Key] = {}
        self._people: Mapping[str, Person] = {}
        self._known: dict[bytes, Caller] = {}
        """Who sent what, by its SHA-256, of keys that were found to be right."""
        self._on_revoked = on_revoked
        self._on_changed = on_changed
        self.version = -1

    def load(self, snapshot: KeySnapshot) -> None:
        """Put `snapshot` in place of the one before."""
        old = self._keys
        self._keys = {key.key_id: key for key in snapshot.keys}
        self._people = snapshot.people
        self._known = {}
        self.version = snapshot.version
        for key_id, key in old.items():
            new = self._keys.get(key_id)
            was_good = key.revoked_at is None
            if was_good and (
                new is None or new.revoked_at is not None or new.secret_sha256 != key.secret_sha256
            ):
                self._on_revoked(key_id)
        if old:
            self._on_changed()

    def caller(self, key_id: str) -> Caller | None:
        """Whom the key of this id stands for, whether it works or not."""
        key = self._keys.get(key_id)
        return None if key is None else self._caller(key)

    def identify(self, headers: Mapping[bytes, bytes], now: float) -> Caller:
        """The caller by `Authorization: Bearer` or `x-api-key`; `now` is unix seconds.

        Raises Refusal with one message for every key that does not do, whatever the reason: an
        answer must not say whether a key exists. One that is right and has expired may know.
        """
        credentials = _credentials(headers)
        digest = hashlib.sha256(credentials).digest()
        caller = self._known.get(digest)
        if caller is None:
            caller = self._known[digest] = self._checked(credentials)
        expires_at = caller.key.expires_at
        if expires_at is not None and expires_at <= now:
            raise Refusal(Outcome.BAD_KEY, "this key has expired; ask for a new one")
        return caller

    def _checked(self, credentials: bytes) -> Caller:
        parsed = parse_key_text(credentials.decode("latin-1"))
        key = self._keys.get(parsed[0]) if parsed else None
        secret = parsed[1] if parsed else b""
        expected = key.secret_sha256 if key else _NOBODY
        # Hashed and compared for unknown keys, too: the time taken says nothing.
        is_right = secret_matches(secret, expected)
        if key is None or not is_right or key.revoked_at is not None:
            raise Refusal(
                Outcome.BAD_KEY,
                "no valid key: send `Authorization: Bearer cp-...` with a key that "
                "`carpool keys add` printed",
            )
        return self._caller(key)

    def _caller(self, key: Key) -> Caller:
        return Caller(key, self._people.get(key.person_id) or Person(key.person_id, key.name))


def _credentials(headers: Mapping[bytes, bytes]) -> bytes:
    authorization = headers.get(b"authorization", b"")
    scheme, _, credentials = authorization.partition(b" ")
    if scheme.lower() == b"bearer" and credentials:
        return credentials.strip()
    return headers.get(b"x-api-key", b"").strip()
