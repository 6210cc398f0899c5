"""Do the signals fire where they should, in time, and nowhere else?

    python -m benchmarks.signals [--trace FILE] [--seed 0] [--json-only]

Simulates days of teams that nobody has tuned anything on (see signal_days), each with a week of
calm days before it, and looks every twenty minutes as an alert would. A hit is a signal that
is due and comes up within its window; any signal that neither is due nor may come is a false
alarm, counted once a day. Fails below 95 % of hits (90 % of any one signal), or above one false
alarm in 30 calm days.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.queue_simulation import KV_TOKENS, SEATS, STEP_FIXED_S, STEP_PER_SEQ_S, Machine
from benchmarks.signal_days import (
    DAYS,
    NUM_KEYS,
    NUM_SPARE,
    Happening,
    Team,
    day_of,
    of_trace,
    read_trace,
    trace_calm,
    trace_full,
)
from benchmarks.signal_view import MIDNIGHT, Sight, plan_numbers
from benchmarks.simulated_day import CACHED_SHARE, MINUTES, Day
from carpool.watch.plan_numbers import Assumptions, PlanNumbers
from carpool.watch.signal import Signal, SignalName, Trend
from carpool.watch.signals import find_signals, read_trend
from carpool.watch.signals.memory_limit import memory_limit

LOOK_EVERY = 20
"""Minutes."""
HISTORY_DAYS = 7
NUM_TEAMS = 12
NUM_TRACE_DAYS = 12
LEAST_RECALL, LEAST_OF_ANY = 0.95, 0.9
MOST_PER_30_CALM_DAYS = 1.0
KEY_IDS = tuple(f"key{number}" for number in range(NUM_KEYS + NUM_SPARE))

Trace = list[tuple[float, int, int]]


@dataclass(frozen=True, slots=True)
class Job:
    """`number` of the days of a kind; a kind beyond `DAYS` is one of the trace's."""

    kind: int
    number: int
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """`hits`, `misses` and `false_alarms` by signal; `late_s` is how long hits took; `trends` are
    all that were read."""

    kind: str
    is_calm: bool
    hits: tuple[SignalName, ...]
    misses: tuple[SignalName, ...]
    false_alarms: tuple[SignalName, ...]
    late_s: tuple[float, ...]
    trends: frozenset[Trend]


class Rig:
    """What the jobs of one process share: teams with their histories."""

    def __init__(self, seed: int, trace: Trace | None) -> None:
        self._seed = seed
        self._trace = trace
        self._teams: dict[int, Team] = {}

    def run(self, job: Job) -> Result:
        team = self._team(job.number % NUM_TEAMS)
        rng = random.Random(f"day {job}")
        if job.kind < len(DAYS):
            happening, days = DAYS[job.kind][0](team, rng), team.history
        else:
            make = (trace_calm, trace_full)[job.kind - len(DAYS)]
            happening, days = make(self._trace or [], rng), self._of_trace()
            team = Team([], days)
        return judged(happening, Sight([*days, happening.day], KEY_IDS, _plan(team), _calibrated()))

    def _team(self, number: int) -> Team:
        if number not in self._teams:
            team = Team.of_seed(1000 * self._seed + number)
            rng = random.Random(f"history {self._seed} {number}")
            team.history += [day_of(team, rng, Machine()) for _ in range(HISTORY_DAYS)]
            self._teams[number] = team
        return self._teams[number]

    def _of_trace(self) -> list[Day]:
        if -1 not in self._teams:
            rng = random.Random(f"trace {self._seed}")
            days = [of_trace(self._trace or [], rng, 0.35) for _ in range(HISTORY_DAYS)]
            self._teams[-1] = Team([], days)
        return self._teams[-1].history


def _plan(team: Team) -> PlanNumbers:
    requests = sum(day.minutes["requests"].sum() for day in team.history)
    prompt = sum(day.minutes["prompt_tokens.sum"].sum() for day in team.history)
    output = sum(day.minutes["output_tokens.sum"].sum() for day in team.history)
    assumptions = Assumptions(
        think_seconds=team.think_s() if team.habits else None,
        context_tokens=float((prompt + output / 2) / requests) if requests else None,
        cached_share=CACHED_SHARE,
        num_people=NUM_KEYS,
        max_num_seqs=SEATS,
    )
    return plan_numbers(assumptions, SEATS, KV_TOKENS)


def _calibrated() -> tuple[float, float]:
    return STEP_FIXED_S, STEP_PER_SEQ_S


