"""Days on which something happens, or nothing: who asks what, and which signals are due."""

import csv
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from benchmarks.queue_simulation import (
    KV_TOKENS,
    PREFILL_TOKENS_PER_STEP,
    SEATS,
    STEP_FIXED_S,
    STEP_PER_SEQ_S,
    Ask,
    Machine,
    Requests,
    simulate,
)
from benchmarks.simulated_day import DAY_S, GIB, MINUTES, Day, recorded
from carpool.watch.signal import SignalName

HOUR_S = 3600.0
NUM_KEYS = 24
NUM_SPARE = 80
"""More keys, for people who come later."""

S = SignalName
SATURATION = frozenset((S.TTFT_CLIMB, S.SUSTAINED_QUEUE, S.STREAM_SLOWDOWN, S.CAPACITY))


@dataclass(frozen=True, slots=True)
class Due:
    """`name` must come up within `within_s` from `since`, seconds from midnight; with `subject`,
    where that is given. From `earliest` on (None: half an hour before `since`) it may."""

    name: SignalName
    since: float
    within_s: float
    subject: str | None = None
    earliest: float | None = None

    @property
    def may_from(self) -> float:
        return self.since - 1800 if self.earliest is None else self.earliest


@dataclass(frozen=True, slots=True)
class Happening:
    """A day: `due` must fire, `may` may, and anything else is a false alarm."""

    kind: str
    day: Day
    due: tuple[Due, ...] = ()
    may: frozenset[SignalName] = frozenset()
    is_calm: bool = False


@dataclass(frozen=True, slots=True)
class Habits:
    """A person's: medians of tokens, a mean of seconds between requests, and hours of the day
    at work."""

    prompt: float
    output: float
    think_s: float
    begins: float
    ends: float
    has_lunch: bool = True


@dataclass(slots=True)
class Team:
    """The same people every day. `habits` of the first `NUM_KEYS` keys."""

    habits: list[Habits]
    history: list[Day] = field(default_factory=list)

    @classmethod
    def of_seed(cls, seed: int) -> "Team":
        rng = random.Random(f"team {seed}")
        hurry = rng.uniform(0.4, 1.0)
        habits = [
            Habits(
                prompt=rng.lognormvariate(6.5, 0.5),
                output=rng.lognormvariate(5.0, 0.3),
                think_s=hurry * rng.uniform(100, 260),
                begins=rng.uniform(7.5, 9.5) * HOUR_S,
                ends=rng.uniform(16, 19) * HOUR_S,
            )
            for _ in range(NUM_KEYS)
        ]
        return cls(habits)

    def think_s(self) -> float:
        """The median of everybody's, as the plan has it: of an exponential it is ln 2."""
        return float(np.median([each.think_s for each in self.habits])) * 0.69


Change = Callable[[float], float]
"""A factor by the second of the day."""


def always(_: float) -> float:
    return 1.0


class Stream:
    """One person's requests, one after the other."""

    def __init__(
        self,
        key: int,
        habits: Habits,
        rng: random.Random,
        prompt: Change = always,
        think: Change = always,
    ) -> None:
        self.key, self.habits, self.rng = key, habits, rng
        self.prompt, self.think = prompt, think

    def first(self) -> tuple[float, Ask]:
        return self.next(self.habits.begins + self.rng.uniform(0, 600)) or (
            2.0 * DAY_S,
            self.ask(0),
        )

    def next(self, now: float) -> tuple[float, Ask] | None:
        """An evening and a night are quiet but for a few."""
        think = self.rng.expovariate(1 / self.habits.think_s) / self.think(now)
        at = now + max(1.0, think)
        if self.habits.has_lunch and 12.2 < at / HOUR_S < 13 and self.rng.random() < 0.5:
            at += 1800.0
        if at > self.habits.ends:
            if self.rng.random() < 0.9:
                return None
            at += self.rng.uniform(600, 7200)
        return at, self.ask(at)

    def ask(self, at: float) -> Ask:
        rng, habits = self.rng, self.habits
        prompt = habits.prompt * rng.lognormvariate(0, 0.7) * self.prompt(at)
        output = habits.output * rng.lognormvariate(0, 0.5)
        return Ask(
            self.key, int(min(12_000, max(20, prompt))), int(min(1500, max(5, output))), self.next
        )


