"""The gateway on one core, against nginx and LiteLLM in the same rig.

    make bench-gateway                                  everything; about 3 minutes
    python -m benchmarks.gateway --only carpool --seconds 5
    python -m benchmarks.gateway --only carpool --no-streams --profile carpool.prof

What is measured has one core, load generator and mock engine share another. The floor is the
load straight to the mock engine. Carpool has a key with every limit, its fair queue and its
ledger in SQLite; nginx forwards and does nothing else; LiteLLM has a master key and no database.

Requests: whole chat completions on 16 connections, each of which asks again as soon as it is
answered, so latencies are those of a saturated core. The last column has the same connections
at half of that rate. Streams: 256 at once of 50 chunks a second; a chunk's delay is from the
engine's write to its arrival, its added delay the difference to the floor's same percentile.
The last line is one JSON object.
"""

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rig_carpool import StartFailed, run_rig
from benchmarks.rig_cores import Cores, kept_awake, on_core, two_cores
from benchmarks.rig_engine import CHUNKS_PER_S, RigEngine
from benchmarks.rig_figures import above
from benchmarks.rig_load import (
    NO_STREAMS,
    NUM_CONNECTIONS,
    NUM_STREAMS,
    RequestFigures,
    StreamFigures,
    run_requests,
    run_streams,
)
from benchmarks.rig_systems import System, carpool, litellm, litellm_program, nginx, nginx_program

FLOOR = "floor"
NAMES = ("carpool", "nginx", "litellm")
Start = Callable[[int, int | None, Path], AbstractAsyncContextManager[System]]
console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one system. `half`: at half of the rate of `full`."""

    full: RequestFigures
    half: RequestFigures
    streams: StreamFigures = NO_STREAMS


async def measure(name: str, system: System, seconds: float, has_streams: bool) -> Measured:
    where = (system.port, system.model, system.key, seconds)
    console.print(f"{name}: {NUM_CONNECTIONS} connections ...")
    full = await run_requests(*where)
    console.print(f"{name}: half as many requests ...")
    half = await run_requests(*where, per_s=max(1.0, full.per_s / 2))
    if not has_streams:
        return Measured(full, half)
    console.print(f"{name}: {NUM_STREAMS} streams ...")
    return Measured(full, half, await run_streams(*where))


async def measure_all(
    starts: dict[str, Start], cores: Cores, seconds: float, has_streams: bool
) -> dict[str, Measured]:
    with kept_awake(cores.rig):
        return await _measured(starts, cores, seconds, has_streams)


async def _measured(
    starts: dict[str, Start], cores: Cores, seconds: float, has_streams: bool
) -> dict[str, Measured]:
    found = {}
    async with RigEngine() as engine:
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection would count as somebody's delay
        found[FLOOR] = await measure(FLOOR, System(engine.port), seconds, has_streams)
        for name, start in starts.items():
            console.print(f"{name}: starting ...")
            with tempfile.TemporaryDirectory(prefix="carpool-bench-") as home:
                try:
                    async with start(engine.port, cores.system, Path(home)) as system:
                        found[name] = await measure(name, system, seconds, has_streams)
                except StartFailed as error:
                    console.print(f"{name} is left out: {error}", markup=False)
            engine.drop_connections()
            gc.collect()
    return found


# ------------------------------------------------------------------------ the run


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=NAMES, help="Measure this one and the floor.")
    parser.add_argument("--seconds", type=float, default=10.0, help="Of each measurement.")
    parser.add_argument("--profile", type=Path, help="cProfile's figures of Carpool go there.")
    parser.add_argument("--no-streams", action="store_true", help="Whole answers alone.")
    options = parser.parse_args(arguments)
    cores = two_cores()
    if cores.rig is None:
        console.print("there are no two cores to bind to: the rig shares those of what it measures")
    starts = _starts(options.only, options.profile)
    with on_core(cores.rig):
        found = run_rig(measure_all(starts, cores, options.seconds, not options.no_streams))
    _report(found)


def _starts(only: str | None, profile: Path | None) -> dict[str, Start]:
    """What is installed, or `only` that."""
    starts: dict[str, Start] = {"carpool": partial(carpool, profile=profile)}
    if nginx_program():
        starts["nginx"] = nginx
    if litellm_program():
        starts["litellm"] = litellm
    missing = [name for name in NAMES if name not in starts and only in (None, name)]
    if missing:
        console.print(f"not installed: {', '.join(missing)} (make bench-peers)")
    return {name: start for name, start in starts.items() if only in (None, name)}


def _report(found: dict[str, Measured]) -> None:
    output = Console(width=100)
    output.print(_requests_table(found))
    output.print(_streams_table(found))
    print(json.dumps(summary(found)))


def _requests_table(found: dict[str, Measured]) -> Table:
    table = Table(title=f"whole answers, {NUM_CONNECTIONS} connections, one core")
    columns = ("", "requests/s", "p50 ms", "p99 ms", "p50 over floor", "p50 at half", "failed")
    for column in columns:
        table.add_column(column, justify="right")
    for name, each in found.items():
        full, half = each.full, each.half
        table.add_row(
            name,
            f"{full.per_s:,.0f}",
            _shown(full.latency_ms.p50),
            _shown(full.latency_ms.p99),
            _shown(overhead_ms(each, found[FLOOR])),
            _shown(half.latency_ms.p50),
            f"{full.num_failed + half.num_failed:,}",
        )
    return table


def _streams_table(found: dict[str, Measured]) -> Table:
    wanted = NUM_STREAMS * CHUNKS_PER_S
    table = Table(title=f"{NUM_STREAMS} streams of {CHUNKS_PER_S} chunks/s, one core")
    columns = ("", f"chunks/s of {wanted:,}", "p50 ms", "p99 ms", "p50 added", "p99 added", "cut")
    for column in columns:
        table.add_column(column, justify="right")
    floor = found[FLOOR].streams.delay_ms
    for name, each in found.items():
        delay = each.streams.delay_ms
        table.add_row(
            name,
            f"{each.streams.chunks_per_s:,.0f}",
            _shown(delay.p50),
            _shown(delay.p99),
            _shown(above(delay.p50, floor.p50)),
            _shown(above(delay.p99, floor.p99)),
            f"{each.streams.num_cut:,}",
        )
    return table


def _shown(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.2f}"


def overhead_ms(found: Measured, floor: Measured) -> float | None:
    """By how much the median latency on the same connections is above the floor's."""
    return above(found.full.latency_ms.p50, floor.full.latency_ms.p50)


def summary(found: dict[str, Measured]) -> dict[str, Any]:
    """The last line; None for what is not installed or was not wanted."""
    floor = found[FLOOR]
    figures = {
        name: {
            "rps": each.full.per_s,
            "p50_overhead_ms": overhead_ms(each, floor),
            # Saturated, 16 connections wait 16 / rps each, whatever the system: at half of what
            # it can do, the overhead is the system's own.
            "p50_overhead_half_load_ms": above(each.half.latency_ms.p50, floor.half.latency_ms.p50),
            "stream_p99_added_ms": above(each.streams.delay_ms.p99, floor.streams.delay_ms.p99),
        }
        for name, each in found.items()
    }
    return {"floor_rps": floor.full.per_s} | {name: figures.get(name) for name in NAMES}


if __name__ == "__main__":
    main(sys.argv[1:])
