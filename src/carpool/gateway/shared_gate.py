"""The gate of a model whose seats several workers share.

Its admission mirrors what the shared pool says of this worker's tickets. While nobody answers
for the pool it decides by itself, as the gate of one worker does, over its part of the seats.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from carpool.gateway.admission import Admission, Elsewhere
from carpool.gateway.gate import Gate, Seat
from carpool.gateway.refusal import Refusal
from carpool.gateway.shared_seats import PoolFigures, SharedSeats, Standing
from carpool.gateway.ticket import Ticket
from carpool.gateway.waiting_room import Room
from carpool.scheduling.capacity import Capacity


class SharedGate(Gate):
    """A Gate over `pool`, the name by which all who send to the same engines know its seats.

    A ticket that comes is `asked` for until the pool has answered; then it waits, or goes.
    """

    def __init__(self, admission: Admission, seats: SharedSeats, pool: str) -> None:
        super().__init__(admission, asyncio.get_running_loop().time)
        self._seats = seats
        self._pool = pool
        self._asked: dict[str, Ticket] = {}
        self._capacity: Capacity | None = None
        self._is_alone = True
        self._peak = 0
        seats.add(pool, self)

    def enter(self, ticket: Ticket) -> Seat:
        if self._is_alone:
            return super().enter(ticket)
        self._check_open()
        self.admission.check_size(ticket)
        ticket.entered_at = self._clock()
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits[ticket.request_id] = granted
        self._asked[ticket.request_id] = ticket
        self._seats.enter(self._pool, ticket)
        return Seat(ticket, granted, self._leave)

    def _leave(self, seat: Seat) -> None:
        self._asked.pop(seat.ticket.request_id, None)
        super()._leave(seat)
        if not self._is_alone:
            self._seats.leave(
                self._pool, seat.ticket, seat.num_prompt_tokens, seat.num_output_tokens
            )

    def pump(self) -> None:
        if self._is_alone:
            super().pump()
        elif self.admission.num_waiting:
            self._expire(self._clock())

    def refuse_waiting(self, is_meant: Callable[[Ticket], bool], refusal: Refusal) -> None:
        meant = [ticket for ticket in self._asked.values() if is_meant(ticket)]
        for ticket in meant:
            del self._asked[ticket.request_id]
        self._refuse(meant, lambda _: refusal)
        super().refuse_waiting(is_meant, refusal)

    def renew(self, change: Callable[[Ticket], None]) -> None:
        changed: list[Ticket] = []

        def note_change(ticket: Ticket) -> None:
            before = _terms(ticket)
            change(ticket)
            if _terms(ticket) != before:
                changed.append(ticket)

        super().renew(note_change)
        for ticket in self._asked.values():
            note_change(ticket)
        for ticket in changed:
            self._seats.change(self._pool, ticket)

    def set_capacity(
        self, capacity: Capacity | None, max_request_tokens: int | None, *, is_paused: bool
    ) -> None:
        before = self._capacity, self.admission.is_paused
        self._capacity = capacity or self._capacity
        super().set_capacity(self._own_capacity(), max_request_tokens, is_paused=is_paused)
        if (self._capacity, is_paused) != before:
            self._seats.tell(self._pool, self._told())

    def num_foreign(self, num_at_engines: int, num_foreign: int) -> int:
        return num_foreign if self._is_alone else max(0, num_at_engines - self._peak)

    # ------------------------------------------------------------------ the pool

    def standing(self) -> Standing:
        in_order = sorted(self.admission.in_flight, key=lambda ticket: ticket.granted_at or 0.0)
        return Standing(
            in_order, list(self.admission.waiting), list(self._asked.values()), self._told()
        )

    def go_alone(self) -> None:
        if self._is_alone:
            return
        self._is_alone = True
        self.admission.elsewhere = Elsewhere()
        self._share_capacity()
        asked, self._asked = self._asked, {}
        now = self._clock()
        for ticket in asked.values():
            self._enter_alone(ticket, now)
        self.pump()

    def go_together(self) -> None:
        self._is_alone = False
        self._share_capacity()

    def answered(self, request_id: str, answer: dict[str, Any], is_granted: bool) -> None:
        ticket = self._asked.get(request_id)
        if ticket is None or is_granted:
            return  # it has left; or the news will say that it goes
        del self._asked[request_id]
        if "room" in answer:
            room = Room(**answer["room"])
            self._refuse([ticket], lambda each: self.admission.no_room(each, room))
            return
        ticket.position = answer["position"]
        self.admission.push(ticket)
        self._set_timer(self._clock())

    def granted(self, request_id: str) -> None:
        ticket = self._asked.pop(request_id, None) or self.admission.waiting.get(request_id)
        if ticket is not None:
            self.admission.start(ticket, self._clock())
            self._let_go(ticket)

    def heard(self, figures: PoolFigures) -> None:
        self._peak = figures.peak
        self.admission.elsewhere = Elsewhere(
            max(0, figures.waiting - self.admission.num_waiting),
            max(0, figures.in_flight - self.admission.num_in_flight),
        )

    # ----------------------------------------------------------------- internal

    def _enter_alone(self, ticket: Ticket, now: float) -> None:
        try:
            self.admission.enter(ticket, now)
        except Refusal as error:
            refusal = error
            self._refuse([ticket], lambda _: refusal)

    def _told(self) -> dict[str, Any]:
        limits = self.admission.limits
        capacity = self._capacity or self.admission.capacity
        told: dict[str, Any] = {
            "max_requests": limits.max_requests,
            "max_tokens": limits.max_tokens,
            "newcomer_seats": limits.kept_seats(capacity.max_num_seqs),
            "is_paused": self.admission.is_paused,
        }
        if self._capacity is not None:
            told["max_num_seqs"] = self._capacity.max_num_seqs
            told["kv_tokens"] = self._capacity.kv_tokens
        return told

    def _share_capacity(self) -> None:
        if (own := self._own_capacity()) is not None:
            self.admission.capacity = own

    def _own_capacity(self) -> Capacity | None:
        """All of it or, of a worker alone, its part: one seat at the least."""
        if self._capacity is None or not self._is_alone:
            return self._capacity
        number = self._seats.num_workers
        return replace(
            self._capacity,
            max_num_seqs=max(1, self._capacity.max_num_seqs // number),
            kv_tokens=max(1, self._capacity.kv_tokens // number),
        )


def _terms(ticket: Ticket) -> tuple[object, ...]:
    return (
        ticket.weight,
        ticket.max_in_flight,
        ticket.person_max_in_flight,
        ticket.model_max_in_flight,
    )
