"""What keys and people may use: requests and tokens per minute, tokens per day and per month.

A request is checked against all the limits that hold for it at once and takes from all or from
none. It reserves an estimate of its tokens when it comes, so that a burst cannot pass on one
check, and settles what it used when it ends.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import NamedTuple, Self

from carpool.gateway.limit_counters import Headers, LimitReached
from carpool.gateway.outcome import Outcome
from carpool.gateway.rate_limit import RateLimit
from carpool.gateway.refusal import whole_seconds
from carpool.store.limits import Limits


class TokenBudget:
    """Tokens of the calendar day or month (UTC) that `utc` is in, from `begin` until `end`.
    `limit` None: as many as one likes, and they are counted all the same."""

    __slots__ = ("begin", "end", "limit", "name", "period", "used")

    def __init__(self, name: str, utc: datetime, used: int, limit: int | None) -> None:
        self.name = name
        self.period = "day" if name == "daily" else "month"
        self.used = used
        self.limit = limit
        self.begin, self.end = _period(self.period, utc)

    def roll(self, utc: datetime) -> None:
        """Begin anew when the period is over."""
        if utc >= self.end:
            self.begin, self.end = _period(self.period, utc)
            self.used = 0

    def has_room(self, num_tokens: int) -> bool:
        return self.limit is None or self.used + num_tokens <= self.limit


class Objection(NamedTuple):
    """Why a request may not go, and in how many seconds it could; infinity: never as it is."""

    wait_s: float
    refusal: LimitReached


class Meter:
    """What one subject has used, by its limits. `who` begins what its people are told. `now` is
    monotonic seconds, `utc` the wall clock."""

    def __init__(
        self,
        limits: Limits,
        utc: datetime,
        *,
        who: str = "this key",
        daily_used: int = 0,
        monthly_used: int = 0,
        requests: RateLimit | None = None,
        tokens: RateLimit | None = None,
    ) -> None:
        """`requests` and `tokens` are rates that were used before."""
        self.limits = limits
        self.who = who
        self._requests = requests or _rate(limits.rpm)
        self._tokens = tokens or _rate(limits.tpm)
        self._budgets = (
            TokenBudget("daily", utc, daily_used, limits.daily_tokens),
            TokenBudget("monthly", utc, monthly_used, limits.monthly_tokens),
        )

    @property
    def requests(self) -> RateLimit | None:
        return None if self.limits.rpm is None else self._requests

    @property
    def tokens(self) -> RateLimit | None:
        return None if self.limits.tpm is None else self._tokens

    def change(self, limits: Limits, now: float) -> None:
        """Other limits from now on; what was used stays used, also while there is no limit."""
        self._requests = _changed(self._requests, limits.rpm, now)
        self._tokens = _changed(self._tokens, limits.tpm, now)
        daily, monthly = self._budgets
        daily.limit, monthly.limit = limits.daily_tokens, limits.monthly_tokens
        self.limits = limits

    def has_room(self, num_tokens: int, now: float, utc: datetime) -> bool:
        """Whether there are no `objections`."""
        requests, tokens = self.requests, self.tokens
        if requests is not None and requests.wait_s(1, now) > 0:
            return False
        if tokens is not None and tokens.wait_s(num_tokens, now) > 0:
            return False
        for budget in self._budgets:
            budget.roll(utc)
            if not budget.has_room(num_tokens):
                return False
        return True

    def objections(self, num_tokens: int, now: float, utc: datetime) -> Iterator[Objection]:
        """Why one request of `num_tokens` tokens may not go now."""
        rate = self.requests
        if rate is not None and (wait := rate.wait_s(1, now)) > 0:
            yield self._rate_objection("rpm", rate, 1, wait, now)
        rate = self.tokens
        if rate is not None and (wait := rate.wait_s(num_tokens, now)) > 0:
            yield self._rate_objection("tpm", rate, num_tokens, wait, now)
        for budget in self._budgets:
            budget.roll(utc)
            if not budget.has_room(num_tokens):
                yield self._budget_objection(budget, num_tokens, utc)

    def take(self, num_tokens: int, now: float) -> "Taken":
        """One request of `num_tokens` tokens, to which there are no objections."""
        requests, tokens = self.requests, self.tokens
        if requests is not None:
            requests.take(1, now)
        if tokens is not None:
            tokens.take(num_tokens, now)
        for budget in self._budgets:
            budget.used += num_tokens
        return Taken(requests, tokens, [(budget, budget.begin) for budget in self._budgets])

    def _rate_objection(
        self, name: str, rate: RateLimit, num_units: int, wait: float, now: float
    ) -> Objection:
        is_rpm = name == "rpm"
        outcome = Outcome.REQUESTS_PER_MINUTE if is_rpm else Outcome.TOKENS_PER_MINUTE
        may = f"{self.who} may use {rate.limit:,} {'requests' if is_rpm else 'tokens'} per minute"
        if num_units > rate.limit:
            message = (
                f"this request needs about {num_units:,} tokens, and {may} ({name}); send a "
                "shorter prompt, a smaller max_tokens, or ask for a higher limit"
            )
            return Objection(wait, LimitReached(outcome, message, limit=name, retry_after_s=60))
        message = (
            f"{may} ({name}), {rate.remaining(now):,} are left and this request needs "
            f"{num_units:,}; try again in {whole_seconds(wait)} s"
        )
        return Objection(wait, LimitReached(outcome, message, limit=name, retry_after_s=wait))

    def _budget_objection(self, budget: TokenBudget, num_tokens: int, utc: datetime) -> Objection:
        wait = (budget.end - utc).total_seconds()
        limit = budget.limit or 0
        message = (
            f"{self.who} may use {limit:,} tokens a {budget.period} "
            f"({budget.name}_tokens), {budget.used:,} are used and this request needs about "
            f"{num_tokens:,}; it begins anew at {budget.end:%Y-%m-%d %H:%M} UTC, or ask for more"
        )
        refusal = LimitReached(
            Outcome.TOKEN_BUDGET, message, limit=f"{budget.name}_tokens", retry_after_s=wait
        )
        return Objection(float("inf") if num_tokens > limit else wait, refusal)


class Taken(NamedTuple):
    """From what a request has taken: a limit that came later has nothing to give back."""

    requests: RateLimit | None
    tokens: RateLimit | None
    budgets: list[tuple[TokenBudget, datetime]]
    """With the beginning of the period in which it was."""


_REQUESTS, _TOKENS = (
    (
        b"x-ratelimit-limit-" + name,
        b"x-ratelimit-remaining-" + name,
        b"x-ratelimit-reset-" + name,
    )
    for name in (b"requests", b"tokens")
)


class TokenReservation:
    """What was taken for one request from its meters."""

    __slots__ = ("_is_open", "_num_tokens", "_taken", "rate_headers")

    def __init__(self, num_tokens: int, taken: Sequence[Taken], rate_headers: Headers) -> None:
        self.rate_headers = rate_headers
        self._num_tokens = num_tokens
        self._taken = taken
        self._is_open = True

    def settle(self, num_used: int) -> None:
        """The tokens count for the day on which they were taken."""
        if not self._is_open:
            return
        self._is_open = False
        num_left = self._num_tokens - num_used
        for _, tokens, budgets in self._taken:
            if tokens is not None:
                tokens.give_back(num_left)
            for budget, begin in budgets:
                if budget.begin == begin:
                    budget.used -= num_left

    def cancel(self) -> None:
        if not self._is_open:
            return
        for requests, _, _ in self._taken:
            if requests is not None:
                requests.give_back(1)
        self.settle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()


def reserve(
    meters: Sequence[Meter], num_tokens: int, now: float, utc: datetime
) -> TokenReservation:
    """Take one request and `num_tokens` tokens from all `meters`. Raises LimitReached for the
    limit that is in the way for longest, and then has taken nothing."""
    if not all(meter.has_room(num_tokens, now, utc) for meter in meters):
        raise refusal(meters, num_tokens, now, utc)
    taken = [meter.take(num_tokens, now) for meter in meters]
    return TokenReservation(num_tokens, taken, rate_headers(meters, now))


def refusal(meters: Sequence[Meter], num_tokens: int, now: float, utc: datetime) -> LimitReached:
    """By the limit that is in the way for longest."""
    objections = (each for meter in meters for each in meter.objections(num_tokens, now, utc))
    reached = max(objections, key=lambda objection: objection.wait_s).refusal
    reached.rate_headers = rate_headers(meters, now)
    return reached


def rate_headers(meters: Sequence[Meter], now: float) -> Headers:
    """OpenAI's x-ratelimit headers, for the limits with the least left."""
    return [
        *_rate_headers(_REQUESTS, [meter.requests for meter in meters], now),
        *_rate_headers(_TOKENS, [meter.tokens for meter in meters], now),
    ]


def _rate_headers(
    names: tuple[bytes, bytes, bytes], rates: Iterable[RateLimit | None], now: float
) -> Headers:
    tightest: tuple[int, float, int] | None = None
    for rate in rates:
        if rate is not None:
            state = (rate.remaining(now), -rate.reset_s(now), rate.limit)
            tightest = state if tightest is None or state < tightest else tightest
    if tightest is None:
        return []
    remaining, reset, limit = tightest
    values = (b"%d" % limit, b"%d" % remaining, b"%.3fs" % -reset)
    return list(zip(names, values, strict=True))


def _rate(limit: int | None) -> RateLimit | None:
    return None if limit is None else RateLimit(limit)


def _changed(rate: RateLimit | None, limit: int | None, now: float) -> RateLimit | None:
    """A rate without a limit is kept for the next one: what was taken is taken."""
    if limit is None:
        return rate
    if rate is None:
        return _rate(limit)
    rate.change(limit, now)
    return rate


def _period(name: str, moment: datetime) -> tuple[datetime, datetime]:
    """Beginning and end of the day or the month (UTC) that a moment is in."""
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if name == "day":
        return day, day + timedelta(days=1)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)
