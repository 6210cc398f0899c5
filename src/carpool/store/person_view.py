"""A person as people and programs may see them."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from carpool.store.key import Key
from carpool.store.person import Person


def person_view(person: Person, keys: Iterable[Key], now: float) -> dict[str, Any]:
    """Ready for JSON. `keys` are anybody's; shown are the ids of this person's that work."""
    return {
        "person_id": person.person_id,
        "name": person.name,
        "weight": person.weight,
        **asdict(person.limits),
        "keys": [
            key.key_id for key in keys if key.person_id == person.person_id and key.is_live(now)
        ],
    }
