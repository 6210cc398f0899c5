"""One person floods the embedded engine, another asks small things: who waits for whom?

    make bench-fairness                          5 minutes on 2 cores
    python -m benchmarks.fairness --seconds 20

The flood keeps 48 requests in flight at any time (prompt about 230 tokens, output 64); the
light one sends a prompt of about 40 every half second and wants 16 tokens. TTFT is from when a
request was due to the first chunk with text in it. With fair share both ask through the
gateway, with keys of their own. Without, both ask the engine at its own socket, as one, and its
queue is first come, first served: what an engine does that knows nobody. Then two such floods
compete, and the gap between what they get (prompt tokens, and output tokens twice) is in
percent of their mean. Tokens per second are those of prompts and outputs.

All is one run, and a phase begins when each flood has had as many answers as there are seats,
and the light one has asked for five seconds.
The last line is one JSON object: its ratios are to the light one alone, and to the flood alone.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rig_carpool import carpool_gateway, make_keys, run_rig
from benchmarks.rig_connection import Connect, connect_to
from benchmarks.rig_figures import Spread, spread
from benchmarks.rig_people import Person, Prompts, Refused, Served, gap_percent, served
from carpool.store.limits import Limits

NUM_IN_FLIGHT = 48
MAX_NUM_SEQS = 32
CACHE = "2048MiB"
FLOOD_WORDS, FLOOD_OUTPUT = 197, 64
LIGHT_WORDS, LIGHT_OUTPUT = 8, 16
INTERVAL_S = 0.5
WARM_UP_S = 5.0
"""Of the light one, unmeasured: an engine's first requests are slower than all after them."""
MAX_WARM_UP_S = 120.0
GRACE_S = 120.0
"""For light requests that were due in a phase and are not answered at its end."""
MAX_WAIT_S = 600
"""In the queue: on a busy machine, too, nobody is to be refused."""
console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Phase:
    """What people got in one. `light_ttft_ms` of a phase without the light one is empty."""

    floods: tuple[Served, ...]
    light: Served
    light_ttft_ms: Spread
    mean_prompt: float

    @property
    def tok_s(self) -> float:
        return self.light.tok_s + sum(flood.tok_s for flood in self.floods)


class Team:
    """The people of this benchmark, and how they reach the engine."""

    def __init__(self, connect: Connect, model: str, keys: Sequence[str], seed: int) -> None:
        self._connect = connect
        self._model = model
        self._keys = keys
        self._seed = seed

    def flooder(self, number: int) -> Person:
        prompts = Prompts(FLOOD_WORDS, self._new_seed())
        return Person(self._connect, self._keys[number], self._model, prompts, FLOOD_OUTPUT)

    def light(self) -> Person:
        prompts = Prompts(LIGHT_WORDS, self._new_seed())
        return Person(self._connect, self._keys[-1], self._model, prompts, LIGHT_OUTPUT)

    def _new_seed(self) -> int:
        self._seed += 1
        return self._seed


async def run_phase(
    team: Team, seconds: float, max_num_seqs: int, *, num_floods: int, is_light: bool
) -> Phase:
    """Raises Refused. The floods begin before the phase, and go on until the light one has all
    its answers."""
    floods = [team.flooder(number) for number in range(num_floods)]
    light = team.light()
    async with asyncio.TaskGroup() as tasks:
        flooding = [tasks.create_task(flood.flood(NUM_IN_FLIGHT)) for flood in floods]
        await _warmed_up(floods, max_num_seqs)
        if is_light:
            await team.light().ask_every(INTERVAL_S, WARM_UP_S, GRACE_S)
        begin = time.perf_counter()
        if is_light:
            await light.ask_every(INTERVAL_S, seconds, GRACE_S)
        await asyncio.sleep(max(0.0, begin + seconds - time.perf_counter()))
        for task in flooding:
            task.cancel()
    answers = [answer for flood in floods for answer in flood.answers if answer.is_complete]
    return Phase(
        floods=tuple(served(flood.answers, begin, begin + seconds) for flood in floods),
        light=served(light.answers, begin, begin + seconds),
        light_ttft_ms=spread([1e3 * a.ttft for a in light.answers if a.ttft is not None]),
        mean_prompt=sum(a.prompt_tokens for a in answers) / len(answers) if answers else 0.0,
    )


async def _warmed_up(floods: Sequence[Person], num_answers: int) -> None:
    """Until each flood has had a batch full of answers: whoever came first had all the seats."""
    deadline = time.perf_counter() + MAX_WARM_UP_S
    while any(flood.num_complete < num_answers for flood in floods):
        if time.perf_counter() > deadline:
            console.print(f"a flood had fewer than {num_answers} answers in {MAX_WARM_UP_S:.0f} s")
            return
        await asyncio.sleep(0.1)


PHASES = (
    # name, behind the gateway, floods, light
    ("light alone", True, 0, True),
    ("flood alone", True, 1, False),
    ("both, fair share", True, 1, True),
    ("both, first come", False, 1, True),
    ("two floods", True, 2, False),
)


