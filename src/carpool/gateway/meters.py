"""What every key has used, as far as limits go: one meter a key, made when it is first seen."""

from collections.abc import Callable
from datetime import UTC, datetime

from carpool.gateway.limits import KeyMeter
from carpool.store.key import Key, KeyLimits

UsedTokens = Callable[[Key], tuple[int, int]]
"""Tokens a key has used today and this month."""


class Meters:
    """`used_tokens` is asked once per key that has budgets, when its meter is made."""

    def __init__(self, used_tokens: UsedTokens = lambda key: (0, 0)) -> None:
        self._meters: dict[str, tuple[KeyLimits, KeyMeter]] = {}
        self._used_tokens = used_tokens

    def of(self, key: Key) -> KeyMeter | None:
        """The key's meter; None for a key without such limits."""
        found = self._meters.get(key.key_id)
        if found is not None and found[0] is key.limits:
            return found[1]
        return self._renewed(key, found[1] if found else None)

    def _renewed(self, key: Key, meter: KeyMeter | None) -> KeyMeter | None:
        limits, utc = key.limits, datetime.now(UTC)
        if meter is not None:
            meter.set_limits(limits, utc)
        elif limits.rpm or limits.tpm or limits.daily_tokens or limits.monthly_tokens:
            has_budget = limits.daily_tokens or limits.monthly_tokens
            daily, monthly = self._used_tokens(key) if has_budget else (0, 0)
            meter = KeyMeter(key, utc, daily_used=daily, monthly_used=monthly)
        else:
            return None
        self._meters[key.key_id] = (limits, meter)
        return meter
