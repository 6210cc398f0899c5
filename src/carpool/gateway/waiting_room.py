"""Who waits, and whether there is room for one more.

Nobody fills the room: a person may have an equal part of it, one part being left for whoever
comes next, and the last of it is for people who have nothing waiting yet. So a newcomer is turned
away only where as many people wait as that last part has places.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from carpool.gateway.outcome import Outcome
from carpool.gateway.ticket import Ticket
from carpool.store.lane import Lane

COMMON_PART = 0.75
"""Of the room, for everybody; the rest is for people who have nothing waiting."""
MOST_KEPT_SEATS = 16
"""Of many seats, one comes free soon anyway, and empty ones are throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Bounds of the queue. `max_tokens` counts expected prompt and output tokens of those who
    wait; one request alone may have more. `newcomer_seats` seats (None: a quarter of them, at
    least one and at most `MOST_KEPT_SEATS`) are kept for people with little in flight."""

    max_requests: int = 512
    max_tokens: int = 4_000_000
    max_wait_s: float = 120.0
    newcomer_seats: int | None = None

    def kept_seats(self, max_num_seqs: int) -> int:
        """Of so many seats. The last of them is never kept."""
        number = self.newcomer_seats
        if number is None:
            number = min(max(1, max_num_seqs // 4), MOST_KEPT_SEATS)
        return min(number, max_num_seqs - 1)


class NoRoom(NamedTuple):
    """Why one more may not wait. QUEUE_SHARE: it is the person's own part that is full."""

    outcome: Outcome
    message: str


class Room(NamedTuple):
    """Requests that wait and their tokens, those of one person among them, and how many other
    people wait."""

    requests: int
    tokens: int
    own_requests: int
    own_tokens: int
    others: int


class WaitingRoom:
    """Tickets in the order in which they came, counted by person, key and lane."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.num_tokens = 0
        self._tickets: dict[str, Ticket] = {}
        self._requests: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._by_key: Counter[str] = Counter()
        self._lanes: dict[Lane, Counter[str]] = {lane: Counter() for lane in Lane}

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets.values())

    def __contains__(self, ticket: Ticket) -> bool:
        return self._tickets.get(ticket.request_id) is ticket

    def get(self, request_id: str) -> Ticket | None:
        return self._tickets.get(request_id)

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket.request_id] = ticket
        self._count(ticket, 1)

    def remove(self, ticket: Ticket) -> None:
        del self._tickets[ticket.request_id]
        self._count(ticket, -1)

    def num_of(self, person_id: str) -> int:
        """Requests of this person that wait."""
        return self._requests[person_id]

    def num_others(self, person_id: str) -> int:
        """People who wait beside this one."""
        return len(self._requests) - (person_id in self._requests)

    def is_of_one_key(self, ticket: Ticket) -> bool:
        """Whether all that its person waits for waits with its key."""
        return self._by_key[ticket.key_id] == self._requests[ticket.person_id]

    def num_before(self, ticket: Ticket) -> int:
        """How many would go before a new ticket if nobody else came: fair rounds within its
        lane, not the order of arrival."""
        lane = self._lanes[ticket.lane]
        mine = lane[ticket.person_id]
        rounds = sum(min(count, mine + 1) for count in lane.values())  # with all of mine
        lane_before = self._lanes[Lane.INTERACTIVE].total() if ticket.lane is Lane.BATCH else 0
        return lane_before + rounds

    def room_of(self, ticket: Ticket) -> Room:
        """As its person finds it."""
        person_id = ticket.person_id
        return Room(
            len(self._tickets),
            self.num_tokens,
            self._requests[person_id],
            self._tokens[person_id],
            self.num_others(person_id),
        )

    def objection(self, ticket: Ticket) -> NoRoom | None:
        """Why `ticket` may not wait; None if it may."""
        return objection(ticket, self.limits, self.room_of(ticket))

    def _count(self, ticket: Ticket, sign: int) -> None:
        self.num_tokens += sign * ticket.num_tokens
        _add(self._requests, ticket.person_id, sign)
        _add(self._tokens, ticket.person_id, sign * ticket.num_tokens)
        _add(self._by_key, ticket.key_id, sign)
        _add(self._lanes[ticket.lane], ticket.person_id, sign)


def objection(ticket: Ticket, limits: QueueLimits, room: Room) -> NoRoom | None:
    """Why `ticket` may not wait in that room; None if it may."""
    if room.own_requests:
        return _beyond_share(ticket, limits, room) or _beyond(ticket, limits, room, COMMON_PART)
    return _beyond(ticket, limits, room, 1.0)


def _beyond_share(ticket: Ticket, limits: QueueLimits, room: Room) -> NoRoom | None:
    """Whether a person who has something waiting has their part of the room."""
    num_parts = room.others + 2
    requests, tokens = room.own_requests, room.own_tokens
    max_requests = max(1, limits.max_requests // num_parts)
    max_tokens = limits.max_tokens // num_parts
    if requests >= max_requests:
        mine, share = f"{requests} requests", f"{max_requests} of {limits.max_requests}"
    elif tokens + ticket.num_tokens > max_tokens:
        mine = f"requests of {tokens:,} tokens"
        share = f"{max_tokens:,} of {limits.max_tokens:,} tokens"
    else:
        return None
    return NoRoom(
        Outcome.QUEUE_SHARE,
        f"you have {mine} waiting, and your share of the queue is {share}; wait for some of "
        "them to be answered",
    )


def _beyond(ticket: Ticket, limits: QueueLimits, room: Room, part: float) -> NoRoom | None:
    """Whether that part of the room is full."""
    if room.requests >= math.ceil(part * limits.max_requests):
        what = f"{room.requests} requests are waiting and {limits.max_requests} may"
    elif room.requests and room.tokens + ticket.num_tokens > part * limits.max_tokens:
        what = (
            f"requests of {room.tokens:,} tokens are waiting and {limits.max_tokens:,} "
            f"tokens may, and this request has about {ticket.num_tokens:,}"
        )
    else:
        return None
    if part < 1:
        what += " (the last of it is for people who have nothing waiting)"
    return NoRoom(Outcome.QUEUE_FULL, f"the queue is full: {what}")


def _add(counter: Counter[str], name: str, number: int) -> None:
    """And drop what is nought: these are as many as people, not as requests."""
    total = counter[name] + number
    if total:
        counter[name] = total
    else:
        counter.pop(name, None)
