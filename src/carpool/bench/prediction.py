"""What was expected at a concurrency, to hold against what is measured there."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from carpool.planning.calibration import Calibration
from carpool.planning.figure import Figure, Known
from carpool.planning.speed import Speed

SHARE = 0.1
"""What was measured before is expected again give or take this."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds to the first token on average, tokens a second of a stream after that, and of
    all together. `source` says whose expectation it is."""

    concurrency: int
    ttft_s: Figure
    stream_tokens_per_s: Figure
    tokens_per_s: Figure
    source: str


def predicted_by_plan(
    speed: Speed, concurrency: int, seats: int, prompt_tokens: int, output_tokens: int
) -> Prediction:
    """By the plan's step times: a request takes all prefills of those it runs with and its own
    decode steps; who finds no seat waits for one. A first token takes one's own prefill and a
    step, as if nobody else's were in the way."""
    running = min(concurrency, seats)

    def times(guess: int) -> tuple[float, float, float]:
        prefill = speed.prefill_seconds(prompt_tokens, guess)
        step = speed.step_seconds(running, guess)
        request = running * prefill + output_tokens * step
        wait = request * (concurrency / running - 1)
        first = prefill + step
        tpot = max(step, (request - first) / output_tokens)
        return wait + first, 1 / tpot, running * output_tokens / request

    slow, usual, fast = (times(guess) for guess in range(3))
    known = Known.ASSUMED if speed.measured is None else Known.MEASURED

    def figure(index: int) -> Figure:
        low, high = sorted((slow[index], fast[index]))
        return Figure(usual[index], low, high, known)

    return Prediction(concurrency, figure(0), figure(1), figure(2), "the plan")


def predicted_by_calibration(
    calibration: Calibration, concurrency: int, seats: int
) -> Prediction | None:
    """What the last verification measured there, or what follows from its levels."""
    level = calibration.level_at(concurrency, seats)
    if level is None or not level.tpot_s:
        return None
    about: Callable[[float], Figure] = lambda value: Figure.about(value, SHARE, Known.MEASURED)  # noqa: E731
    day = time.strftime("%Y-%m-%d", time.gmtime(calibration.measured_at))
    return Prediction(
        concurrency,
        about(level.ttft_s),
        about(1 / level.tpot_s),
        about(level.tokens_per_s),
        f"measured on {day}",
    )
