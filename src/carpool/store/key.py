"""A key: who may ask, for which models, and how much. Times are unix seconds."""

from dataclasses import dataclass, field

from carpool.store.lane import Lane
from carpool.store.limits import Limits


@dataclass(frozen=True, slots=True)
class Key:
    """`key_id` is public and stays when the secret changes; `name` is a label for people.

    `models` are the names a client may ask for, None for all. A private key's requests
    never leave for a hosted fallback. Until `record_until` the text of its requests is kept,
    because its holder agreed to that.
    """

    key_id: str
    secret_sha256: bytes = field(repr=False)
    person_id: str
    name: str
    models: frozenset[str] | None
    limits: Limits
    lane: Lane
    is_private: bool
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    record_until: float | None = None

    def is_live(self, now: float) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models
