"""What limits have been used, in this process's memory: a meter a subject, made when it is
first seen."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from carpool.gateway.limit_counters import Headers, Reservation
from carpool.gateway.limits import Meter, reserve
from carpool.gateway.subject import Subject

UsedTokens = Callable[[Subject], tuple[int, int]]
"""Tokens a subject has used today and this month."""


class Meters:
    """LimitCounters for one process. `used_tokens` is asked once per subject, in a thread, when
    its meter is made. `monotonic` and `utc` are the time."""

    def __init__(
        self,
        used_tokens: UsedTokens = lambda subject: (0, 0),
        monotonic: Callable[[], float] = time.monotonic,
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._meters: dict[str, Meter] = {}
        self._used_tokens = used_tokens
        self._monotonic = monotonic
        self._utc = utc

    async def reserve(self, subjects: Sequence[Subject], num_tokens: int) -> Reservation:
        """A subject that never had a limit to be counted for costs a look."""
        found: list[tuple[Subject, Meter]] = []
        for subject in subjects:
            meter = self._meters.get(subject.id)
            if meter is None and subject.is_metered:
                meter = await self._made(subject)
            if meter is not None:
                found.append((subject, meter))
        if not found:
            return NOTHING
        now = self._monotonic()
        for subject, meter in found:
            if meter.limits is not subject.limits:
                meter.change(subject.limits, now)
        return reserve([meter for _, meter in found], num_tokens, now, self._utc())

    async def _made(self, subject: Subject) -> Meter:
        daily, monthly = await asyncio.to_thread(self._used_tokens, subject)
        meter = Meter(
            subject.limits,
            self._utc(),
            who=subject.who,
            daily_used=daily,
            monthly_used=monthly,
        )
        # Another request of the subject may have been as early, and have taken from its meter.
        return self._meters.setdefault(subject.id, meter)


class _Nothing:
    """Reserved where there are no limits."""

    rate_headers: Headers = []  # noqa: RUF012

    def settle(self, num_used: int) -> None: ...

    def cancel(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


NOTHING: Reservation = _Nothing()
