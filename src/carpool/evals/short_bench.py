"""A short load on an engine: enough to see that a new version is not much slower."""

from dataclasses import dataclass

from carpool.bench.dialect import get_acquainted
from carpool.bench.level import Level, Limits
from carpool.bench.load import FixedConcurrency
from carpool.bench.prompts import Lengths, MadeUpPrompts
from carpool.bench.run_level import run_level
from carpool.bench.target import find_target

DRAIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """`streams` at once for `seconds`, prompts and answers of so many tokens."""

    streams: int = 4
    seconds: float = 15.0
    prompt_tokens: int = 128
    output_tokens: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFigures:
    """Of all streams together; None where nothing was measured. `doubts` are what makes the
    figures uncertain."""

    num_requests: int
    num_failed: int
    output_tokens_per_s: float
    ttft_p50_ms: float | None
    tpot_p50_ms: float | None
    doubts: tuple[str, ...] = ()


async def short_bench(
    url: str, model: str | None, api_key: str | None, options: BenchOptions
) -> BenchFigures:
    """Raises BenchError."""
    target = await find_target(url, model=model, api_key=api_key)
    acquaintance = await get_acquainted(target)
    prompts = MadeUpPrompts(
        lengths=(Lengths(options.prompt_tokens), Lengths(options.output_tokens)),
        scale=acquaintance.scale,
        ends_at_eos=False,
    )
    level = Level(
        name="upgrade",
        load=FixedConcurrency(options.streams),
        limits=Limits(max_seconds=options.seconds),
        drain_s=DRAIN_S,
    )
    result = await run_level(acquaintance.target, level, prompts, temperature=0.0)
    return BenchFigures(
        num_requests=result.num_requests,
        num_failed=result.num_failed,
        output_tokens_per_s=result.output_tokens_per_s,
        ttft_p50_ms=result.ttft_ms.p50.value,
        tpot_p50_ms=result.tpot_ms.p50.value,
        doubts=tuple(result.doubts),
    )
