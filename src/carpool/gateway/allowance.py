"""What a caller may use of a model: the limits of the key, of the person, and of the person with
this model, of which the tightest holds."""

from typing import NamedTuple

from carpool.gateway.key_ring import Caller, KeyRing
from carpool.gateway.limit_counters import LimitCounters, Reservation
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.gateway.served_model import ServedModel
from carpool.gateway.subject import Subject, of_key, of_model, of_person
from carpool.gateway.ticket import Ticket


class InFlightCaps(NamedTuple):
    """The most requests at engines at once; more wait. None is no cap."""

    key: int | None = None
    person: int | None = None
    model: int | None = None
    """Of the person, at this model."""


class Allowance:
    """The limits of `caller` at `model`, as they were when this was made."""

    __slots__ = (
        "_counters",
        "_max_prompt_tokens",
        "caller",
        "in_flight_caps",
        "max_output_tokens",
        "model",
        "subjects",
    )

    def __init__(self, caller: Caller, model: ServedModel, counters: LimitCounters) -> None:
        person = caller.person
        self.caller = caller
        self.model = model
        self.subjects = (
            of_key(caller.key.key_id, caller.key.limits),
            of_person(person.person_id, person.limits),
            of_model(person.person_id, model.names, model.limits),
        )
        limits = [subject.limits for subject in self.subjects]
        self.max_output_tokens = min(
            (each.max_output_tokens for each in limits if each.max_output_tokens is not None),
            default=None,
        )
        self.in_flight_caps = InFlightCaps(*(each.max_in_flight for each in limits))
        self._max_prompt_tokens = _tightest_prompt(self.subjects)
        self._counters = counters

    def check_prompt(self, num_tokens: int) -> None:
        """Raises Refusal for a prompt that is too long."""
        if self._max_prompt_tokens is None:
            return
        limit, who = self._max_prompt_tokens
        if num_tokens > limit:
            raise Refusal(
                Outcome.TOO_LARGE,
                f"the prompt has about {num_tokens:,} tokens, and {who} may send {limit:,} "
                "(max_prompt_tokens); send a shorter one",
                limit="max_prompt_tokens",
            )

    async def reserve(self, num_tokens: int) -> Reservation:
        """One request and so many tokens of every limit, or of none. Raises LimitReached."""
        return await self._counters.reserve(self.subjects, num_tokens)


class Allowances:
    """One for every key at every model, made anew when key, person or model have changed."""

    def __init__(self, counters: LimitCounters) -> None:
        self._counters = counters
        self._made: dict[tuple[str, str], Allowance] = {}

    def of(self, caller: Caller, model: ServedModel) -> Allowance:
        name = (caller.key.key_id, model.name)
        known = self._made.get(name)
        if (
            known is not None
            and known.caller.key is caller.key
            and known.caller.person is caller.person
            and known.model is model
        ):
            return known
        made = self._made[name] = Allowance(caller, model, self._counters)
        return made

    def forget(self) -> None:
        """Another snapshot of the keys is there, so all would be made anew."""
        self._made.clear()

    def renew(self, ring: KeyRing, model: ServedModel, ticket: Ticket) -> None:
        """Give a ticket that waits for `model` the caps and the weight that hold now."""
        caller = ring.caller(ticket.key_id)
        if caller is None:
            return
        caps = self.of(caller, model).in_flight_caps
        ticket.max_in_flight = caps.key
        ticket.person_max_in_flight = caps.person
        ticket.model_max_in_flight = caps.model
        ticket.weight = caller.person.weight


def _tightest_prompt(subjects: tuple[Subject, ...]) -> tuple[int, str] | None:
    return min(
        (
            (subject.limits.max_prompt_tokens, subject.who)
            for subject in subjects
            if subject.limits.max_prompt_tokens is not None
        ),
        default=None,
    )
