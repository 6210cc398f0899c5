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
    that the client caused is a success of the replica."""

    def __init__(
        self, *, max_failures: int = 3, open_s: float = 1.0, max_open_s: float = 30.0
    ) -> None:
        self._max_failures = max_failures
        self._first_open_s = open_s
        self._max_open_s = max_open_s
        self._open_s = open_s
        self._num_failures = 0
        self._open_until: float | None = None
        self._is_trying = False

    def state(self, now: float) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a request may go. In HALF_OPEN one may, and `started` says that it did."""
        match self.state(now):
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return False
            case BreakerState.HALF_OPEN:
                return not self._is_trying

    def started(self, now: float) -> None:
        self._is_trying = self.state(now) is BreakerState.HALF_OPEN

    def succeeded(self) -> None:
        self._num_failures = 0
        self._open_until = None
        self._open_s = self._first_open_s
        self._is_trying = False

    def failed(self, now: float) -> None:
        self._num_failures += 1
        was_trial = self._is_trying
        self._is_trying = False
        if was_trial:
            self._open_s = min(self._max_open_s, 2 * self._open_s)
        if was_trial or (self._open_until is None and self._num_failures >= self._max_failures):
            self._open_until = now + self._open_s

    def abandoned(self) -> None:
        """The request ended without telling anything about the replica: its client left."""
        self._is_trying = False

    def retry_after_s(self, now: float) -> float:
        return max(0.0, (self._open_until or now) - now)
