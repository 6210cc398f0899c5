"""What is to be sent to one destination, and when it is tried next: pure, time is an argument."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from carpool.watch.notice import Notice

FIRST_RETRY_S = 5.0
MAX_RETRY_S = 300.0
MAX_AGE_S = 6 * 3600.0
"""News older than this is none."""
MAX_WAITING = 50


class DestinationState(StrEnum):
    IDLE = "idle"
    """Nothing was sent yet."""
    OK = "ok"
    FAILING = "failing"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """Counts are of messages: `failed` were refused for good or grew too old, `dropped` had to
    make room for newer ones."""

    state: DestinationState
    waiting: int
    delivered: int
    failed: int
    dropped: int
    last_error: str | None
    last_delivered_at: float | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    notice: Notice
    since: float


class Outbox:
    """One message after another, in order: while the first cannot be delivered, the others
    wait, and it is tried again after a pause that doubles. The oldest goes when it is full."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._num_tries = 0
        self._next_try = 0.0
        self._state = DestinationState.IDLE
        self._delivered = self._failed = self._dropped = 0
        self._last_error: str | None = None
        self._last_delivered_at: float | None = None

    def put(self, notice: Notice, now: float) -> None:
        self._waiting.append(_Waiting(notice, now))
        if len(self._waiting) > MAX_WAITING:
            self._leave()
            self._dropped += 1

    def first(self, now: float) -> Notice | None:
        """What is to be tried now. It stays the first until it is told how that went."""
        while self._waiting and now - self._waiting[0].since > MAX_AGE_S:
            self._leave()
            self._failed += 1
        return self._waiting[0].notice if self._waiting and self._next_try <= now else None

    def next_try(self) -> float | None:
        """When `first` has something; None while nothing waits."""
        return self._next_try if self._waiting else None

    def delivered(self, notice: Notice, now: float) -> bool:
        """True if this ends a time of failures."""
        self._leave_if_first(notice)
        self._delivered += 1
        self._last_delivered_at = now
        return self._is_news(DestinationState.OK, None)

    def refused(self, notice: Notice, error: str) -> bool:
        """It will not be taken, however often. True if failures begin with this."""
        self._leave_if_first(notice)
        self._failed += 1
        return self._is_news(DestinationState.FAILING, error)

    def failed(self, error: str, now: float, retry_after_s: float | None = None) -> bool:
        """To be tried again, not before `retry_after_s`. True if failures begin with this."""
        pause = min(FIRST_RETRY_S * 2.0 ** min(self._num_tries, 16), MAX_RETRY_S)
        if retry_after_s is not None:
            pause = min(max(pause, retry_after_s), MAX_AGE_S)
        self._num_tries += 1
        self._next_try = now + pause
        return self._is_news(DestinationState.FAILING, error)

    def status(self) -> OutboxStatus:
        return OutboxStatus(
            state=self._state,
            waiting=len(self._waiting),
            delivered=self._delivered,
            failed=self._failed,
            dropped=self._dropped,
            last_error=self._last_error,
            last_delivered_at=self._last_delivered_at,
        )

    def _leave_if_first(self, notice: Notice) -> None:
        """It may have been dropped meanwhile."""
        if self._waiting and self._waiting[0].notice is notice:
            self._leave()

    def _leave(self) -> None:
        """The next starts afresh."""
        self._waiting.popleft()
        self._num_tries = 0
        self._next_try = 0.0

    def _is_news(self, state: DestinationState, error: str | None) -> bool:
        was_failing = self._state is DestinationState.FAILING
        self._state, self._last_error = state, error
        return was_failing is (state is DestinationState.OK)
