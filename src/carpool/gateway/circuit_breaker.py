"""Stop asking a replica that fails, and try it again now and then."""

from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Opens after `max_failures` failures in a row, for `open_s` seconds, doubled at each
    failed trial up to `max_open_s`; then one request at a time tries. Only what the replica
    itself got wrong is a failure: refused connections, cuts, late first bytes, 5xx. An error
    that the client caused is a success of the replica. While it is not closed, only a trial
    tells anything: what began earlier may have seen a better replica."""

    def __init__(
        self, *, max_failures: int = 3, open_s: float = 1.0, max_open_s: float = 30.0
    ) -> None:
        self._max_failures = max_failures
        self._first_open_s = open_s
        self._max_open_s = max_open_s
        self._open_s = open_s
        self._num_failures = 0
        self._open_until: float | None = None
        self._trial: Attempt | None = None

    def state(self, now: float) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a request may go; its `attempt` follows before anybody else asks."""
        match self.state(now):
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return False
            case BreakerState.HALF_OPEN:
                return self._trial is None

    def attempt(self, now: float) -> "Attempt":
        """A request goes."""
        attempt = Attempt(self)
        if self._trial is None and self.state(now) is BreakerState.HALF_OPEN:
            self._trial = attempt
        return attempt

    def close(self) -> None:
        """The replica is known to be well."""
        self._num_failures = 0
        self._open_until = None
        self._open_s = self._first_open_s
        self._trial = None

    def retry_after_s(self, now: float) -> float:
        return max(0.0, (self._open_until or now) - now)

    def _succeeded(self, attempt: "Attempt") -> None:
        if self._open_until is None or attempt is self._trial:
            self.close()

    def _failed(self, attempt: "Attempt", now: float) -> None:
        self._num_failures += 1
        if attempt is self._trial:
            self._trial = None
            self._open_s = min(self._max_open_s, 2 * self._open_s)
            self._open_until = now + self._open_s
        elif self._open_until is None and self._num_failures >= self._max_failures:
            self._open_until = now + self._open_s

    def _ended(self, attempt: "Attempt") -> None:
        if attempt is self._trial:
            self._trial = None


class Attempt:
    """One request, and what it says about its replica. One that ends without a word says
    nothing: its client left."""

    __slots__ = ("_breaker",)

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def succeeded(self) -> None:
        self._breaker._succeeded(self)

    def failed(self, now: float) -> None:
        self._breaker._failed(self, now)

    def end(self) -> None:
        """After this, another may be tried."""
        self._breaker._ended(self)
