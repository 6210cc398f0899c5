"""A key as people and programs may see it: everything but the secret and its hash."""

import time
from dataclasses import asdict
from typing import Any

from carpool.store.key import Key
from carpool.store.person import Person


def key_state(key: Key, now: float) -> str:
    """ "works", "expired" or "revoked"."""
    if key.is_live(now):
        return "works"
    return "expired" if key.revoked_at is None else "revoked"


def key_view(key: Key, person: Person, now: float) -> dict[str, Any]:
    """Ready for JSON; times in ISO 8601, UTC."""
    return {
        "key_id": key.key_id,
        "person": person.name,
        "person_id": person.person_id,
        "weight": person.weight,
        "label": key.name,
        "state": key_state(key, now),
        "models": None if key.models is None else sorted(key.models),
        **asdict(key.limits),
        "lane": key.lane.value,
        "is_private": key.is_private,
        "created_at": iso_time(key.created_at),
        "expires_at": None if key.expires_at is None else iso_time(key.expires_at),
        "revoked_at": None if key.revoked_at is None else iso_time(key.revoked_at),
        "record_until": None if key.record_until is None else iso_time(key.record_until),
    }


def iso_time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
