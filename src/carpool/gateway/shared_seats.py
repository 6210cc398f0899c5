"""A worker's part in pools of seats that several workers share, in Redis.

`lua/seats.lua` decides who goes; this keeps a lease there, sends it what happens to the worker's
tickets, and tells the gates what it decided. Whenever an answer is lost the worker says anew all
that it has, so nothing is taken twice or kept by nobody.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from carpool.gateway.redis_link import PREFIX, TURN_S, Called, CountersAway, RedisLink
from carpool.gateway.ticket import Ticket

Op = dict[str, Any]


class PoolFigures(NamedTuple):
    """Of all workers together: requests that wait and that are in flight, and the most sequences
    that were, in the last second or two."""

    waiting: int
    in_flight: int
    peak: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The tickets of a gate, as the pool is to know them, and what it says of the engines."""

    in_flight: list[Ticket]
    waiting: list[Ticket]
    asked: list[Ticket]
    pool: Op


class PoolGate(Protocol):
    """What a gate is told. All of it in the loop."""

    def standing(self) -> Standing: ...

    def go_alone(self) -> None:
        """Nobody decides for it any more; again is nothing."""
        ...

    def go_together(self) -> None: ...

    def answered(self, request_id: str, answer: dict[str, Any], is_granted: bool) -> None:
        """What became of a ticket that was to enter: a `position`, or the `room` there was not."""
        ...

    def granted(self, request_id: str) -> None:
        """A ticket may go."""
        ...

    def heard(self, figures: PoolFigures) -> None: ...


class SharedSeats(Called):
    """One per worker. `num_workers`: how many are taken to share until the server has said."""

    script = "seats.lua"

    def __init__(
        self,
        link: RedisLink,
        worker: str,
        num_workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.worker = worker
        self.num_workers = num_workers
        self.is_alone = True
        self._link = link
        self._gates: dict[str, PoolGate] = {}
        self._is_joined = False
        self._ops: list[Op] = []
        self._sent: list[Op] = []
        self._due_at = 0.0
        link.add(self)

    @property
    def channel(self) -> str:
        """Where this worker is called when one of its tickets may go."""
        return f"{PREFIX}seats:call:{self.worker}"

    def add(self, pool: str, gate: PoolGate) -> None:
        self._gates[pool] = gate

    def enter(self, pool: str, ticket: Ticket) -> None:
        self._say(_enter(pool, ticket))

    def leave(self, pool: str, ticket: Ticket, num_prompt: int, num_output: int) -> None:
        self._say(
            {
                "op": "leave",
                "pool": pool,
                "id": ticket.request_id,
                "prompt": num_prompt,
                "output": num_output,
            }
        )

    def change(self, pool: str, ticket: Ticket) -> None:
        self._say({"op": "change", "pool": pool, "id": ticket.request_id, **_terms(ticket)})

    def tell(self, pool: str, state: Op) -> None:
        """What there is to share."""
        self._say({"op": "pool", "pool": pool, **state})

    def _say(self, op: Op) -> None:
        if not self.is_alone:
            self._ops.append(op)
            self._link.wake()

    # ------------------------------------------------------------------ letters

    def on_call(self) -> None:
        self._due_at = 0.0

    def outgoing(self) -> str | None:
        now = self._clock()
        if self._is_joined and not self._ops and now < self._due_at:
            return None
        if not self._is_joined:
            self._ops = self._join()
        self._sent, self._ops = self._ops, []
        self._due_at = now + TURN_S
        return self._letter(self._sent)

    def last(self) -> str | None:
        return self._letter([{"op": "bye"}])

    def incoming(self, reply: str) -> None:
        answer = json.loads(reply)
        if answer["is_stranger"]:  # the lease ran out, or the server has forgotten everything
            self._is_joined = False
            self._link.wake()
            return
        self.num_workers = max(1, answer["num_workers"])
        granted = {(pool, request_id) for pool, request_id in answer["news"] or ()}
        sent, self._sent = self._sent, []
        for op, each in zip(sent, answer["answers"] or (), strict=False):
            if op["op"] == "enter":
                name = (op["pool"], op["ticket"]["id"])
                self._gates[op["pool"]].answered(name[1], each, name in granted)
        for pool, request_id in answer["news"] or ():
            if pool in self._gates:
                self._gates[pool].granted(request_id)
        for pool, figures in (answer["pools"] or {}).items():
            self._gates[pool].heard(PoolFigures(**figures))
        if self._ops:
            self._link.wake()

    def lost(self, error: CountersAway) -> None:
        self._is_joined, self.is_alone = False, True
        self._ops, self._sent = [], []
        for gate in self._gates.values():
            gate.go_alone()

    # ----------------------------------------------------------------- internal

    def _join(self) -> list[Op]:
        """All that this worker has. From here on nobody goes but by the server's word."""
        self._is_joined, self.is_alone = True, False
        join: Op = {"op": "join", "in_flight": [], "waiting": []}
        pools, enters = [], []
        for pool, gate in self._gates.items():
            gate.go_together()
            standing = gate.standing()
            join["in_flight"] += [_shown(pool, ticket) for ticket in standing.in_flight]
            join["waiting"] += [_shown(pool, ticket) for ticket in standing.waiting]
            pools.append({"op": "pool", "pool": pool, **standing.pool})
            enters += [_enter(pool, ticket) for ticket in standing.asked]
        return [join, *pools, *enters]

    def _letter(self, ops: list[Op]) -> str:
        return json.dumps({"worker": self.worker, "pools": list(self._gates), "ops": ops})


def _enter(pool: str, ticket: Ticket) -> Op:
    return {"op": "enter", "pool": pool, "ticket": _shown(pool, ticket)}


def _shown(pool: str, ticket: Ticket) -> Op:
    return {
        "id": ticket.request_id,
        "pool": pool,
        "person": ticket.person_id,
        "key": ticket.key_id,
        "prompt": ticket.num_prompt_tokens,
        "output": ticket.num_output_tokens,
        "seqs": ticket.num_seqs,
        "lane": ticket.lane.value,
        **_terms(ticket),
    }


def _terms(ticket: Ticket) -> Op:
    caps = {
        "key_cap": ticket.max_in_flight,
        "person_cap": ticket.person_max_in_flight,
        "model_cap": ticket.model_max_in_flight,
    }
    return {"weight": ticket.weight} | {n: cap for n, cap in caps.items() if cap is not None}
