"""What a person and a key may be. Every function raises InvalidField."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from carpool.store.errors import InvalidField
from carpool.store.limits import LIMIT_NAMES, Limits

MAX_NAME_CHARS = 100
MAX_LIMIT = 10**15


def check_name(field: str, name: str) -> str:
    """`name` without the spaces around it."""
    stripped = name.strip()
    if not stripped or len(stripped) > MAX_NAME_CHARS or not stripped.isprintable():
        raise InvalidField(field, f"takes 1 to {MAX_NAME_CHARS} printable characters")
    return stripped


def check_weight(weight: float) -> float:
    if not (math.isfinite(weight) and 0.01 <= weight <= 100):
        raise InvalidField("weight", f"takes 0.01 to 100, not {weight}; 1 is everybody's")
    return weight


def check_limits(limits: Limits) -> Limits:
    for name in LIMIT_NAMES:
        value = getattr(limits, name)
        if value is not None and not 1 <= value <= MAX_LIMIT:
            raise InvalidField(
                name, f"takes 1 to {MAX_LIMIT}, not {value}; leave it out for no limit"
            )
    return limits


def changed_limits(limits: Limits, changes: Mapping[str, int | None]) -> Limits:
    """`limits` with those in `changes` in place of the ones of the same names."""
    for name in changes:
        if name not in LIMIT_NAMES:
            raise InvalidField(name, f"is no limit; there are {', '.join(LIMIT_NAMES)}")
    return check_limits(replace(limits, **changes))


def check_models(models: Iterable[str] | None) -> frozenset[str] | None:
    if models is None:
        return None
    names = frozenset(check_name("models", model) for model in models)
    if not names:
        raise InvalidField("models", "takes one name or more; leave it out for all models")
    return names


def check_expires_at(expires_at: float | None, now: float) -> float | None:
    if expires_at is not None and not (math.isfinite(expires_at) and expires_at > now):
        raise InvalidField("expires_at", "must be in the future; leave it out for a key that stays")
    return expires_at