async def run_phases(model: str, max_num_seqs: int, seconds: float) -> dict[str, Phase]:
    found = {}
    async with _both_ways(model, max_num_seqs) as (fair, unfair):
        for name, is_fair, num_floods, is_light in PHASES:
            console.print(f"{name} ...")
            team = fair if is_fair else unfair
            # Requests are few and large: it takes more of them to tell two floods apart.
            length_s = 2 * seconds if num_floods > 1 else seconds
            found[name] = await run_phase(
                team, length_s, max_num_seqs, num_floods=num_floods, is_light=is_light
            )
    return found


@asynccontextmanager
async def _both_ways(model: str, max_num_seqs: int) -> AsyncIterator[tuple[Team, Team]]:
    """The same people behind the gateway, and, without names, at its engine's own socket."""
    engine = ["--max-num-seqs", str(max_num_seqs), "--kv-cache-memory", CACHE]
    options = ["--max-wait", str(MAX_WAIT_S), "--", *engine]
    with tempfile.TemporaryDirectory(prefix="carpool-bench-") as home:
        database = Path(home) / "carpool.db"
        keys = make_keys(database, ["flood", "other flood", "light"], Limits())
        async with carpool_gateway(model, "embedded", database, options=options) as gateway:
            fair = Team(connect_to(gateway.port), model, keys, seed=0)
            socket = engine_socket(gateway.pid)
            yield fair, Team(connect_to(socket), model, [""] * len(keys), seed=1000)


def engine_socket(gateway_pid: int) -> Path:
    """Where the engine that a gateway has launched listens (Linux). Raises LookupError."""
    for task in Path(f"/proc/{gateway_pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"--uds" in command:
                return Path(command[command.index(b"--uds") + 1].decode())
    raise LookupError(f"process {gateway_pid} has no engine with a Unix socket")


# ------------------------------------------------------------------------ the run


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--max-num-seqs", type=int, default=MAX_NUM_SEQS)
    parser.add_argument(
        "--seconds", type=float, default=35.0, help="Of a phase; two floods get twice that."
    )
    options = parser.parse_args(arguments)
    try:
        found = run_rig(run_phases(options.model, options.max_num_seqs, options.seconds))
    except* Refused as refusals:
        console.print(f"somebody got no answer: {_first(refusals)}", markup=False)
        sys.exit(1)
    _report(found, options.max_num_seqs, options.seconds)


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _report(found: dict[str, Phase], max_num_seqs: int, seconds: float) -> None:
    prompt = found["flood alone"].mean_prompt
    table = Table(
        title=f"{NUM_IN_FLIGHT} in flight, prompts of {prompt:.0f} tokens, {max_num_seqs} seats; "
        f"{seconds:.0f} s a phase"
    )
    for column in ("", "TTFT p50 ms", "TTFT p99 ms", "light tok/s", "flood tok/s", "all tok/s"):
        table.add_column(column, justify="right")
    for name, phase in found.items():
        table.add_row(
            name,
            _shown(phase.light_ttft_ms.p50),
            _shown(phase.light_ttft_ms.p99),
            f"{phase.light.tok_s:,.1f}",
            " + ".join(f"{flood.tok_s:,.1f}" for flood in phase.floods) or "-",
            f"{phase.tok_s:,.1f}",
        )
    result = summary(found)
    output = Console(width=100)
    output.print(table)
    alone, first_come = found["light alone"].light_ttft_ms, found["both, first come"].light_ttft_ms
    output.print(
        f"TTFT under the flood, over that of the light one alone: p50 x{result['ratio_p50']:.1f} "
        f"and p99 x{result['ratio_p99']:.1f} with fair share; first come, first served "
        f"x{_ratio(first_come.p50, alone.p50):.1f} and x{_ratio(first_come.p99, alone.p99):.1f}"
    )
    gap, window_s = result["equal_floods_service_gap"], found["two floods"].light.seconds
    output.print(f"between two floods, over {window_s:.0f} s: {gap:.1f} % of service")
    print(json.dumps(result))


def _shown(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.1f}"


def _ratio(found: float | None, base: float | None) -> float:
    return found / base if found and base else float("nan")


def summary(found: dict[str, Phase]) -> dict[str, Any]:
    """The last line. `equal_floods_service_gap` in percent."""
    alone, both = found["light alone"].light_ttft_ms, found["both, fair share"].light_ttft_ms
    one, other = found["two floods"].floods
    return {
        "light_alone_ttft_p50_ms": alone.p50,
        "light_flood_ttft_p50_ms": both.p50,
        "ratio_p50": _ratio(both.p50, alone.p50),
        "ratio_p99": _ratio(both.p99, alone.p99),
        "throughput_ratio": found["both, fair share"].tok_s / found["flood alone"].tok_s,
        "equal_floods_service_gap": gap_percent(one.service, other.service),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
