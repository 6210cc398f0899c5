"""What counts requests and tokens for limits: in memory, or where several gateways can see it."""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.gateway.subject import Subject

Headers = list[tuple[bytes, bytes]]


class LimitReached(Refusal):
    """A limit does not let a request in. `rate_headers` say how matters stand."""

    def __init__(
        self, outcome: Outcome, message: str, *, limit: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(outcome, message, limit=limit, retry_after_s=retry_after_s)
        self.rate_headers: Headers = []


class Reservation(Protocol):
    """What was taken for one request. Settled or cancelled once; again is nothing. The end of
    its `with` cancels it if nothing else has ended it. None of this waits for anything."""

    rate_headers: Headers
    """OpenAI's x-ratelimit headers, for the tightest of the limits."""

    def settle(self, num_used: int) -> None:
        """The request was served and used `num_used` tokens, more or less than was taken."""
        ...

    def cancel(self) -> None:
        """The request was not served, and costs nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class LimitCounters(Protocol):
    async def reserve(self, subjects: Sequence[Subject], num_tokens: int) -> Reservation:
        """Take one request and `num_tokens` tokens of every limit of all `subjects`: of all at
        once, or of none. Raises LimitReached, and then has taken nothing.

        The subjects' limits are those that hold now: others than at the last call change them,
        and what was used stays used.
        """
        ...
