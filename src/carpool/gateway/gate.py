"""The admission queue as coroutines meet it: wait for a seat, hold it, give it back."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from carpool.gateway.admission import Admission
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal, whole_seconds
from carpool.gateway.ticket import Ticket


class Seat:
    """A ticket that may go, or the wait for it. Leaves the queue, or gives its seat back, when
    the `with` that made it ends; `used` says first what the request really took."""

    def __init__(self, ticket: Ticket, granted: "asyncio.Future[None]") -> None:
        self.ticket = ticket
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self._granted = granted

    @property
    def is_granted(self) -> bool:
        return self._granted.done()

    async def wait(self) -> None:
        """Until the ticket may go. Raises Refusal if it may not any more."""
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

    @contextmanager
    def enter(self, ticket: Ticket) -> Iterator[Seat]:
        """Take a place in the queue. Raises Refusal when there is none."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)  # or it would grow with every request
        now = self._clock()
        self.admission.enter(ticket, now)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits[ticket.request_id] = granted
        seat = Seat(ticket, granted)
        try:
            self.pump()
            yield seat
        finally:
            self._waits.pop(ticket.request_id, None)
            if granted.done() and not granted.cancelled():
                granted.exception()  # a refusal that nobody waits for any more
            self.admission.leave(
                ticket, self._clock(), seat.num_prompt_tokens, seat.num_output_tokens
            )
            self.pump()
            self.admission.counts.look_again()

    def pump(self) -> None:
        """Let everybody go who may. Call it when seats, memory or the backend came back."""
        now = self._clock()
        for ticket in self.admission.grant(now):
            if (granted := self._waits.get(ticket.request_id)) is not None and not granted.done():
                granted.set_result(None)
        self._refuse(self.admission.expire(now), self._waited_too_long)
        self._set_timer(now)

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
        """Wake when the first of the waiting has waited too long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        first = next(iter(self.admission.waiting), None)
        if first is not None:
            delay = max(0.0, first.entered_at + self.admission.limits.max_wait_s - now)
            self._timer = asyncio.get_running_loop().call_later(delay + 0.001, self.pump)
