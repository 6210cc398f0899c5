"""When the requests of an open loop are due. Pure: the same for the same arguments."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile

from carpool.bench.errors import BenchError
from carpool.bench.load import OpenLoop

MAX_ARRIVALS = 1_000_000


def constant(rate: float, seconds: float) -> OpenLoop:
    """`rate` requests a second, evenly."""
    _check(rate, seconds)
    num = math.ceil(rate * seconds)
    return OpenLoop([number / rate for number in range(num)], f"{rate:g} requests/s, evenly")


def poisson(rate: float, seconds: float, seed: int = 0) -> OpenLoop:
    """`rate` requests a second on average, each independent of the others."""
    _check(rate, seconds)
    rng = random.Random(seed)  # noqa: S311
    gaps = iter(lambda: rng.expovariate(rate), None)
    return OpenLoop(_until(gaps, seconds), f"{rate:g} requests/s, Poisson")


def gamma(rate: float, burstiness: float, seconds: float, seed: int = 0) -> OpenLoop:
    """Gaps between requests are gamma-distributed with shape `burstiness`: 1 is Poisson, below
    1 come bursts (a coefficient of variation of 1/sqrt(burstiness)), as in vLLM's benchmark."""
    _check(rate, seconds)
    if not 0 < burstiness < math.inf:
        raise BenchError(f"a burstiness of {burstiness:g} is none; give more than 0 (1: Poisson)")
    rng = random.Random(seed)  # noqa: S311
    gaps = iter(lambda: rng.gammavariate(burstiness, 1 / (rate * burstiness)), None)
    name = f"{rate:g} requests/s, gamma bursts of {burstiness:g}"
    return OpenLoop(_until(gaps, seconds), name)


def recorded(timestamps: Sequence[float], speed: float = 1.0, name: str = "trace") -> OpenLoop:
    """As recorded (seconds, in rising order), `speed` times as fast."""
    if not 0 < speed < math.inf:
        raise BenchError(f"a trace cannot be replayed {speed:g} times as fast; give more than 0")
    if not timestamps:
        raise BenchError(f"{name} has no requests")
    first = timestamps[0]
    pace = "" if speed == 1 else f", {speed:g} times as fast"
    return OpenLoop([(each - first) / speed for each in timestamps], f"{name}{pace}")


def _check(rate: float, seconds: float) -> None:
    if not 0 < rate < math.inf:
        raise BenchError(f"a rate of {rate:g} requests/s is none; give more than 0")
    if not 0 < seconds < math.inf:
        raise BenchError(f"{seconds:g} seconds are no time to measure in; give more than 0")
    if rate * seconds > MAX_ARRIVALS:
        raise BenchError(
            f"{rate:g} requests/s over {seconds:g} s are more than {MAX_ARRIVALS:,}; "
            "give a lower rate or fewer seconds"
        )


def _until(gaps: Iterator[float], seconds: float) -> list[float]:
    """The first request is due at once: a load that begins with silence measures nothing."""
    return [0.0, *takewhile(lambda due: due < seconds, accumulate(gaps))]