def day_of(
    team: Team,
    rng: random.Random,
    machine: Machine,
    more: Sequence[tuple[float, Ask]] = (),
    prompt: Callable[[int], Change] = lambda key: always,
    think: Callable[[int], Change] = lambda key: always,
    num_keys: int = NUM_KEYS,
) -> Day:
    streams = [
        Stream(key, habits, rng, prompt(key), think(key)) for key, habits in enumerate(team.habits)
    ]
    asks = [*(stream.first() for stream in streams), *more]
    return _with_host(recorded(_simulated(asks, machine), machine, NUM_KEYS + NUM_SPARE), rng)


def _simulated(asks: Sequence[tuple[float, Ask]], machine: Machine) -> Requests:
    return simulate(sorted(asks, key=lambda each: each[0]), machine, float(DAY_S))


def _with_host(day: Day, rng: random.Random, leak_from: float | None = None) -> Day:
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, 0.2, MINUTES)
    used = 19 + noise + np.repeat([rng.uniform(-1, 1) for _ in range(24)], 60)
    if leak_from is not None:
        used += np.maximum(0, np.arange(MINUTES) - leak_from / 60) * 1.5 / 60
    total = np.full(MINUTES, 32.0 * GIB)
    host = {
        "host_memory_used.mean": np.minimum(used, 31.8) * GIB,
        "host_memory_total.mean": total,
    }
    return replace(day, host=host)


# ------------------------------------------------------------------ what happens


def calm(team: Team, rng: random.Random) -> Happening:
    return Happening("calm", day_of(team, rng, Machine()), is_calm=True)


def growth(team: Team, rng: random.Random) -> Happening:
    """From ten on, somebody new comes every few minutes, and stays."""
    start, machine = rng.uniform(9.5, 10.5) * HOUR_S, Machine()
    more = []
    for number in range(NUM_SPARE):
        habits = rng.choice(team.habits)
        begins = start + number * rng.uniform(130, 170)
        habits = replace(habits, begins=begins, ends=20 * HOUR_S, think_s=habits.think_s * 0.7)
        more.append(Stream(NUM_KEYS + number, habits, rng).first())
    day = day_of(team, rng, machine, more)
    full = _full_since(day)
    due = tuple(Due(name, full, 2 * HOUR_S, None, start) for name in sorted(SATURATION))
    return Happening("growth", day, due, frozenset((S.PLAN_DRIFT, S.KV_PRESSURE)))


def _full_since(day: Day) -> float:
    """From when on, for an hour, all seats are taken and somebody waits."""
    waiting, in_flight = day.minutes["waiting.mean"], day.minutes["in_flight.mean"]
    for minute in range(0, MINUTES - 60, 5):
        hour = slice(minute, minute + 60)
        if waiting[hour].mean() >= 1 and in_flight[hour].mean() >= 0.97 * SEATS:
            return minute * 60.0
    return float(DAY_S)


def bursts(team: Team, rng: random.Random) -> Happening:
    """Jobs that send many requests at once, and are done some minutes later."""
    at, more = rng.uniform(9.5, 11) * HOUR_S, []
    moments = []
    while at < 17.5 * HOUR_S:
        moments.append(at)
        for _ in range(rng.randint(18, 30)):
            key = rng.randrange(NUM_KEYS)
            habits = team.habits[key]
            ask = Ask(key, int(habits.prompt * rng.lognormvariate(0, 0.5)), int(habits.output))
            more.append((at + rng.uniform(0, 20), ask))
        at += rng.uniform(40, 70) * 60
    due = (Due(S.BURSTS, moments[2], 1.5 * HOUR_S, None, moments[0]),)
    may = frozenset((S.STREAM_SLOWDOWN,))
    return Happening("bursts", day_of(team, rng, Machine(), more), due, may)


