"""Who goes next: first come first served, or the person who has had least.

`FairShareQueue` is the Virtual Token Counter of Sheng et al., "Fairness in Serving Large
Language Models" (OSDI 2024): a counter per person grows by weighted tokens as they are
computed, and the least counter goes first. While two persons both have requests waiting,
the service they get differs by at most 2 * max(w_p * L_input, w_q * M), with L_input the
longest prompt and M the KV tokens of the running batch. Letting small requests past a large
one that does not fit (`may_pass`) adds at most `max_lead` to each side of that.
"""

from collections.abc import Collection, Container, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What a queue must know of an item; `request_id` is unique within the queue."""

    @property
    def request_id(self) -> str: ...

    @property
    def person_id(self) -> str: ...


class _Named(Protocol):
    request_id: str
    person_id: str


T = TypeVar("T", bound=Queued | _Named)


class WaitingQueue(Protocol[T]):
    """An order over waiting items. Items of one person keep the order in which they came."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T]: ...

    def push(self, item: T) -> None:
        """Add `item` behind the others of its person."""
        ...

    def remove(self, item: T) -> None:
        """Take `item` out, from any place, in O(1). Not while `candidates` is running."""
        ...

    def candidates(self, skipped_people: Container[str] = ()) -> Iterator[T]:
        """All items, lazily, in the order in which they should go. Persons charged or added
        to `skipped_people` between two items are ranked anew or left out from then on."""
        ...

    def people(self) -> Collection[str]:
        """Who has something in the queue."""
        ...

    def service(self, person_id: str) -> float:
        """What a person is taken to have had; the least goes first."""
        ...

    def may_pass(self, item: T, other: T) -> bool:
        """Whether `item` may go before `other`, whose turn it is but who does not fit yet."""
        ...

    def charge(
        self, person_id: str, *, num_prompt_tokens: int = 0, num_output_tokens: int = 0
    ) -> None:
        """Count tokens that were computed for a person."""
        ...


class FCFSQueue(Generic[T]):
    """First come, first served. Keeps a line per person, so that one can be left out."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, tuple[int, T]]] = {}
        self._next_seq = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return (item for line in self._lines.values() for _, item in line.values())

    def people(self) -> Collection[str]:
        return self._lines.keys()

    def service(self, person_id: str) -> float:
        return 0.0

    def push(self, item: T) -> None:
        line = self._lines.setdefault(item.person_id, {})
        if item.request_id in line:
            raise ValueError(f"{item.request_id!r} is in the queue already")
        line[item.request_id] = (self._next_seq, item)
        self._next_seq += 1
        self._length += 1

    def remove(self, item: T) -> None:
        line = self._lines[item.person_id]
        del line[item.request_id]
        self._length -= 1
        if not line:
            del self._lines[item.person_id]

    def candidates(self, skipped_people: Container[str] = ()) -> Iterator[T]:
        lines = {person_id: iter(line.values()) for person_id, line in self._lines.items()}
        first = {person_id: next(line) for person_id, line in lines.items()}
        heads = [(self._rank(person_id), seq, person_id) for person_id, (seq, _) in first.items()]
        heapify(heads)
        while heads:
            person_id = heads[0][2]
            if person_id in skipped_people:
                heappop(heads)
                continue
            yield first[person_id][1]
            place = next(lines[person_id], None)
            if place is None:
                heappop(heads)
                continue
            first[person_id] = place
            heapreplace(heads, (self._rank(person_id), place[0], person_id))

    def may_pass(self, item: T, other: T) -> bool:
        return True

    def charge(
        self, person_id: str, *, num_prompt_tokens: int = 0, num_output_tokens: int = 0
    ) -> None:
        """First come, first served keeps no accounts."""

    def _rank(self, person_id: str) -> float:
        return 0.0


class FairShareQueue(FCFSQueue[T]):
    """The person with the least weighted service goes first; ties by who came first.

    Service is `prompt_token_weight` per computed prompt token and `output_token_weight` per
    output token, divided by the person's weight (1.0 unless named in `person_weights`).
    Nobody saves up credit while away: who returns is lifted to the least counter of those
    waiting, or, when nobody waits, to that of the last person who left the queue. Who has had
    more than `max_lead` service above another does not pass them.
    """

    def __init__(
        self,
        *,
        person_weights: Mapping[str, float] | None = None,
        prompt_token_weight: float = 1.0,
        output_token_weight: float = 2.0,
        max_lead: float = 0.0,
        max_idle_counters: int = 1024,
    ) -> None:
        super().__init__()
        self._weights = dict(person_weights or {})
        self._prompt_token_weight = prompt_token_weight
        self._output_token_weight = output_token_weight
        self._max_lead = max_lead
        self._max_idle_counters = max_idle_counters
        self._counters: dict[str, float] = {}
        self._last_left: str | None = None

    def set_weight(self, person_id: str, weight: float) -> None:
        """For what is charged from now on."""
        self._weights[person_id] = weight

    def service(self, person_id: str) -> float:
        """Weighted tokens of service this person is taken to have had."""
        return self._counters.get(person_id, 0.0)

    def push(self, item: T) -> None:
        if item.person_id not in self._lines:
            self._lift(item.person_id)
        super().push(item)

    def pass_by(self, person_id: str) -> None:
        """As `push` and `remove` of somebody's item, while nobody is in the queue."""
        self._lift(person_id)
        self._last_left = person_id

    def remove(self, item: T) -> None:
        super().remove(item)
        if item.person_id not in self._lines:
            self._last_left = item.person_id

    def charge(
        self, person_id: str, *, num_prompt_tokens: int = 0, num_output_tokens: int = 0
    ) -> None:
        service = (
            self._prompt_token_weight * num_prompt_tokens
            + self._output_token_weight * num_output_tokens
        )
        self._counters[person_id] = self.service(person_id) + service / self._weights.get(
            person_id, 1.0
        )

    def may_pass(self, item: T, other: T) -> bool:
        return self.service(item.person_id) - self.service(other.person_id) <= self._max_lead

    def _lift(self, person_id: str) -> None:
        floor = self._floor()
        self._counters[person_id] = max(self.service(person_id), floor)
        if len(self._counters) > len(self._lines) + 1 + self._max_idle_counters:
            self._forget_below(floor, person_id)

    def _floor(self) -> float:
        if self._lines:
            return min(self._counters[person_id] for person_id in self._lines)
        return self.service(self._last_left) if self._last_left is not None else 0.0

    def _forget_below(self, floor: float, newcomer: str) -> None:
        """Drop idle counters that a return would lift to `floor` anyway."""
        self._counters = {
            person_id: counter
            for person_id, counter in self._counters.items()
            if counter > floor
            or person_id in self._lines
            or person_id in (newcomer, self._last_left)
        }

    def _rank(self, person_id: str) -> float:
        return self._counters[person_id]