def judged(happening: Happening, sight: Sight) -> Result:
    """All looks of a day against what was to come."""
    seen: dict[tuple[SignalName, str], list[float]] = {}
    trends = set()
    for minute in range(LOOK_EVERY, MINUTES + 1, LOOK_EVERY):
        view = sight.at(minute)
        found: list[Signal] = [*find_signals(view), *memory_limit(sight.host(minute))]
        for signal in found:
            seen.setdefault((signal.name, signal.subject), []).append(view.now - MIDNIGHT)
        trends.add(read_trend(view).trend)
    hits: list[SignalName] = []
    misses: list[SignalName] = []
    late: list[float] = []
    for due in happening.due:
        moments = [
            at
            for (name, subject), times in seen.items()
            if name is due.name and due.subject in (None, subject)
            for at in times
            if due.may_from <= at <= due.since + due.within_s
        ]
        (hits if moments else misses).append(due.name)
        late += [max(0.0, min(moments) - due.since)] if moments else []
    expected = {due.name for due in happening.due} | happening.may
    wrong = {name for name, _ in seen if name not in expected}
    for due in happening.due:  # of somebody else, or before there was a reason
        for (name, subject), times in seen.items():
            is_other = due.subject and subject not in (due.subject, "")
            if name is due.name and (is_other or min(times) < due.may_from):
                wrong.add(name)
    return Result(
        happening.kind,
        happening.is_calm,
        tuple(hits),
        tuple(misses),
        tuple(sorted(wrong)),
        tuple(late),
        frozenset(trends),
    )


_rig: Rig


def _start(seed: int, trace: Trace | None) -> None:
    global _rig
    _rig = Rig(seed, trace)


def _run(job: Job) -> Result:
    return _rig.run(job)


def jobs_of(seed: int, has_trace: bool, scale: float = 1.0) -> list[Job]:
    """`scale` below 1 for a shorter run."""
    numbers = [number for _, number in DAYS] + ([NUM_TRACE_DAYS] * 2 if has_trace else [])
    return [
        Job(kind, number, seed)
        for kind, count in enumerate(numbers)
        for number in range(max(1, round(count * scale)))
    ]


def summary(results: Sequence[Result], seconds: float) -> dict[str, object]:
    hits = Counter(name for each in results for name in each.hits)
    misses = Counter(name for each in results for name in each.misses)
    num_calm = sum(each.is_calm for each in results)
    calm_alarms = sum(len(each.false_alarms) for each in results if each.is_calm)
    other_alarms = sum(len(each.false_alarms) for each in results if not each.is_calm)
    recalls = {
        name.value: hits[name] / (hits[name] + misses[name])
        for name in SignalName
        if hits[name] + misses[name]
    }
    per_30 = 30 * calm_alarms / max(1, num_calm)
    recall = sum(hits.values()) / max(1, sum(hits.values()) + sum(misses.values()))
    is_enough = recall >= LEAST_RECALL and min(recalls.values(), default=0) >= LEAST_OF_ANY
    return {
        "days": len(results),
        "calm_days": num_calm,
        "recall": recall,
        "recall_by_signal": recalls,
        "false_alarms_per_30_calm_days": per_30,
        "false_alarms_calm": calm_alarms,
        "false_alarms_other_days": other_alarms,
        "seconds": round(seconds, 1),
        "ok": is_enough and per_30 <= MOST_PER_30_CALM_DAYS,
    }


def table(results: Sequence[Result]) -> str:
    lines = [
        f"{'signal':<18} {'due':>5} {'hits':>5} {'misses':>7} {'false alarms':>13}   median delay"
    ]
    for name in SignalName:
        hits = sum(each.hits.count(name) for each in results)
        misses = sum(each.misses.count(name) for each in results)
        wrong = sum(name in each.false_alarms for each in results)
        late = sorted(
            late
            for each in results
            for hit, late in zip(each.hits, each.late_s, strict=True)
            if hit is name
        )
        delay = f"{late[len(late) // 2] / 60:.0f} min" if late else "-"
        lines.append(
            f"{name:<18} {hits + misses:>5} {hits:>5} {misses:>7} {wrong:>13}   {delay:>12}"
        )
    lines.append("")
    lines.append(f"{'day':<24} {'days':>5} {'due':>5} {'hits':>5}   false alarms, trends read")
    for kind in dict.fromkeys(each.kind for each in results):
        own = [each for each in results if each.kind == kind]
        hits = sum(len(each.hits) for each in own)
        due = hits + sum(len(each.misses) for each in own)
        alarms = Counter(name.value for each in own for name in each.false_alarms)
        trends = Counter(trend.value for each in own for trend in each.trends)
        lines.append(f"{kind:<24} {len(own):>5} {due:>5} {hits:>5}   {dict(alarms)} {dict(trends)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="Azure's LLM trace (TIMESTAMP,ContextTokens,…)")
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    trace = read_trace(arguments.trace) if arguments.trace else None
    jobs = jobs_of(arguments.seed, trace is not None, arguments.scale)
    began = time.monotonic()
    # Spawned, and in the order of teams: each process makes the histories of few.
    jobs.sort(key=lambda job: (job.number % NUM_TEAMS, job.kind))
    with multiprocessing.get_context("fork").Pool(
        arguments.processes, _start, (arguments.seed, trace)
    ) as pool:
        results = pool.map(_run, jobs, chunksize=-(-len(jobs) // (4 * arguments.processes)))
    figures = summary(results, time.monotonic() - began)
    print(table(results))
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