def creep_of_key(team: Team, rng: random.Random) -> Happening:
    """Somebody adds retrieval: prompts are three times as long from then on."""
    start = rng.uniform(9.5, 12.5) * HOUR_S
    who = rng.choice([key for key, each in enumerate(team.habits) if 300 < each.prompt < 1500])
    factor = rng.uniform(2.8, 4)

    def longer(at: float) -> float:
        return factor if at >= start else 1.0

    day = day_of(team, rng, Machine(), prompt=lambda key: longer if key == who else always)
    due = (Due(S.CONTEXT_CREEP, start, 3 * HOUR_S, f"key{who}"),)
    return Happening("creep of a key", day, due, frozenset((S.PLAN_DRIFT,)))


def creep_of_all(team: Team, rng: random.Random) -> Happening:
    """Everybody's assistant sends more along: twice as much from then on."""
    start = rng.uniform(9.5, 11) * HOUR_S

    def longer(at: float) -> float:
        return 2.2 if at >= start else 1.0

    day = day_of(team, rng, Machine(), prompt=lambda key: longer)
    due = (Due(S.CONTEXT_CREEP, start, 3 * HOUR_S, ""),)
    may = frozenset((S.PLAN_DRIFT, S.KV_PRESSURE, *SATURATION))
    return Happening("creep of all", day, due, may)


def noisy(team: Team, rng: random.Random) -> Happening:
    """A key of an agent that asks with twelve streams at once, without a pause."""
    start, who = rng.uniform(9.5, 13) * HOUR_S, rng.randrange(NUM_KEYS)
    end = start + rng.uniform(2, 3) * HOUR_S
    habits = replace(team.habits[who], think_s=1.0, begins=start, ends=end, has_lunch=False)
    more = [Stream(who, habits, rng).first() for _ in range(12)]
    due = (Due(S.NOISY_KEY, start, 1.25 * HOUR_S, f"key{who}"),)
    may = frozenset((S.PLAN_DRIFT, S.KV_PRESSURE, *SATURATION))
    return Happening("noisy key", day_of(team, rng, Machine(), more), due, may)


def flapping(team: Team, rng: random.Random) -> Happening:
    start, outages = rng.uniform(9.5, 15) * HOUR_S, []
    at = start
    for _ in range(rng.randint(4, 6)):
        outages.append((at, at + rng.uniform(20, 60)))
        at += rng.uniform(4, 14) * 60
    machine = Machine(outages=tuple(outages))
    due = (Due(S.BACKEND_FLAPPING, outages[2][0], 0.5 * HOUR_S),)
    may = frozenset((S.BURSTS, S.STREAM_SLOWDOWN, S.TTFT_CLIMB))
    return Happening("flapping", day_of(team, rng, machine), due, may)


def leak(team: Team, rng: random.Random) -> Happening:
    """Memory grows by 1.5 GiB an hour until none is left."""
    start = rng.uniform(2, 6) * HOUR_S
    day = _with_host(day_of(team, rng, Machine()), rng, start)
    full = start + (0.95 * 32 - 20) / 1.5 * HOUR_S
    due = (Due(S.MEMORY_LIMIT, start, full + HOUR_S - start),)
    return Happening("memory", day, due)


