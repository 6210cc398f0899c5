"""What every key has used, as far as limits go: one meter a key, made when it is first seen."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from carpool.gateway.limits import KeyMeter
from carpool.store.key import Key
from carpool.store.limits import Limits

UsedTokens = Callable[[Key], tuple[int, int]]
"""Tokens a key has used today and this month."""


class Meters:
    """`used_tokens` is asked once per key, in a thread, when its meter is made."""

    def __init__(self, used_tokens: UsedTokens = lambda key: (0, 0)) -> None:
        self._meters: dict[str, KeyMeter] = {}
        self._used_tokens = used_tokens

    async def of(self, key: Key, now: float) -> KeyMeter | None:
        """The key's meter, with the limits that the key has now; None for a key that never had
        any. `now` is monotonic seconds."""
        meter = self._meters.get(key.key_id)
        if meter is None:
            if not _is_metered(key.limits):
                return None
            meter = await self._made(key)
        if meter.limits is not key.limits:
            meter.change(key.limits, now)
        return meter

    async def _made(self, key: Key) -> KeyMeter:
        daily, monthly = await asyncio.to_thread(self._used_tokens, key)
        meter = KeyMeter(key.limits, datetime.now(UTC), daily_used=daily, monthly_used=monthly)
        # Another request of the key may have been as early, and have taken from its meter.
        return self._meters.setdefault(key.key_id, meter)


def _is_metered(limits: Limits) -> bool:
    numbers = (limits.rpm, limits.tpm, limits.daily_tokens, limits.monthly_tokens)
    return any(number is not None for number in numbers)
