"""What a key may use: requests and tokens per minute, tokens per day and per month.

A request is checked against all of them at once and takes from all or from none. It reserves
an estimate of its tokens when it comes, so that a burst cannot pass on one check, and settles
what it used when it ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from carpool.gateway.outcome import Outcome
from carpool.gateway.rate_limit import RateLimit
from carpool.gateway.refusal import Refusal, whole_seconds
from carpool.store.limits import Limits


@dataclass(slots=True)
class TokenBudget:
    """Tokens of the calendar day or month (UTC) that began at `begin`. `limit` None: as many
    as one likes, and they are counted all the same."""

    name: str
    begin: datetime
    used: int = 0
    limit: int | None = None

    @property
    def end(self) -> datetime:
        if self.name == "daily":
            return self.begin + timedelta(days=1)
        return (self.begin + timedelta(days=32)).replace(day=1)

    def roll(self, utc: datetime) -> None:
        """Begin anew when the period is over."""
        if utc >= self.end:
            self.begin, self.used = _begin(self.name, utc), 0

    def has_room(self, num_tokens: int) -> bool:
        return self.limit is None or self.used + num_tokens <= self.limit


class KeyMeter:
    """What one key has used. `now` is monotonic seconds, `utc` the wall clock."""

    def __init__(
        self, limits: Limits, utc: datetime, *, daily_used: int = 0, monthly_used: int = 0
    ) -> None:
        self.limits = limits
        self._requests = None if limits.rpm is None else RateLimit(limits.rpm)
        self._tokens = None if limits.tpm is None else RateLimit(limits.tpm)
        self._budgets = (
            TokenBudget("daily", _begin("daily", utc), daily_used, limits.daily_tokens),
            TokenBudget("monthly", _begin("monthly", utc), monthly_used, limits.monthly_tokens),
        )

    def change(self, limits: Limits, now: float) -> None:
        """Other limits from now on; what was used stays used."""
        self._requests = _changed(self._requests, limits.rpm, now)
        self._tokens = _changed(self._tokens, limits.tpm, now)
        daily, monthly = self._budgets
        daily.limit, monthly.limit = limits.daily_tokens, limits.monthly_tokens
        self.limits = limits

    def reserve(self, num_tokens: int, now: float, utc: datetime) -> "TokenReservation":
        """Take one request and `num_tokens` tokens. Raises Refusal, and then takes nothing."""
        self._check(num_tokens, now, utc)
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(num_tokens, now)
        for budget in self._budgets:
            budget.used += num_tokens
        return TokenReservation(num_tokens, self._requests, self._tokens, self._budgets)

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

    def _check(self, num_tokens: int, now: float, utc: datetime) -> None:
        if self._requests is not None and (wait := self._requests.wait_s(1, now)) > 0:
            raise _rate_refusal(Outcome.REQUESTS_PER_MINUTE, "rpm", self._requests, 1, wait, now)
        if self._tokens is not None and (wait := self._tokens.wait_s(num_tokens, now)) > 0:
            raise _rate_refusal(
                Outcome.TOKENS_PER_MINUTE, "tpm", self._tokens, num_tokens, wait, now
            )
        for budget in self._budgets:
            budget.roll(utc)
            if not budget.has_room(num_tokens):
                raise _budget_refusal(budget, num_tokens, utc)


class TokenReservation:
    """What was taken for one request, and from what: a limit that came later has nothing to
    give back. Settled or cancelled exactly once; again is nothing."""

    __slots__ = ("_budgets", "_is_open", "_num_tokens", "_requests", "_tokens")

    def __init__(
        self,
        num_tokens: int,
        requests: RateLimit | None,
        tokens: RateLimit | None,
        budgets: Iterable[TokenBudget],
    ) -> None:
        self._num_tokens = num_tokens
        self._requests = requests
        self._tokens = tokens
        self._budgets = [(budget, budget.begin) for budget in budgets]
        self._is_open = True

    def settle(self, num_used: int) -> None:
        """The request was served and used `num_used` tokens, more or less than was taken. They
        count for the day on which they were taken."""
        if not self._is_open:
            return
        self._is_open = False
        num_left = self._num_tokens - num_used
        if self._tokens is not None:
            self._tokens.give_back(num_left)
        for budget, begin in self._budgets:
            if budget.begin == begin:
                budget.used -= num_left

    def cancel(self) -> None:
        """The request was not served, and costs nothing."""
        if self._is_open and self._requests is not None:
            self._requests.give_back(1)
        self.settle(0)


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
        f"try again in {whole_seconds(wait)} s",
        limit=name,
        retry_after_s=wait,
    )


def _budget_refusal(budget: TokenBudget, num_tokens: int, utc: datetime) -> Refusal:
    return Refusal(
        Outcome.TOKEN_BUDGET,
        f"this key's {budget.name} budget is {budget.limit:,} tokens, {budget.used:,} are used and "
        f"this request needs about {num_tokens:,}; it begins anew at "
        f"{budget.end:%Y-%m-%d %H:%M} UTC, or ask for a larger one",
        limit=f"{budget.name}_tokens",
        retry_after_s=(budget.end - utc).total_seconds(),
    )


def _changed(rate: RateLimit | None, limit: int | None, now: float) -> RateLimit | None:
    if limit is None:
        return None
    if rate is None:
        return RateLimit(limit)
    rate.change(limit, now)
    return rate


def _begin(name: str, moment: datetime) -> datetime:
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day if name == "daily" else day.replace(day=1)
