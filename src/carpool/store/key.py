"""A key: who may ask, for which models, and how much. Times are unix seconds."""

from dataclasses import dataclass, field

from carpool.store.lane import Lane


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """None is no limit. `rpm` and `tpm` are requests and tokens a minute, the budgets count
    prompt and output tokens of a day and of a month (UTC)."""

    rpm: int | None = None
    tpm: int | None = None
    max_in_flight: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    daily_tokens: int | None = None
    monthly_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """`key_id` is public and stays when the secret changes; `name` is a label for people.

    `models` are the names a client may ask for, None for all. A private key's requests
    never leave for a hosted fallback.
    """

    key_id: str
    secret_sha256: bytes = field(repr=False)
    person_id: str
    name: str
    models: frozenset[str] | None
    limits: KeyLimits
    lane: Lane
    is_private: bool
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def is_live(self, now: float) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models
