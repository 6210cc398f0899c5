"""How many requests of whom are at the engines, whichever models they are for."""

from collections import Counter
from collections.abc import Callable

from carpool.gateway.ticket import Ticket


class InFlightCounts:
    """One for all admissions of a gateway: caps of keys and people hold over all models.

    Who is held back by such a cap may have to go when a request for another model ends, so
    every queue is looked at again then.
    """

    def __init__(self) -> None:
        self.by_key: Counter[str] = Counter()
        self.by_person: Counter[str] = Counter()
        self._is_anyone_held = False
        self._queues: list[Callable[[], None]] = []

    def start(self, ticket: Ticket) -> None:
        self.by_key[ticket.key_id] += 1
        self.by_person[ticket.person_id] += 1

    def end(self, ticket: Ticket) -> None:
        decrement(self.by_key, ticket.key_id)
        decrement(self.by_person, ticket.person_id)

    def holds_key(self, ticket: Ticket) -> bool:
        return self._holds(ticket.max_in_flight, self.by_key[ticket.key_id])

    def holds_person(self, ticket: Ticket) -> bool:
        return self._holds(ticket.person_max_in_flight, self.by_person[ticket.person_id])

    def watch(self, look: Callable[[], None]) -> None:
        """Call `look` when somebody who was held back may go."""
        self._queues.append(look)

    def look_again(self) -> None:
        """A request has ended."""
        if self._is_anyone_held:
            self._is_anyone_held = False
            for look in self._queues:
                look()

    def _holds(self, cap: int | None, num_in_flight: int) -> bool:
        is_held = cap is not None and num_in_flight >= cap
        self._is_anyone_held |= is_held
        return is_held


def decrement(counter: Counter[str], name: str) -> None:
    """Take one off, and drop what is nought: these are as many as people, not as requests."""
    if counter[name] <= 1:
        del counter[name]
    else:
        counter[name] -= 1
