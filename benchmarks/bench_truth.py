"""What `carpool bench` reports against what was true, by a server with known timings.

    make bench-truth                                       about 2 minutes
    make bench-truth VLLM=.../bin/vllm VLLM_MODEL=FOLDER   and `vllm bench serve`, 2 more
    python -m benchmarks.bench_truth --only 64 --seconds 5

The server is a process of its own that answers with 80 ms to the first token and then 20 tokens
a second, and writes down when it received each request and when it handed each token to the
kernel. 1, 64 and 512 streams; every figure must be within 2 % or 2 ms of the truth, 99th
percentiles included. Then an open loop of 20 requests a second, and a server that stands still
for 2 s: with the clock started when a request was due, the reported 99th percentile shows it.

`vllm bench serve` measures the same server at the same concurrency (its streams all begin at
once, and nothing of it is warm-up). The last line is one JSON object; exit code 1 where a figure
of Carpool's misses.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.truth_client import Timing, Truth, truth_server
from benchmarks.truth_vllm import VllmFigures, find_vllm, measure_vllm
from carpool.bench.arrivals import constant
from carpool.bench.dialect import get_acquainted
from carpool.bench.distribution import Distribution
from carpool.bench.level import Level, Limits
from carpool.bench.level_result import LevelResult
from carpool.bench.load import FixedConcurrency
from carpool.bench.loop import run
from carpool.bench.prompts import Lengths, MadeUpPrompts, Prompt, Session
from carpool.bench.run_level import run_level
from carpool.bench.target import find_target

STREAMS = (1, 64, 512)
TIMING = Timing(ttft_ms=80.0, gap_ms=50.0)
NUM_TOKENS = {1: 10, 64: 40, 512: 100}
STALL_TIMING = Timing(ttft_ms=80.0, gap_ms=20.0, stall_at_s=5.0, stall_s=2.0)
STALL_RATE = 20.0
LEAST_STALL_MS = 1500.0
RAMP_S, WARM_UP_S = 5.0, 3.0
TOLERANCE_MS, TOLERANCE_SHARE = 2.0, 0.02
console = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Figure:
    """`unit`: "ms" or "tok/s". `is_judged`: it must be near the truth."""

    name: str
    reported: float
    true: float
    unit: str = "ms"
    is_judged: bool = True

    @property
    def is_near(self) -> bool:
        error = abs(self.reported - self.true)
        is_within_ms = self.unit == "ms" and error <= TOLERANCE_MS
        return is_within_ms or error <= TOLERANCE_SHARE * abs(self.true)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.reported - self.true, "is_near": self.is_near}


@dataclass(frozen=True, slots=True)
class Scene:
    """What one tool said of one load."""

    tool: str
    load: str
    figures: Sequence[Figure]
    num_requests: int
    remark: str = ""

    @property
    def misses(self) -> list[str]:
        return [each.name for each in self.figures if each.is_judged and not each.is_near]

    def as_dict(self) -> dict[str, Any]:
        figures = {each.name: each.as_dict() for each in self.figures}
        return {
            "tool": self.tool,
            "load": self.load,
            "num_requests": self.num_requests,
            "remark": self.remark,
            "misses": self.misses,
            "figures": figures,
        }


def percentiles(values: "np.ndarray") -> tuple[float, float]:
    p50, p99 = np.percentile(values, (50, 99))
    return float(p50), float(p99)


def figures_of(
    reported: dict[str, tuple[float, float]],
    true: dict[str, tuple[float, float]],
    tokens_per_s: tuple[float, float],
) -> list[Figure]:
    """p50 and p99 by name. Gaps are shown and not judged: they are no figures of a request."""
    found = [
        Figure(f"{name}_{percentile}", figure, truth, is_judged=name != "itl")
        for name in reported
        for percentile, figure, truth in zip(
            ("p50", "p99"), reported[name], true[name], strict=True
        )
    ]
    return [*found, Figure("output_tokens_per_s", *tokens_per_s, unit="tok/s")]


@dataclass(frozen=True)
class NumberedPrompts:
    """`source` with each request's number in it, by which the server's stamps are found."""

    source: MadeUpPrompts
    is_shared: bool = False
    is_multi_turn: bool = False

    def salted(self, salt: str) -> "NumberedPrompts":
        return NumberedPrompts(self.source.salted(salt))

    def session(self, number: int) -> Session | None:
        session = self.source.session(number)
        return None if session is None else _Numbered(session, number + 1)


@dataclass(frozen=True, slots=True)
class _Numbered:
    session: Session
    number: int

    def next(self, answer: str | None) -> Prompt | None:
        prompt = self.session.next(answer)
        return None if prompt is None else replace(prompt, extra={"user": str(self.number)})


def p50_and_p99(figures: Distribution) -> tuple[float, float]:
    return figures.p50.value or 0.0, figures.p99.value or 0.0


# ------------------------------------------------------------------------------ scenes


def measure(timing: Timing, level: Level, num_tokens: int) -> tuple[LevelResult, Truth, Truth]:
    """The result, the truth of the same requests, and of all."""

    async def measured() -> LevelResult:
        known = await get_acquainted(await find_target(server.url))
        server.truth()
        prompts = MadeUpPrompts(lengths=(Lengths(100), Lengths(num_tokens)), scale=known.scale)
        return await run_level(known.target, level, NumberedPrompts(prompts))

    with truth_server(timing) as server:
        result = run(measured())
        everything = server.truth()
    return result, everything.of(str(record.number) for record in result.records), everything


def streams(num_streams: int, seconds: float) -> Scene:
    console.print(f"carpool bench: {num_streams} streams ...")
    load = FixedConcurrency(num_streams, RAMP_S if num_streams > 1 else 0.0)
    level = Level(str(load), load, Limits(max_seconds=seconds), warm_up_s=WARM_UP_S)
    result, truth, everything = measure(TIMING, level, NUM_TOKENS.get(num_streams, 40))
    due = [record.due for record in result.records]
    reported = {
        "ttft": p50_and_p99(result.ttft_ms),
        "tpot": p50_and_p99(result.tpot_ms),
        "itl": p50_and_p99(result.itl_ms),
    }
    true = {
        "ttft": percentiles(truth.ttft_ms(due)),
        "tpot": percentiles(truth.tpot_ms()),
        "itl": percentiles(truth.itl_ms()),
    }
    rates = result.output_tokens_per_s, everything.tokens_per_s(result.begin, result.end)
    figures = figures_of(reported, true, rates)
    _, since_received = percentiles(truth.ttft_ms())
    figures.append(
        Figure("ttft_p99 since received", reported["ttft"][1], since_received, "ms", False)
    )
    return Scene("carpool", str(load), figures, result.num_requests, remark(result))


def remark(result: LevelResult) -> str:
    lag = f"late by {result.lag.p99_ms:.1f} ms at p99, {result.lag.cpu_share:.0%} of a core"
    return lag + "".join(f"; {doubt}" for doubt in result.doubts)


def stall(seconds: float) -> Scene:
    console.print("carpool bench: an open loop, and a server that stands still for 2 s ...")
    load = constant(STALL_RATE, seconds)
    result, truth, _ = measure(STALL_TIMING, Level("stall", load, Limits()), 10)
    p50, p99 = percentiles(truth.ttft_ms([record.due for record in result.records]))
    reported_p50, reported_p99 = p50_and_p99(result.ttft_ms)
    figures = [Figure("ttft_p50", reported_p50, p50), Figure("ttft_p99", reported_p99, p99)]
    if reported_p99 < LEAST_STALL_MS:
        figures.append(Figure("ttft_p99_shows_the_stall", reported_p99, LEAST_STALL_MS))
    return Scene("carpool", f"{load}, stall of 2 s", figures, result.num_requests, remark(result))


def vllm_streams(vllm: tuple[Any, Any], num_streams: int, seconds: float) -> Scene | None:
    num_tokens = NUM_TOKENS.get(num_streams, 40)
    request_s = (TIMING.ttft_ms + TIMING.gap_ms * (num_tokens - 1)) / 1000
    num_requests = num_streams * max(1, round(seconds / request_s))
    console.print(f"vllm bench serve: {num_streams} streams ...")
    with truth_server(TIMING) as server:
        found = measure_vllm(vllm, server.url, num_streams, num_requests, num_tokens)
        truth = server.truth()
    if isinstance(found, str):
        console.print(found)
        return None
    # Its own first request is a trial, which it does not count.
    counted = truth.last(num_requests)
    return Scene(
        "vllm bench serve",
        f"{num_streams} streams",
        vllm_figures(found, counted),
        num_requests,
        "all streams begin at once",
    )


def vllm_figures(found: VllmFigures, truth: Truth) -> list[Figure]:
    """Its clock starts when a request is sent, so that the truth counts from its arrival."""
    begin, end = truth.received[0], max(each[-1] for each in truth.written)
    reported = {
        "ttft": (found.ttft_p50, found.ttft_p99),
        "tpot": (found.tpot_p50, found.tpot_p99),
        "itl": (found.itl_p50, found.itl_p99),
    }
    true = {
        "ttft": percentiles(truth.ttft_ms()),
        "tpot": percentiles(truth.tpot_ms()),
        "itl": percentiles(truth.itl_ms()),
    }
    return figures_of(reported, true, (found.tokens_per_s, truth.tokens_per_s(begin, end)))


# ------------------------------------------------------------------------------ report


def print_scene(scene: Scene) -> None:
    table = Table(title=f"{scene.tool}: {scene.load}", title_justify="left", box=None)
    for column in ("", "reported", "true", "error", ""):
        table.add_column(column, justify="right")
    for each in scene.figures:
        judged = ("near" if each.is_near else "MISSED") if each.is_judged else ""
        error = f"{each.reported - each.true:+.2f} {each.unit}"
        table.add_row(each.name, f"{each.reported:,.2f}", f"{each.true:,.2f}", error, judged)
    console.print(table)
    if scene.remark:
        console.print(f"  {scene.remark}")
    console.print()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=int, action="append", help="so many streams only")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured, each scene")
    parser.add_argument("--vllm", default=os.environ.get("VLLM"), help="its executable")
    parser.add_argument("--vllm-tokenizer", default=os.environ.get("VLLM_MODEL"))
    arguments = parser.parse_args()
    scenes = [streams(number, arguments.seconds) for number in arguments.only or STREAMS]
    if not arguments.only:
        scenes.append(stall(max(10.0, arguments.seconds)))
    vllm = find_vllm(arguments.vllm, arguments.vllm_tokenizer)
    if vllm is None:
        console.print("vllm bench serve is not measured: give --vllm and --vllm-tokenizer")
    else:
        numbers = [number for number in arguments.only or STREAMS if number > 1]
        peers = [vllm_streams(vllm, number, arguments.seconds) for number in numbers]
        scenes += [scene for scene in peers if scene is not None]
    for scene in scenes:
        print_scene(scene)
    missed = [scene.load for scene in scenes if scene.tool == "carpool" and scene.misses]
    print(json.dumps({"scenes": [scene.as_dict() for scene in scenes], "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
