"""Who is in flight and who waits, now, for those who look after the machine."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from carpool.gateway.admission import Admission
from carpool.gateway.key_ring import KeyRing
from carpool.gateway.model_service import UNKNOWN_CAPACITY
from carpool.gateway.served_model import ServedModel
from carpool.gateway.ticket import Ticket
from carpool.store.lane import Lane


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, and the tokens that they are expected to take."""

    in_flight: int = 0
    in_flight_tokens: int = 0
    waiting: int = 0
    waiting_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """`in_flight` are requests that this gateway has there."""

    name: str
    state: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class ModelState:
    """`state` is that of its best replica: ready, loading, draining or down. Seats and KV tokens
    are those of all its engines that are ready, None where none has said yet."""

    name: str
    aliases: tuple[str, ...]
    state: str
    max_num_seqs: int | None
    kv_tokens: int | None
    max_model_len: int | None
    provenance: str | None
    load: Load
    replicas: tuple[ReplicaState, ...]


@dataclass(frozen=True, slots=True)
class PersonLoad:
    """`models` are by name, those of which the person has something in flight or waiting."""

    person_id: str
    name: str
    load: Load
    models: dict[str, Load]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A request's, in flight or in the queue, for `for_s` seconds. It takes `num_seqs` seats and
    is expected to take `num_tokens` of the KV cache."""

    request_id: str
    model: str
    person_id: str
    name: str
    lane: Lane
    num_seqs: int
    num_tokens: int
    is_waiting: bool
    for_s: float


class LiveState(Protocol):
    def models(self) -> list[ModelState]: ...

    def people(self) -> list[PersonLoad]:
        """Those who have something in flight or waiting."""
        ...

    def places(self) -> list[Place]:
        """What is in flight, longest first, then what waits, in the order in which it came."""
        ...


class GatewayLive:
    """LiveState of the gateway in this process."""

    def __init__(self, models: Sequence[ServedModel], ring: KeyRing) -> None:
        self._models = models
        self._ring = ring

    def models(self) -> list[ModelState]:
        return [_model_state(model) for model in self._models]

    def people(self) -> list[PersonLoad]:
        by_person: dict[str, dict[str, Load]] = {}
        names: dict[str, str] = {}
        for model in self._models:
            admission = model.gate.admission
            for tickets, is_waiting in ((admission.in_flight, False), (admission.waiting, True)):
                for ticket in tickets:
                    loads = by_person.setdefault(ticket.person_id, {})
                    loads[model.name] = _plus(loads.get(model.name, Load()), ticket, is_waiting)
                    names[ticket.person_id] = self._name(ticket)
        return [
            PersonLoad(person_id, names[person_id], sum_of(loads.values()), loads)
            for person_id, loads in sorted(by_person.items(), key=lambda each: names[each[0]])
        ]

    def places(self) -> list[Place]:
        now = asyncio.get_running_loop().time()
        return in_order(place for model in self._models for place in self._places(model, now))

    def _places(self, model: ServedModel, now: float) -> Iterator[Place]:
        admission = model.gate.admission
        for tickets, is_waiting in ((admission.in_flight, False), (admission.waiting, True)):
            for ticket in tickets:
                since = ticket.entered_at if is_waiting else ticket.granted_at
                yield Place(
                    request_id=ticket.request_id,
                    model=model.name,
                    person_id=ticket.person_id,
                    name=self._name(ticket),
                    lane=ticket.lane,
                    num_seqs=ticket.num_seqs,
                    num_tokens=ticket.num_tokens,
                    is_waiting=is_waiting,
                    for_s=max(0.0, now - (now if since is None else since)),
                )

    def _name(self, ticket: Ticket) -> str:
        caller = self._ring.caller(ticket.key_id)
        return ticket.person_id if caller is None else caller.person.name


_BEST_FIRST = ("ready", "loading", "draining", "down")


def _model_state(model: ServedModel) -> ModelState:
    admission = model.gate.admission
    capacity = admission.capacity
    is_known = capacity is not UNKNOWN_CAPACITY
    states = {replica.state.value for replica in model.replicas}
    return ModelState(
        name=model.name,
        aliases=model.aliases,
        state=next((state for state in _BEST_FIRST if state in states), "down"),
        max_num_seqs=capacity.max_num_seqs if is_known else None,
        kv_tokens=capacity.kv_tokens if is_known else None,
        max_model_len=capacity.max_model_len if is_known else None,
        provenance=capacity.provenance.value if is_known else None,
        load=_load(admission),
        replicas=tuple(
            ReplicaState(replica.name, replica.state.value, replica.num_in_flight)
            for replica in model.replicas
        ),
    )


def _load(admission: Admission) -> Load:
    return Load(
        admission.num_in_flight,
        admission.in_flight_tokens,
        admission.num_waiting,
        admission.waiting.num_tokens,
    )


def _plus(load: Load, ticket: Ticket, is_waiting: bool) -> Load:
    if is_waiting:
        return sum_of((load, Load(waiting=1, waiting_tokens=ticket.num_tokens)))
    return sum_of((load, Load(in_flight=1, in_flight_tokens=ticket.num_tokens)))


def in_order(places: Iterable[Place]) -> list[Place]:
    return sorted(places, key=lambda place: (place.is_waiting, -place.for_s))


def sum_of(loads: Iterable[Load]) -> Load:
    in_flight = in_flight_tokens = waiting = waiting_tokens = 0
    for load in loads:
        in_flight += load.in_flight
        in_flight_tokens += load.in_flight_tokens
        waiting += load.waiting
        waiting_tokens += load.waiting_tokens
    return Load(in_flight, in_flight_tokens, waiting, waiting_tokens)
