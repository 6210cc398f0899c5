"""Who may go to the backend now: one fair queue in front of seats and KV memory.

The batch lane goes only when nobody waits in the interactive one.

Pure: time comes in as an argument, tickets come out. The service a person is charged is what
a request is expected to take, corrected when it ends (Sheng et al., OSDI 2024, section 4.3,
the counter with length prediction): a gateway learns of tokens only afterwards.
"""

from collections import Counter, deque
from dataclasses import dataclass

from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.scheduling.capacity import Capacity
from carpool.scheduling.queue import FairShareQueue
from carpool.store.lane import Lane

DRAIN_WINDOW = 64
"""Completions over which the drain rate is measured."""
DEFAULT_SERVICE_S = 5.0
"""What a request is taken to need before any has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Bounds of the queue. `max_tokens` counts expected prompt and output tokens of those who
    wait. `newcomer_seats` seats are kept for people with nothing in flight."""

    max_requests: int = 512
    max_tokens: int = 4_000_000
    max_wait_s: float = 120.0
    newcomer_seats: int = 1


@dataclass(eq=False, slots=True, kw_only=True)
class Ticket:
    """A request's place: waiting, then in flight, then gone. Token counts are expectations."""

    request_id: str
    person_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    lane: Lane = Lane.INTERACTIVE
    max_in_flight: int | None = None
    """The most requests of its key in flight at once; `key_id` says which."""
    key_id: str = ""
    entered_at: float = 0.0
    granted_at: float | None = None
    position: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class Admission:
    """Owns the queue and what is in flight. Every ticket that `enter` took leaves once, by
    `leave` or by `expire`."""

    def __init__(self, capacity: Capacity, limits: QueueLimits, weights: dict[str, float]) -> None:
        self.capacity = capacity
        self.is_paused = False
        """While the backend takes nothing, everybody waits."""
        self.limits = limits
        self._lanes = {lane: FairShareQueue[Ticket](person_weights=weights) for lane in Lane}
        self._waiting: dict[str, Ticket] = {}
        self._waiting_tokens = 0
        self._waiting_by_person: Counter[str] = Counter()
        self._in_flight: dict[str, Ticket] = {}
        self._in_flight_tokens = 0
        self._in_flight_by_person: Counter[str] = Counter()
        self._in_flight_by_key: Counter[str] = Counter()
        self._ended_at: deque[float] = deque(maxlen=DRAIN_WINDOW)
        self._service_s = DEFAULT_SERVICE_S

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def in_flight_tokens(self) -> int:
        return self._in_flight_tokens

    def waiting(self) -> list[Ticket]:
        """Everybody who waits, the first to come first."""
        return list(self._waiting.values())

    def first_waiting(self) -> Ticket | None:
        return next(iter(self._waiting.values()), None)

    # ------------------------------------------------------------------ events

    def enter(self, ticket: Ticket, now: float) -> None:
        """Queue a ticket and say where it stands (`position` 0: it is next).

        Raises Refusal when the queue, or the person's share of it, is full.
        """
        self._check_room(ticket, now)
        ticket.entered_at = now
        ticket.position = self._num_before(ticket)
        self._lanes[ticket.lane].push(ticket)
        self._waiting[ticket.request_id] = ticket
        self._waiting_tokens += ticket.num_tokens
        self._waiting_by_person[ticket.person_id] += 1

    def grant(self, now: float) -> list[Ticket]:
        """Tickets that go to the backend now, in order; they are in flight from here on."""
        granted: list[Ticket] = []
        if self.is_paused:
            return granted
        for lane in Lane:
            if lane is Lane.BATCH and len(self._lanes[Lane.INTERACTIVE]):
                break
            while (ticket := self._next(lane)) is not None:
                self._start(ticket, now)
                granted.append(ticket)
        return granted

    def leave(
        self, ticket: Ticket, now: float, num_prompt_tokens: int = 0, num_output_tokens: int = 0
    ) -> None:
        """A ticket is done with, waiting or in flight; the tokens are what it really took.
        Again is nothing."""
        if self._waiting.get(ticket.request_id) is ticket:
            self._stop_waiting(ticket)
        elif self._in_flight.get(ticket.request_id) is ticket:
            self._end(ticket, now, num_prompt_tokens, num_output_tokens)

    def expire(self, now: float) -> list[Ticket]:
        """Tickets that have waited too long; they are out of the queue."""
        late = []
        for ticket in self._waiting.values():
            if now - ticket.entered_at < self.limits.max_wait_s:
                break
            late.append(ticket)
        for ticket in late:
            self._stop_waiting(ticket)
        return late

    # ---------------------------------------------------------------- foresight

    def retry_after_s(self, now: float) -> float:
        """When the queue will have drained by the rate at which requests have been ending."""
        return self.seconds_until(len(self._waiting) + 1, now)

    def person_retry_after_s(self, person_id: str, now: float) -> float:
        """When this person's next ticket goes: once everybody who waits has had one."""
        others = sum(1 for each in self._waiting_by_person if each != person_id)
        return self.seconds_until(others + 1, now)

    def seconds_until(self, num_ended: int, now: float) -> float:
        """Seconds until `num_ended` more requests have ended."""
        if len(self._ended_at) >= 2:
            span = max(now, self._ended_at[-1]) - self._ended_at[0]
            return num_ended * span / (len(self._ended_at) - 1)
        seats = max(1, self.capacity.max_num_seqs)
        return -(-num_ended // seats) * self._service_s

    # ----------------------------------------------------------------- internal

    def _check_room(self, ticket: Ticket, now: float) -> None:
        if ticket.num_tokens > self.capacity.kv_tokens:
            raise Refusal(
                Outcome.TOO_LARGE,
                f"this request needs about {ticket.num_tokens:,} tokens of KV memory, and the "
                f"backend has {self.capacity.kv_tokens:,}; send a shorter prompt or a smaller "
                "max_tokens",
                limit="kv_tokens",
            )
        share = self._share(ticket.person_id)
        mine = self._waiting_by_person[ticket.person_id]
        if mine >= share:
            wait = self.person_retry_after_s(ticket.person_id, now)
            raise Refusal(
                Outcome.QUEUE_SHARE,
                f"you have {mine} requests waiting, and your share of the queue is {share} of "
                f"{self.limits.max_requests}; wait for some of them to be answered",
                limit="queue_share",
                retry_after_s=wait,
            )
        if len(self._waiting) >= self.limits.max_requests:
            raise self._full(
                f"{len(self._waiting)} requests are waiting, the most there may be", now
            )
        if self._waiting and self._waiting_tokens + ticket.num_tokens > self.limits.max_tokens:
            raise self._full(
                f"requests of {self._waiting_tokens:,} tokens are waiting, and the limit is "
                f"{self.limits.max_tokens:,}",
                now,
            )

    def _full(self, what: str, now: float) -> Refusal:
        wait = self.retry_after_s(now)
        return Refusal(
            Outcome.QUEUE_FULL,
            f"the queue is full: {what}; try again in {max(1, round(wait))} s",
            limit="queue",
            retry_after_s=wait,
        )

    def _share(self, person_id: str) -> int:
        """Waiting requests a person may have: an equal part, one part being kept for whoever
        comes next, so that nobody fills the queue."""
        others = sum(1 for each in self._waiting_by_person if each != person_id)
        return max(1, self.limits.max_requests // (others + 2))

    def _num_before(self, ticket: Ticket) -> int:
        """How many would go first if nobody else came: fair rounds, not arrival order."""
        mine = self._waiting_by_person[ticket.person_id]
        return mine + sum(
            min(count, mine + 1)
            for person_id, count in self._waiting_by_person.items()
            if person_id != ticket.person_id
        )

    def _next(self, lane: Lane) -> Ticket | None:
        """The first in the lane that may go. Who is held by a limit of their own is passed
        over; who does not fit into the KV memory is waited for."""
        queue = self._lanes[lane]
        free_seats = self.capacity.max_num_seqs - len(self._in_flight)
        if free_seats <= 0:
            return None
        skipped: set[str] = set()
        for ticket in queue.candidates(skipped):
            if self._is_held(ticket, free_seats):
                skipped.add(ticket.person_id)
                continue
            fits = self._in_flight_tokens + ticket.num_tokens <= self.capacity.kv_tokens
            return ticket if fits or not self._in_flight else None
        return None

    def _is_held(self, ticket: Ticket, free_seats: int) -> bool:
        limit = ticket.max_in_flight
        if limit is not None and self._in_flight_by_key[ticket.key_id] >= limit:
            return True
        is_newcomer = self._in_flight_by_person[ticket.person_id] == 0
        kept = min(self.limits.newcomer_seats, self.capacity.max_num_seqs - 1)
        return free_seats <= kept and not (is_newcomer and ticket.lane is Lane.INTERACTIVE)

    def _start(self, ticket: Ticket, now: float) -> None:
        # Charged before it leaves the queue, so that its counter is there when a rank is taken.
        self._lanes[ticket.lane].charge(
            ticket.person_id,
            num_prompt_tokens=ticket.num_prompt_tokens,
            num_output_tokens=ticket.num_output_tokens,
        )
        self._stop_waiting(ticket)
        ticket.granted_at = now
        self._in_flight[ticket.request_id] = ticket
        self._in_flight_tokens += ticket.num_tokens
        self._in_flight_by_person[ticket.person_id] += 1
        self._in_flight_by_key[ticket.key_id] += 1

    def _stop_waiting(self, ticket: Ticket) -> None:
        self._lanes[ticket.lane].remove(ticket)
        del self._waiting[ticket.request_id]
        self._waiting_tokens -= ticket.num_tokens
        _decrement(self._waiting_by_person, ticket.person_id)

    def _end(self, ticket: Ticket, now: float, num_prompt: int, num_output: int) -> None:
        self._lanes[ticket.lane].charge(
            ticket.person_id,
            num_prompt_tokens=num_prompt - ticket.num_prompt_tokens,
            num_output_tokens=num_output - ticket.num_output_tokens,
        )
        del self._in_flight[ticket.request_id]
        self._in_flight_tokens -= ticket.num_tokens
        _decrement(self._in_flight_by_person, ticket.person_id)
        _decrement(self._in_flight_by_key, ticket.key_id)
        self._ended_at.append(now)
        if ticket.granted_at is not None:
            self._service_s += (now - ticket.granted_at - self._service_s) / 8


def _decrement(counter: Counter[str], name: str) -> None:
    """Take one off, and drop what is nought: these are as many as people, not as requests."""
    if counter[name] <= 1:
        del counter[name]
    else:
        counter[name] -= 1
