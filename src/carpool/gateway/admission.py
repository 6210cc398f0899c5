"""Who may go to the backend now: one fair queue in front of seats and KV memory.

The least served person goes first, with one exception: some seats, and their part of the
memory, are kept for people who have little in flight, so that a newcomer need not wait for
anybody to end. It puts nobody ahead of the others by more than a full backend's service, which
keeps the bound of fair share. The batch lane goes when nobody in the interactive one waits for
a seat.

Pure: time comes in as an argument, tickets come out. The service a person is charged is what
a request is expected to take, corrected when it ends (Sheng et al., OSDI 2024, section 4.3,
the counter with length prediction): a gateway learns of tokens only afterwards.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

from carpool.gateway.in_flight import InFlightCounts, decrement
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal, whole_seconds
from carpool.gateway.ticket import Ticket
from carpool.gateway.waiting_room import QueueLimits, Room, WaitingRoom, objection
from carpool.scheduling.capacity import Capacity
from carpool.scheduling.queue import FairShareQueue
from carpool.store.lane import Lane

PROMPT_TOKEN_WEIGHT = 1.0
OUTPUT_TOKEN_WEIGHT = 2.0
FIRST_SERVICE_S = 5.0
"""What a request is taken to need before any has ended."""
_MEMORY = 8


class Elsewhere(NamedTuple):
    """Requests of other workers that wait for, or are at, the same engines."""

    waiting: int = 0
    in_flight: int = 0


class Admission:
    """Owns the queue and what is in flight. Every ticket that `enter` took leaves once, by
    `leave` or by `expire`. `counts` are shared with the other models' admissions."""

    def __init__(
        self, capacity: Capacity, limits: QueueLimits, counts: InFlightCounts | None = None
    ) -> None:
        self.capacity = capacity
        self.counts = counts or InFlightCounts()
        self.limits = limits
        self.max_request_tokens: int | None = None
        """The most that one engine can hold, where there are several."""
        self.is_paused = False
        """While the backend takes nothing, everybody waits."""
        self.waiting = WaitingRoom(limits)
        self.elsewhere = Elsewhere()
        self.in_flight_tokens = 0
        self.in_flight_seqs = 0
        self._lanes = {
            lane: FairShareQueue[Ticket](
                prompt_token_weight=PROMPT_TOKEN_WEIGHT, output_token_weight=OUTPUT_TOKEN_WEIGHT
            )
            for lane in Lane
        }
        self._in_flight: set[Ticket] = set()
        self._in_flight_by_person: Counter[str] = Counter()
        self._service_s: float | None = None

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def in_flight(self) -> Collection[Ticket]:
        return self._in_flight

    # ------------------------------------------------------------------ events

    def enter_at_once(self, ticket: Ticket, now: float) -> bool:
        """Whether a ticket goes to the backend without any wait, and so is in flight from here
        on: what `enter` and `grant` come to when nobody waits, for much less. If not, nothing
        has changed. Raises Refusal when it is too large for the backend."""
        self.check_size(ticket)
        if self.is_paused or len(self.waiting) or not self._may_go_alone(ticket):
            return False
        self._pass_by(ticket)
        ticket.entered_at = now
        self._charge(ticket, ticket.num_prompt_tokens, ticket.num_output_tokens)
        self._start(ticket, now)
        return True

    def enter(self, ticket: Ticket, now: float) -> None:
        """Queue a ticket and say where it stands (`position` 0: it is next).

        Raises Refusal when it is too large for the backend, or when the queue, or the person's
        share of it, is full.
        """
        self.check_size(ticket)
        if self.waiting.objection(ticket) is not None:
            raise self.no_room(ticket, self.waiting.room_of(ticket))
        ticket.entered_at = now
        ticket.position = self.waiting.num_before(ticket)
        self.push(ticket)

    def push(self, ticket: Ticket) -> None:
        """Queue a ticket for which somebody else has found room."""
        lane = self._lanes[ticket.lane]
        lane.set_weight(ticket.person_id, ticket.weight)
        lane.push(ticket)
        self.waiting.add(ticket)

    def grant(self, now: float) -> list[Ticket]:
        """Tickets that go to the backend now, in order; they are in flight from here on."""
        granted: list[Ticket] = []
        while not self.is_paused and (ticket := self._next()) is not None:
            self.start(ticket, now)
            granted.append(ticket)
        return granted

    def start(self, ticket: Ticket, now: float) -> None:
        """A ticket goes to the backend, by whoever's word; one that is there already stays."""
        if ticket in self._in_flight:
            return
        is_waiting = ticket in self.waiting
        if not is_waiting:
            self._pass_by(ticket)
        # Charged before it leaves the queue, so that its counter is there when a rank is taken.
        self._charge(ticket, ticket.num_prompt_tokens, ticket.num_output_tokens)
        if is_waiting:
            self._stop_waiting(ticket)
        self._start(ticket, now)

    def leave(
        self, ticket: Ticket, now: float, num_prompt_tokens: int = 0, num_output_tokens: int = 0
    ) -> None:
        """A ticket is done with, waiting or in flight; the tokens are what it really took.
        Again is nothing."""
        if ticket in self.waiting:
            self._stop_waiting(ticket)
        elif ticket in self._in_flight:
            self._end(ticket, now)
            self._charge(
                ticket,
                num_prompt_tokens - ticket.num_prompt_tokens,
                num_output_tokens - ticket.num_output_tokens,
            )

    def expire(self, now: float) -> list[Ticket]:
        """Tickets that have waited too long; they are out of the queue."""
        late = []
        for ticket in self.waiting:
            if now - ticket.entered_at < self.limits.max_wait_s:
                break
            late.append(ticket)
        for ticket in late:
            self._stop_waiting(ticket)
        return late

    def renew(self, change: Callable[[Ticket], None]) -> None:
        """Let `change` give those who wait the caps and the weight that hold now."""
        for ticket in self.waiting:
            change(ticket)
            self._lanes[ticket.lane].set_weight(ticket.person_id, ticket.weight)

    # ---------------------------------------------------------------- foresight

    def retry_after_s(self) -> float:
        """When the queue will have drained."""
        return self.seconds_until(len(self.waiting) + self.elsewhere.waiting + 1)

    def person_retry_after_s(self, person_id: str) -> float:
        """When this person's next ticket goes: once everybody who waits has had one."""
        return self.seconds_until(self.waiting.num_others(person_id) + 1)

    def seconds_until(self, num_ended: int) -> float:
        """Seconds until `num_ended` more requests have ended, by the rate at which they do:
        those in flight, over what one of them has been taking (Little's law)."""
        service_s = FIRST_SERVICE_S if self._service_s is None else self._service_s
        num_in_flight = len(self._in_flight) + self.elsewhere.in_flight
        return num_ended * service_s / (num_in_flight or self.capacity.max_num_seqs)

    def no_room(self, ticket: Ticket, room: Room) -> Refusal:
        """Why a ticket may not wait in that room, in which there is none for it."""
        found = objection(ticket, self.limits, room)
        outcome = Outcome.QUEUE_FULL if found is None else found.outcome
        message = "the queue is full" if found is None else found.message
        wait = self.retry_after_s()
        if outcome is Outcome.QUEUE_SHARE:
            wait = self.seconds_until(room.others + 1)
        return Refusal(
            outcome,
            f"{message}; try again in {whole_seconds(wait)} s",
            limit="queue",
            retry_after_s=wait,
        )

    def check_size(self, ticket: Ticket) -> None:
        """Raises Refusal when it is too large for the backend."""
        most = self.max_request_tokens or self.capacity.kv_tokens
        if ticket.num_tokens > most:
            raise Refusal(
                Outcome.TOO_LARGE,
                f"this request needs about {ticket.num_tokens:,} tokens of KV memory, and the "
                f"backend has {most:,}; send a shorter prompt or a smaller "
                "max_tokens",
                limit="kv_tokens",
            )

    # ----------------------------------------------------------------- internal

    def _next(self) -> Ticket | None:
        """The first that may go. Who is held by a limit of their own, or has their part in
        flight and finds only kept seats, is passed over; who does not fit is waited for, and
        meanwhile only newcomers go, into what is kept for them."""
        free_seats = self.capacity.max_num_seqs - self.in_flight_seqs
        if free_seats <= 0:
            return None
        for lane, queue in self._lanes.items():
            least: float | None = None
            is_waited_for = False
            skipped: set[str] = set()
            for ticket in queue.candidates(skipped):
                if self._is_person_held(ticket):
                    skipped.add(ticket.person_id)
                    continue
                if self.counts.holds_key(ticket):
                    if self.waiting.is_of_one_key(ticket):
                        skipped.add(ticket.person_id)
                    continue
                counter = queue.service(ticket.person_id)
                least = counter if least is None else least
                if self._is_newcomer(ticket, lane, counter - least):
                    return ticket if self._fits(ticket) else None
                skipped.add(ticket.person_id)
                if is_waited_for or free_seats <= self._kept_seats:
                    continue
                if self._needs_all(ticket):
                    return ticket if self._fits(ticket) else None
                if self._fits_beside_what_is_kept(ticket):
                    return ticket
                is_waited_for = True
            if is_waited_for:
                return None
        return None

    @property
    def _kept_seats(self) -> int:
        return self.limits.kept_seats(self.capacity.max_num_seqs)

    @property
    def _kept_tokens(self) -> int:
        """The kept seats' part of the memory."""
        return self._kept_seats * (self.capacity.kv_tokens // self.capacity.max_num_seqs)

    def _may_go_alone(self, ticket: Ticket) -> bool:
        """What `_next` asks, of the only one who is there."""
        free_seats = self.capacity.max_num_seqs - self.in_flight_seqs
        if free_seats <= 0 or self._is_person_held(ticket) or self.counts.holds_key(ticket):
            return False
        if self._is_newcomer(ticket, ticket.lane, 0.0):
            return self._fits(ticket)
        if free_seats <= self._kept_seats:
            return False
        if self._needs_all(ticket):
            return self._fits(ticket)
        return self._fits_beside_what_is_kept(ticket)

    def _is_person_held(self, ticket: Ticket) -> bool:
        cap = ticket.model_max_in_flight
        if cap is not None and self._in_flight_by_person[ticket.person_id] >= cap:
            return True
        return self.counts.holds_person(ticket)

    def _is_newcomer(self, ticket: Ticket, lane: Lane, lead: float) -> bool:
        """Whether a ticket may have a seat that is kept: its person has fewer in flight than
        there are such. `lead` is the service by which they are ahead of the least served one."""
        num_mine = self._in_flight_by_person.get(ticket.person_id, 0)
        if lane is not Lane.INTERACTIVE or num_mine >= max(1, self._kept_seats):
            return False
        service = (
            PROMPT_TOKEN_WEIGHT * ticket.num_prompt_tokens
            + OUTPUT_TOKEN_WEIGHT * ticket.num_output_tokens
        )
        return lead + service <= OUTPUT_TOKEN_WEIGHT * self.capacity.kv_tokens

    def _needs_all(self, ticket: Ticket) -> bool:
        """Whether it would not fit beside what is kept, if nothing else were there."""
        return (
            ticket.num_seqs > max(1, self.capacity.max_num_seqs - self._kept_seats)
            or ticket.num_tokens > self.capacity.kv_tokens - self._kept_tokens
        )

    def _fits_beside_what_is_kept(self, ticket: Ticket) -> bool:
        return self._fits(ticket, self._kept_seats, self._kept_tokens)

    def _fits(self, ticket: Ticket, num_seats: int = 0, num_tokens: int = 0) -> bool:
        """Beside what is in flight, with `num_seats` and `num_tokens` to spare. One alone goes
        in any case: if it is too large for what the backend has become, that will say so, and of
        more sequences than it has seats it does some after others."""
        return not self._in_flight or (
            self.in_flight_seqs + ticket.num_seqs + num_seats <= self.capacity.max_num_seqs
            and self.in_flight_tokens + ticket.num_tokens + num_tokens <= self.capacity.kv_tokens
        )

    def _start(self, ticket: Ticket, now: float) -> None:
        ticket.granted_at = now
        self._in_flight.add(ticket)
        self.in_flight_tokens += ticket.num_tokens
        self.in_flight_seqs += ticket.num_seqs
        self._in_flight_by_person[ticket.person_id] += 1
        self.counts.start(ticket)

    def _pass_by(self, ticket: Ticket) -> None:
        lane = self._lanes[ticket.lane]
        lane.set_weight(ticket.person_id, ticket.weight)
        lane.pass_by(ticket.person_id)

    def _stop_waiting(self, ticket: Ticket) -> None:
        self._lanes[ticket.lane].remove(ticket)
        self.waiting.remove(ticket)

    def _end(self, ticket: Ticket, now: float) -> None:
        self._in_flight.remove(ticket)
        self.in_flight_tokens -= ticket.num_tokens
        self.in_flight_seqs -= ticket.num_seqs
        decrement(self._in_flight_by_person, ticket.person_id)
        self.counts.end(ticket)
        taken_s = now - (now if ticket.granted_at is None else ticket.granted_at)
        service_s = taken_s if self._service_s is None else self._service_s
        self._service_s = service_s + (taken_s - service_s) / _MEMORY

    def _charge(self, ticket: Ticket, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self._lanes[ticket.lane].charge(
            ticket.person_id,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
        )
