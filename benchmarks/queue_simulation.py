"""People at a machine, simulated: who thinks, who waits for a seat, who is served how fast.

A step with n sequences takes W + H n seconds and gives each of them a token; a prefill takes as
many steps as its tokens fill. Requests are admitted in order, as long as there are seats and KV
tokens. One request after the other per person: who waits does not ask for more.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

STEP_FIXED_S, STEP_PER_SEQ_S = 0.040, 0.005
PREFILL_TOKENS_PER_STEP = 40.0
SEATS, KV_TOKENS = 8, 32_000


@dataclass(frozen=True, slots=True)
class Machine:
    """`slowness` multiplies every step. `kv_told` is what the gateway thinks there is;
    `outages` are (start, end) seconds in which nothing is served and what ran is lost."""

    seats: int = SEATS
    kv_tokens: int = KV_TOKENS
    kv_told: int = KV_TOKENS
    slowness: float = 1.0
    outages: tuple[tuple[float, float], ...] = ()


@dataclass(slots=True)
class Requests:
    """Columns, one place a request: seconds from midnight, tokens, and whose it was."""

    key: list[int] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    granted: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    """The seat: at the end, or when the engine was lost."""
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    think: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    """Moments."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is coming. `again` says when the same stream of work asks next, from the
    end of this one; None: not again."""

    key: int
    prompt: int
    output: int
    again: "Callable[[float], tuple[float, Ask] | None] | None" = None


def simulate(asks: Sequence[tuple[float, Ask]], machine: Machine, until: float) -> Requests:
    """What becomes of `asks` (by their times) and of those that follow from them."""
    return _Run(machine, until).run(asks)


class _Run:
    def __init__(self, machine: Machine, until: float) -> None:
        self.machine = machine
        self.until = until
        self.done = Requests()
        self.coming: list[tuple[float, int, Ask]] = []
        self.work: list[tuple[float, int, int]] = []
        self.waiting: deque[int] = deque()
        self.asks: list[Ask] = []
        self.running: dict[int, float] = {}
        self.kv = 0
        self.now = self.steps = 0.0
        self.number = 0

    def run(self, asks: Sequence[tuple[float, Ask]]) -> Requests:
        for at, ask in asks:
            self._come(at, ask)
        outages = deque(self.machine.outages)
        while True:
            step = self.machine.slowness * (STEP_FIXED_S + STEP_PER_SEQ_S * len(self.running))
            arrives = self.coming[0][0] if self.coming else float("inf")
            works = float("inf")
            if self.work:
                works = self.now + (self.work[0][0] - self.steps) * step
            begins = outages[0][0] if outages else float("inf")
            at = min(arrives, works, begins)
            if at >= self.until:
                return self.done
            self.steps += (at - self.now) / step
            self.now = at
            if at == begins:
                self._lose(outages.popleft())
            elif at == arrives:
                self._arrive(heapq.heappop(self.coming)[2])
            else:
                self._work(*heapq.heappop(self.work)[1:])
            self._admit()

    def _come(self, at: float, ask: Ask) -> None:
        self.number += 1
        heapq.heappush(self.coming, (at, self.number, ask))

    def _arrive(self, ask: Ask) -> None:
        done = self.done
        self.asks.append(ask)
        done.key.append(ask.key)
        done.arrived.append(self.now)
        done.prompt.append(ask.prompt)
        done.output.append(ask.output)
        for column in (done.granted, done.first, done.ended, done.left):
            column.append(float("nan"))
        self.waiting.append(len(self.asks) - 1)

    def _admit(self) -> None:
        machine = self.machine
        while self.waiting and len(self.running) < machine.seats:
            place = self.waiting[0]
            ask = self.asks[place]
            need = ask.prompt + ask.output
            if self.running and self.kv + need > machine.kv_told:
                return
            self.waiting.popleft()
            self.kv += need
            steps = ask.prompt / PREFILL_TOKENS_PER_STEP
            if self.kv > machine.kv_tokens:  # somebody's blocks are taken, and computed again
                self.done.preempted.append(self.now)
                steps += ask.prompt / PREFILL_TOKENS_PER_STEP
            self.running[place] = self.steps
            self.done.granted[place] = self.now
            heapq.heappush(self.work, (self.steps + steps, 0, place))
            heapq.heappush(self.work, (self.steps + steps + ask.output, 1, place))

    def _work(self, kind: int, place: int) -> None:
        if place not in self.running:
            return
        if kind == 0:
            self.done.first[place] = self.now
            return
        ask = self.asks[place]
        del self.running[place]
        self.kv -= ask.prompt + ask.output
        self.done.ended[place] = self.done.left[place] = self.now
        self._again(ask)

    def _again(self, ask: Ask) -> None:
        if ask.again is not None and (following := ask.again(self.now)) is not None:
            at, next_ask = following
            if (think := at - self.now) < 1800:
                self.done.think.append(think)
            self._come(at, next_ask)

    def _lose(self, outage: tuple[float, float]) -> None:
        """What ran is cut off, and its people ask again after the outage, as do those to come."""
        for place in list(self.running):
            ask = self.asks[place]
            self.kv -= ask.prompt + ask.output
            self.done.left[place] = self.now
            self._come(outage[1] + 5, ask)
        self.running.clear()
        self.work.clear()
        while self.coming and self.coming[0][0] < outage[1]:
            self.now, _, ask = heapq.heappop(self.coming)
            self._arrive(ask)
        self.now = outage[1]
