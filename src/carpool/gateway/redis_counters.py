"""What limits have been used, in a Redis that several workers and gateways share.

`lua/limits.lua` takes and gives back, by the arithmetic of `limits.py`; from the state that it
answers with, the same meters as in memory tell people what is left and why they must wait.
While Redis is away each worker counts in its own memory, against its share of every limit.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

from carpool.gateway.limit_counters import Headers, Reservation
from carpool.gateway.limits import Meter, rate_headers, refusal
from carpool.gateway.meters import NOTHING, Meters, UsedTokens
from carpool.gateway.rate_limit import RateLimit
from carpool.gateway.redis_link import CountersAway, RedisLink
from carpool.gateway.subject import Subject
from carpool.store.limits import Limits

Answer = dict[str, Any]


class Period(NamedTuple):
    """Beginnings of the day and the month in which something was taken, seconds since 1970."""

    day: float
    month: float


@dataclass(slots=True)
class Unused:
    """What of a subject was taken and not used; below 0 where more was used."""

    requests: int = 0
    rate_tokens: int = 0
    tokens: int = 0


class RedisCounters:
    """LimitCounters. `num_workers` says how many share the limits while Redis is away;
    `used_tokens` is asked in a thread for what budgets must begin with.

    What is given back waits for the next letter, and for the next after that if there was no
    answer; the server takes a letter's returns once. What was being reserved when Redis went
    away may stay taken: at most the requests of one round trip.
    """

    script = "limits.lua"

    def __init__(
        self,
        link: RedisLink,
        worker: str,
        used_tokens: UsedTokens = lambda subject: (0, 0),
        num_workers: Callable[[], int] = lambda: 1,
    ) -> None:
        self._link = link
        self._worker = worker
        self._used_tokens = used_tokens
        self._num_workers = num_workers
        self._known: set[str] = set()
        self._asks: list[tuple[dict[str, Any], asyncio.Future[Answer]]] = []
        self._asked: list[tuple[dict[str, Any], asyncio.Future[Answer]]] = []
        self._unused: dict[tuple[str, Period], Unused] = {}
        self._returned: dict[tuple[str, Period], Unused] = {}
        self._batch = 0
        self._own: OwnShare | None = None
        link.add(self)

    async def reserve(self, subjects: Sequence[Subject], num_tokens: int) -> Reservation:
        counted = [each for each in subjects if each.is_metered or each.id in self._known]
        if not counted:
            return NOTHING
        self._known.update(each.id for each in counted)
        try:
            answer = await self._reserve(counted, num_tokens)
        except CountersAway:
            return await self._share().reserve(counted, num_tokens)
        self._own = None
        now = float(answer["now"])
        meters = [
            _meter(subject, state, now)
            for subject, state in zip(counted, answer["states"], strict=True)
        ]
        if not answer["ok"]:
            raise refusal(meters, num_tokens, now, datetime.fromtimestamp(now, UTC))
        return RedisReservation(
            self, counted, num_tokens, answer["period"], rate_headers(meters, now)
        )

    def give_back(self, subject: Subject, period: Period, unused: Unused) -> None:
        """Now or, if Redis is away, when it is back."""
        sums = self._unused.setdefault((subject.id, period), Unused())
        sums.requests += unused.requests
        sums.rate_tokens += unused.rate_tokens
        sums.tokens += unused.tokens
        self._link.wake()

    # ------------------------------------------------------------------ letters

    def outgoing(self) -> str | None:
        if not self._returned and self._unused:
            self._returned, self._unused = self._unused, {}
            self._batch += 1
        if not self._returned and not self._asks:
            return None
        self._asked, self._asks = self._asks, []
        return json.dumps(
            {
                "worker": self._worker,
                "batch": self._batch,
                "returns": [
                    {
                        "id": subject_id,
                        **period._asdict(),
                        "requests": sums.requests,
                        "rate_tokens": sums.rate_tokens,
                        "tokens": sums.tokens,
                    }
                    for (subject_id, period), sums in self._returned.items()
                ],
                "asks": [ask for ask, _ in self._asked],
            }
        )

    last = outgoing

    def incoming(self, reply: str) -> None:
        letter = json.loads(reply)
        self._returned = {}
        asked, self._asked = self._asked, []
        period = Period(letter["day"], letter["month"])
        for (ask, future), answer in zip(asked, letter["answers"] or (), strict=True):
            if not future.cancelled():
                future.set_result({**answer, "now": letter["now"], "period": period})
            elif answer.get("ok"):
                self._undo(ask, period)
        if self._unused or self._asks:
            self._link.wake()

    def lost(self, error: CountersAway) -> None:
        asked, self._asked, self._asks = [*self._asked, *self._asks], [], []
        for _, future in asked:
            if not future.done():
                future.set_exception(error)

    # ----------------------------------------------------------------- internal

    async def _reserve(self, subjects: list[Subject], num_tokens: int) -> Answer:
        """Raises CountersAway."""
        described = [_described(subject) for subject in subjects]
        while True:
            answer = await self._ask({"subjects": described, "tokens": num_tokens})
            if "ok" in answer:
                return answer
            for number in answer["seed"]:
                used = await asyncio.to_thread(self._used_tokens, subjects[number])
                described[number]["used"] = used

    async def _ask(self, ask: dict[str, Any]) -> Answer:
        if self._link.is_away:
            raise CountersAway
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asks.append((ask, future))
        self._link.wake()
        return await future

    def _undo(self, ask: dict[str, Any], period: Period) -> None:
        """Whoever asked has gone meanwhile."""
        tokens = ask["tokens"]
        for subject in ask["subjects"]:
            sums = self._unused.setdefault((subject["id"], period), Unused())
            sums.requests += "rpm" in subject
            sums.rate_tokens += tokens if "tpm" in subject else 0
            sums.tokens += tokens

    def _share(self) -> "OwnShare":
        """Counted anew whenever Redis has gone away."""
        if self._own is None:
            self._own = OwnShare(max(1, self._num_workers()), self._used_tokens)
        return self._own


class RedisReservation:
    """What was taken for one request."""

    __slots__ = ("_counters", "_is_open", "_num_tokens", "_period", "_subjects", "rate_headers")

    def __init__(
        self,
        counters: RedisCounters,
        subjects: Sequence[Subject],
        num_tokens: int,
        period: Period,
        headers: Headers,
    ) -> None:
        self.rate_headers = headers
        self._counters = counters
        self._subjects = subjects
        self._num_tokens = num_tokens
        self._period = period
        self._is_open = True

    def settle(self, num_used: int) -> None:
        self._end(self._num_tokens - num_used, num_requests=0)

    def cancel(self) -> None:
        self._end(self._num_tokens, num_requests=1)

    def _end(self, num_left: int, num_requests: int) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if not num_left and not num_requests:
            return
        for subject in self._subjects:
            limits = subject.limits
            self._counters.give_back(
                subject,
                self._period,
                Unused(
                    0 if limits.rpm is None else num_requests,
                    0 if limits.tpm is None else num_left,
                    num_left,
                ),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()


class OwnShare:
    """LimitCounters in memory, for one of `num_workers`: of every limit, and of what is used
    already, its part."""

    def __init__(self, num_workers: int, used_tokens: UsedTokens) -> None:
        def part_used(subject: Subject) -> tuple[int, int]:
            daily, monthly = used_tokens(subject)
            return daily // num_workers, monthly // num_workers

        self._num_workers = num_workers
        self._meters = Meters(part_used)
        self._parts: dict[str, tuple[Limits, Subject]] = {}

    async def reserve(self, subjects: Sequence[Subject], num_tokens: int) -> Reservation:
        return await self._meters.reserve([self._part(each) for each in subjects], num_tokens)

    def _part(self, subject: Subject) -> Subject:
        limits, part = self._parts.get(subject.id, (None, None))
        if part is None or limits is not subject.limits:
            part = replace(subject, limits=_divided(subject.limits, self._num_workers))
            self._parts[subject.id] = (subject.limits, part)
        return part


def _divided(limits: Limits, number: int) -> Limits:
    def part(limit: int | None) -> int | None:
        return None if limit is None else max(1, limit // number)

    return replace(
        limits,
        rpm=part(limits.rpm),
        tpm=part(limits.tpm),
        daily_tokens=part(limits.daily_tokens),
        monthly_tokens=part(limits.monthly_tokens),
    )


def _described(subject: Subject) -> dict[str, Any]:
    limits = subject.limits
    fields = {
        "rpm": limits.rpm,
        "tpm": limits.tpm,
        "day": limits.daily_tokens,
        "month": limits.monthly_tokens,
    }
    return {"id": subject.id} | {name: each for name, each in fields.items() if each is not None}


def _meter(subject: Subject, state: dict[str, str], now: float) -> Meter:
    """As Redis has it now."""
    limits = subject.limits
    return Meter(
        limits,
        datetime.fromtimestamp(now, UTC),
        who=subject.who,
        daily_used=int(float(state["day_used"])),
        monthly_used=int(float(state["month_used"])),
        requests=None if limits.rpm is None else RateLimit(limits.rpm, float(state["rpm_at"])),
        tokens=None if limits.tpm is None else RateLimit(limits.tpm, float(state["tpm_at"])),
    )
