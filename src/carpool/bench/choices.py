"""What a person asked for on the command line, as levels and prompts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from carpool.bench.arrivals import constant, gamma, poisson, recorded
from carpool.bench.errors import BenchError
from carpool.bench.level import Level, Limits, Slo
from carpool.bench.load import ClosedLoop, FixedConcurrency, Load, OpenLoop
from carpool.bench.prompt_file import read_conversations
from carpool.bench.prompts import (
    GivenPrompts,
    Lengths,
    MadeUpPrompts,
    PromptSource,
    Shape,
    TokenScale,
)
from carpool.bench.trace import MOONCAKE_BLOCK_TOKENS, Trace, read_trace

DEFAULT_SECONDS = 60.0


class Arrivals(StrEnum):
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChoice:
    """One of `concurrency`, `people`, `rates` (each value a level) or `trace` (one level);
    nothing: one stream. With a trace and rates, the trace gives lengths only."""

    concurrency: Sequence[int] = ()
    people: Sequence[int] = ()
    think_s: float = 10.0
    rates: Sequence[float] = ()
    arrivals: Arrivals = Arrivals.POISSON
    burstiness: float = 0.5
    trace: Path | None = None
    speed: float = 1.0
    ramp_s: float | None = None
    warm_up_s: float | None = None
    drain_s: float = 60.0
    timeout_s: float = 600.0
    max_lag_ms: float = 5.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """`shapes`: lengths out of the ledger, used in place of `lengths`."""

    lengths: tuple[Lengths, Lengths] = (Lengths(512), Lengths(128))
    file: Path | None = None
    shapes: Sequence[Shape] = ()
    system_tokens: int = 0
    num_turns: int = 1
    is_shared: bool = False
    ignores_eos: bool = True
    seed: int = 0


def levels_of(choice: LoadChoice, limits: Limits, slo: Slo, trace: Trace | None) -> Sequence[Level]:
    """Raises BenchError for what excludes each other."""
    named = {
        "--concurrency": choice.concurrency,
        "--people": choice.people,
        "--rate": choice.rates,
    }
    given = [name for name, values in named.items() if values]
    if trace is not None and not choice.rates:
        given.append("--trace")
    if len(given) > 1:
        raise BenchError(f"{' and '.join(given)} exclude each other; give one of them")
    return [
        Level(
            name=str(load),
            load=load,
            limits=_bounded(limits, load),
            warm_up_s=_warm_up_s(choice, limits, load),
            drain_s=choice.drain_s,
            timeout_s=choice.timeout_s,
            slo=slo,
            max_lag_ms=choice.max_lag_ms,
            seed=choice.seed,
        )
        for load in _loads(choice, limits, trace)
    ]


def prompts_of(choice: PromptChoice, scale: TokenScale, trace: Trace | None) -> PromptSource:
    """Raises BenchError for a file that cannot be read."""
    if choice.file is not None:
        return GivenPrompts(
            read_conversations(choice.file),
            max_tokens=choice.lengths[1].mean,
            ends_at_eos=not choice.ignores_eos,
            is_shared=choice.is_shared,
            num_turns=choice.num_turns,
        )
    shapes = trace.shapes if trace is not None else choice.shapes
    return MadeUpPrompts(
        shapes=shapes,
        lengths=None if shapes else choice.lengths,
        scale=scale,
        system_tokens=choice.system_tokens,
        num_turns=choice.num_turns,
        seed=choice.seed,
        ends_at_eos=not choice.ignores_eos,
        block_tokens=MOONCAKE_BLOCK_TOKENS,
        is_shared=choice.is_shared,
        is_cyclic=trace is None,
    )


def trace_of(choice: LoadChoice, limits: Limits) -> Trace | None:
    return None if choice.trace is None else read_trace(choice.trace, limits.max_requests)


def _loads(choice: LoadChoice, limits: Limits, trace: Trace | None) -> Iterator[Load]:
    for people in choice.people:
        yield ClosedLoop(people, choice.think_s, _ramp_s(choice, choice.think_s))
    for rate in choice.rates:
        yield _arrivals(choice)(rate, _open_seconds(choice, limits))
    if trace is not None and not choice.rates:
        yield recorded(trace.timestamps, choice.speed, trace.name)
    elif not choice.people and not choice.rates:
        for num_streams in choice.concurrency or (1,):
            # A burst of first requests is a load that is never met again.
            yield FixedConcurrency(num_streams, _ramp_s(choice, min(5.0, 0.1 * num_streams)))


def _arrivals(choice: LoadChoice) -> Callable[[float, float], OpenLoop]:
    match choice.arrivals:
        case Arrivals.CONSTANT:
            return constant
        case Arrivals.POISSON:
            return lambda rate, seconds: poisson(rate, seconds, choice.seed)
        case Arrivals.GAMMA:
            return lambda rate, seconds: gamma(rate, choice.burstiness, seconds, choice.seed)


def _open_seconds(choice: LoadChoice, limits: Limits) -> float:
    """Of arrivals: as long as the limits let them be needed."""
    warm_up_s = 0.0 if choice.warm_up_s is None else choice.warm_up_s
    if limits.max_seconds is not None:
        return limits.max_seconds + warm_up_s
    if limits.max_requests is not None:
        slowest = min(choice.rates)
        return warm_up_s + 2 * limits.max_requests / slowest + 10
    return DEFAULT_SECONDS + warm_up_s


def _bounded(limits: Limits, load: Load) -> Limits:
    is_bounded = limits.max_seconds or limits.max_requests or isinstance(load, OpenLoop)
    if is_bounded:
        return limits
    return Limits(limits.max_requests, DEFAULT_SECONDS, limits.max_tokens, limits.max_errors)


def _ramp_s(choice: LoadChoice, default: float) -> float:
    return default if choice.ramp_s is None else choice.ramp_s


def _warm_up_s(choice: LoadChoice, limits: Limits, load: Load) -> float:
    """5 s of closed loads, or a fifth of the time that was asked for; a trace is the load."""
    if choice.warm_up_s is not None:
        return choice.warm_up_s
    if isinstance(load, OpenLoop):
        return 0.0
    return min(5.0, (limits.max_seconds or DEFAULT_SECONDS) / 5)