def preempting(team: Team, rng: random.Random) -> Happening:
    """The gateway takes the engine for larger than it is, and contexts are long."""
    start = rng.uniform(10, 13) * HOUR_S
    machine = Machine(kv_tokens=KV_TOKENS * 2 // 5, kv_told=KV_TOKENS)
    more = []
    for number in range(30):
        habits = rng.choice(team.habits)
        habits = replace(
            habits, begins=start, ends=start + 3 * HOUR_S, prompt=3 * habits.prompt, think_s=150
        )
        more.append(Stream(NUM_KEYS + number, habits, rng).first())
    day = day_of(team, rng, machine, more)
    due = (Due(S.KV_PRESSURE, start, HOUR_S),)
    may = frozenset((S.PLAN_DRIFT, S.NOISY_KEY, S.CONTEXT_CREEP, S.BURSTS, *SATURATION))
    return Happening("preemption", day, due, may)


def slower(team: Team, rng: random.Random) -> Happening:
    """The machine is not what was calibrated: a driver, a clock limit."""
    day = day_of(team, rng, Machine(slowness=rng.uniform(1.7, 2.1)))
    due = (Due(S.CALIBRATION_OLD, 9 * HOUR_S, 6 * HOUR_S),)
    may = frozenset((S.PLAN_DRIFT, S.BURSTS, *SATURATION))
    return Happening("slower machine", day, due, may)


def busier(team: Team, rng: random.Random) -> Happening:
    """People think half as long as the plan says, all day."""
    day = day_of(team, rng, Machine(), think=lambda key: lambda at: 2.2)
    due = (Due(S.PLAN_DRIFT, 9 * HOUR_S, 15 * HOUR_S),)
    may = frozenset((S.BURSTS, *SATURATION))
    return Happening("busier people", day, due, may)


DAYS: tuple[tuple[Callable[[Team, random.Random], Happening], int], ...] = (
    (calm, 90),
    (growth, 20),
    (bursts, 20),
    (creep_of_key, 24),
    (creep_of_all, 12),
    (noisy, 20),
    (flapping, 16),
    (leak, 12),
    (preempting, 12),
    (slower, 12),
    (busier, 12),
)
"""With how many of each."""


# ------------------------------------------------------------------ a real trace


def read_trace(path: Path) -> list[tuple[float, int, int]]:
    """Seconds from the first request on, prompt and output tokens, of Azure's format."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(_rows(csv.DictReader(file)))
    start = rows[0][0]
    return [(at - start, prompt, output) for at, prompt, output in rows]


def _rows(reader: "csv.DictReader[str]") -> Iterator[tuple[float, int, int]]:
    for row in reader:
        moment = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        yield moment, int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _capacity_s(trace: Sequence[tuple[float, int, int]]) -> float:
    """Seconds between two requests when all seats are always taken."""
    steps = sum(min(3000, prompt) / PREFILL_TOKENS_PER_STEP + output for _, prompt, output in trace)
    return steps / len(trace) * (STEP_FIXED_S + STEP_PER_SEQ_S * SEATS) / SEATS


def of_trace(trace: Sequence[tuple[float, int, int]], rng: random.Random, load: float) -> Day:
    """Stretched over a day, with requests left out until those that stay are `load` of what the
    machine can do; prompts over 3000 tokens are cut."""
    length = trace[-1][0]
    keep = load * DAY_S / _capacity_s(trace) / len(trace)
    asks = []
    for at, prompt, output in trace:
        for _ in range(int(keep) + (rng.random() < keep % 1)):
            moment = at / length * DAY_S + rng.uniform(-30, 30)
            asks.append((max(0.0, moment), Ask(rng.randrange(NUM_KEYS), min(3000, prompt), output)))
    machine = Machine()
    return _with_host(recorded(_simulated(asks, machine), machine, NUM_KEYS + NUM_SPARE), rng)


def trace_calm(trace: Sequence[tuple[float, int, int]], rng: random.Random) -> Happening:
    """At a third of what the machine can do."""
    return Happening("Azure trace, calm", of_trace(trace, rng, 0.35), is_calm=True)


def trace_full(trace: Sequence[tuple[float, int, int]], rng: random.Random) -> Happening:
    """At a third more than it can do, from the morning on."""
    day = of_trace(trace, rng, 1.3)
    full = _full_since(day)
    due = tuple(Due(name, full, 2 * HOUR_S, None, 0.0) for name in (S.SUSTAINED_QUEUE, S.CAPACITY))
    return Happening("Azure trace, too much", day, due, frozenset((S.PLAN_DRIFT, *SATURATION)))
