"""What a key may use: requests and tokens per minute, tokens per day and per month.

A request is checked against all of them at once and takes from all or from none. It reserves
an estimate of its tokens when it comes, so that a burst cannot pass on one check, and settles
what it used when it ends.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from carpool.gateway.outcome import Outcome
from carpool.gateway.rate_limit import RateLimit
from carpool.gateway.refusal import Refusal
from carpool.store.key import Key, KeyLimits


@dataclass(slots=True)
class TokenBudget:
    """Tokens of one calendar day or month (UTC). `period` is its first instant."""

    name: str
    limit: int
    period: datetime
    used: int = 0

    def roll(self, now: datetime) -> None:
        """Begin anew when the period is over."""
        begin = _begin(self.name, now)
        if begin != self.period:
            self.period, self.used = begin, 0

    def seconds_left(self, now: datetime) -> float:
        return (_next(self.name, self.period) - now).total_seconds()


class KeyMeter:
    """What one key has used. `now` is monotonic seconds, `utc` the wall clock."""

    def __init__(self, key: Key, utc: datetime, *, daily_used: int = 0, monthly_used: int = 0):
        self._requests: RateLimit | None = None
        self._tokens: RateLimit | None = None
        self._budgets: list[TokenBudget] = []
        self._used = {"daily": daily_used, "monthly": monthly_used}
        self._limits = KeyLimits()
        self.set_limits(key.limits, utc)

    def set_limits(self, limits: KeyLimits, utc: datetime) -> None:
        """Take changed limits; what was used stays used."""
        if self._requests is None or self._limits.rpm != limits.rpm:
            self._requests = RateLimit(limits.rpm) if limits.rpm else None
        if self._tokens is None or self._limits.tpm != limits.tpm:
            self._tokens = RateLimit(limits.tpm) if limits.tpm else None
        used = self._used | {budget.name: budget.used for budget in self._budgets}
        wanted = (("daily", limits.daily_tokens), ("monthly", limits.monthly_tokens))
        self._budgets = [
            TokenBudget(name, limit, _begin(name, utc), used[name])
            for name, limit in wanted
            if limit
        ]
        self._limits = limits

    def reserve(self, num_tokens: int, now: float, utc: datetime) -> "TokenReservation":
        """Take one request and `num_tokens` tokens. Raises Refusal, and then takes nothing."""
        if self._requests is not None and (wait := self._requests.wait_s(1, now)) > 0:
            raise _rate_refusal(Outcome.REQUESTS_PER_MINUTE, "rpm", self._requests, 1, wait, now)
        if self._tokens is not None and (wait := self._tokens.wait_s(num_tokens, now)) > 0:
            raise _rate_refusal(
                Outcome.TOKENS_PER_MINUTE, "tpm", self._tokens, num_tokens, wait, now
            )
        for budget in self._budgets:
            budget.roll(utc)
            if budget.used + num_tokens > budget.limit:
                raise _budget_refusal(budget, num_tokens, utc)
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(num_tokens, now)
        for budget in self._budgets:
            budget.used += num_tokens
        return TokenReservation(self, num_tokens)

    def give_back(self, num_tokens: int, *, is_unserved: bool) -> None:
        """`num_tokens` of a reservation were not used (negative: more were). A request that was
        not served at all gives back its place in the minute, too."""
        if is_unserved and self._requests is not None:
            self._requests.give_back(1)
        if self._tokens is not None:
            self._tokens.give_back(num_tokens)
        for budget in self._budgets:
            budget.used = max(0, budget.used - num_tokens)

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """OpenAI's x-ratelimit headers for the limits there are."""
        headers: list[tuple[bytes, bytes]] = []
        for name, limit in ((b"requests", self._requests), (b"tokens", self._tokens)):
            if limit is not None:
                headers += [
                    (b"x-ratelimit-limit-" + name, b"%d" % limit.limit),
                    (b"x-ratelimit-remaining-" + name, b"%d" % limit.remaining(now)),
                    (b"x-ratelimit-reset-" + name, b"%.3fs" % limit.reset_s(now)),
                ]
        return headers


class TokenReservation:
    """Tokens taken for one request; settled exactly once, and again is nothing."""

    __slots__ = ("_meter", "_num_tokens")

    def __init__(self, meter: KeyMeter, num_tokens: int) -> None:
        self._meter: KeyMeter | None = meter
        self._num_tokens = num_tokens

    def settle(self, num_used: int) -> None:
        """The request was served, and used `num_used` tokens."""
        if self._meter is not None:
            self._meter.give_back(self._num_tokens - num_used, is_unserved=False)
            self._meter = None

    def cancel(self) -> None:
        """The request was not served, and costs nothing."""
        if self._meter is not None:
            self._meter.give_back(self._num_tokens, is_unserved=True)
            self._meter = None


def _rate_refusal(
    outcome: Outcome, name: str, limit: RateLimit, num_units: int, wait: float, now: float
) -> Refusal:
    unit = "requests" if name == "rpm" else "tokens"
    if num_units > limit.limit:
        return Refusal(
            outcome,
            f"this request needs about {num_units:,} {unit}, and this key may use {limit.limit:,} "
            f"per minute ({name}); send a shorter prompt, a smaller max_tokens, or ask for a "
            "higher limit",
            limit=name,
            retry_after_s=60,
        )
    return Refusal(
        outcome,
        f"this key may use {limit.limit:,} {unit} per minute ({name}), "
        f"{limit.remaining(now):,} are left and this request needs {num_units:,}; "
        f"try again in {max(1, round(wait))} s",
        limit=name,
        retry_after_s=wait,
    )


def _budget_refusal(budget: TokenBudget, num_tokens: int, utc: datetime) -> Refusal:
    return Refusal(
        Outcome.TOKEN_BUDGET,
        f"this key's {budget.name} budget is {budget.limit:,} tokens, {budget.used:,} are used and "
        f"this request needs about {num_tokens:,}; it begins anew at "
        f"{_next(budget.name, budget.period):%Y-%m-%d %H:%M} UTC, or ask for a larger one",
        limit=f"{budget.name}_tokens",
        retry_after_s=budget.seconds_left(utc),
    )


def _begin(name: str, moment: datetime) -> datetime:
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day if name == "daily" else day.replace(day=1)


def _next(name: str, begin: datetime) -> datetime:
    if name == "daily":
        return begin + timedelta(days=1)
    return (begin + timedelta(days=32)).replace(day=1)
