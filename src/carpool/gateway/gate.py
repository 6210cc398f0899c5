"""The admission queue as coroutines meet it: wait for a seat, hold it, give it back."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from carpool.gateway.admission import Admission
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal, whole_seconds
from carpool.gateway.ticket import Ticket
from carpool.scheduling.capacity import Capacity


class Seat:
    """A ticket that may go, or the wait for it. Leaves the queue, or gives its seat back, at the
    end of its `with`; `used` says first what the request really took."""

    __slots__ = ("_granted", "_leave", "num_output_tokens", "num_prompt_tokens", "ticket")

    def __init__(
        self,
        ticket: Ticket,
        granted: "asyncio.Future[None] | None",
        leave: "Callable[[Seat], None]",
    ) -> None:
        """`granted` None: it may go already."""
        self.ticket = ticket
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self._granted = granted
        self._leave = leave

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(self)

    @property
    def is_granted(self) -> bool:
        return self._granted is None or self._granted.done()

    async def wait(self) -> None:
        """Until the ticket may go. Raises Refusal if it may not any more."""
        if self._granted is not None:
            await asyncio.shield(self._granted)

    def used(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens


class Gate:
    """One per model: the one place where tickets come, are granted and end."""

    def __init__(self, admission: Admission, clock: Callable[[], float]) -> None:
        self.admission = admission
        self._clock = clock
        self._waits: dict[str, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed: Refusal | None = None
        admission.counts.watch(self.pump)

    def enter(self, ticket: Ticket) -> Seat:
        """Take a place in the queue. Raises Refusal when there is none. The seat's `with` must
        follow: its end leaves the queue, or gives the seat back."""
        self._check_open()
        now = self._clock()
        if self.admission.enter_at_once(ticket, now):
            return Seat(ticket, None, self._leave)
        self.admission.enter(ticket, now)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits[ticket.request_id] = granted
        self.pump()
        return Seat(ticket, granted, self._leave)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # or it would grow with every request

    def _leave(self, seat: Seat) -> None:
        granted = self._waits.pop(seat.ticket.request_id, None)
        if granted is not None and granted.done() and not granted.cancelled():
            granted.exception()  # a refusal that nobody waits for any more
        self.admission.leave(
            seat.ticket, self._clock(), seat.num_prompt_tokens, seat.num_output_tokens
        )
        if self.admission.num_waiting:
            self.pump()
        self.admission.counts.look_again()

    def pump(self) -> None:
        """Let everybody go who may. Call it when seats, memory or the backend came back."""
        now = self._clock()
        for ticket in self.admission.grant(now):
            self._let_go(ticket)
        if self.admission.num_waiting:
            self._expire(now)

    def set_capacity(
        self, capacity: Capacity | None, max_request_tokens: int | None, *, is_paused: bool
    ) -> None:
        """What the engines carry together, and the most that one of them can hold; None where
        none has said. They take nothing while the gate `is_paused`."""
        if capacity is not None:
            self.admission.capacity = capacity
            self.admission.max_request_tokens = max_request_tokens
        self.admission.is_paused = is_paused
        self.pump()

    def num_foreign(self, num_at_engines: int, num_foreign: int) -> int:
        """Requests of others than this gate lets in, of those that the engines say they have:
        `num_foreign` were not sent by this process."""
        return num_foreign

    def refuse_waiting(self, is_meant: Callable[[Ticket], bool], refusal: Refusal) -> None:
        """Send away those who wait and are meant, with `refusal`."""
        meant = [ticket for ticket in self.admission.waiting if is_meant(ticket)]
        now = self._clock()
        for ticket in meant:
            self.admission.leave(ticket, now)
        self._refuse(meant, lambda _: refusal)

    def renew(self, change: Callable[[Ticket], None]) -> None:
        """Let `change` give those who wait the caps and the weight that hold now."""
        self.admission.renew(change)
        self.pump()

    def close(self, refusal: Refusal) -> None:
        """Take nobody in any more, and send away those who wait."""
        self._closed = refusal
        self.refuse_waiting(lambda _: True, refusal)

    def _let_go(self, ticket: Ticket) -> None:
        if (granted := self._waits.get(ticket.request_id)) is not None and not granted.done():
            granted.set_result(None)

    def _expire(self, now: float) -> None:
        self._refuse(self.admission.expire(now), self._waited_too_long)
        self._set_timer(now)

    def _refuse(self, tickets: list[Ticket], reason: Callable[[Ticket], Refusal]) -> None:
        for ticket in tickets:
            granted = self._waits.get(ticket.request_id)
            if granted is not None and not granted.done():
                granted.set_exception(reason(ticket))

    def _waited_too_long(self, ticket: Ticket) -> Refusal:
        waited = self.admission.limits.max_wait_s
        wait = self.admission.retry_after_s()
        return Refusal(
            Outcome.QUEUE_TIMEOUT,
            f"no seat came free within {waited:g} s; {self.admission.num_waiting} requests are "
            f"waiting; try again in {whole_seconds(wait)} s",
            limit="queue_wait",
            retry_after_s=wait,
        )

    def _set_timer(self, now: float) -> None:
        """Wake when the first of the waiting has waited too long. A timer that was set for one
        who has gone fires early, which does no harm."""
        first = next(iter(self.admission.waiting), None)
        if self._timer is None and first is not None:
            delay = max(0.0, first.entered_at + self.admission.limits.max_wait_s - now)
            self._timer = asyncio.get_running_loop().call_later(delay + 0.001, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.pump()
