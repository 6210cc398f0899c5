"""How fast an engine steps, from measured levels: t(n) = W + H n, and prefill tokens a second.

A busy engine spends its time on prefills and on decode steps, so that with X requests a second
of P prompt and M output tokens each,

    1 = X P c + X M H + (X M / d) W,

where c is the time of a prompt token, d the sequences in a decode step, and X M / d the steps
a second. What runs alone says c; d is what is in flight between first and last token, by
Little's law X M times the time per output token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from carpool.errors import CarpoolError
from carpool.planning.calibration import MeasuredLevel


class FitError(CarpoolError):
    """Levels of which no step times can be had."""


@dataclass(frozen=True, slots=True)
class StepFit:
    """W and H of a decode step in seconds, and c as tokens a second."""

    step_fixed_s: float
    step_per_seq_s: float
    prefill_tokens_per_s: float


def fit_steps(
    levels: Sequence[MeasuredLevel], prompt_tokens: float, output_tokens: float
) -> StepFit:
    """By least squares of relative errors. `levels` must have one of concurrency 1; FitError
    if that measured nothing."""
    used = [level for level in levels if level.requests_per_s > 0 and level.tpot_s > 0]
    alone = next((level for level in used if level.concurrency == 1), None)
    if alone is None:
        raise FitError("no request that ran alone was measured, so that step times are unknown")
    # The first token takes a prefill and, in most engines, no step of its own.
    per_token = max(alone.ttft_s, 1e-6) / prompt_tokens
    points = [(1.0, alone.tpot_s, alone.tpot_s)]
    for level in used:
        if level.concurrency == 1:
            continue
        busy = 1 / level.requests_per_s
        decodes = max(1.0, level.requests_per_s * output_tokens * level.tpot_s)
        per_output = (busy - per_token * prompt_tokens) / output_tokens
        points.append((1 / decodes, max(0.0, per_output), busy / output_tokens))
    fixed, per_seq = _line(points)
    return StepFit(fixed, per_seq, 1 / per_token)


def _line(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Slope and intercept of y over x, neither below zero, the errors of (x, y, scale) being
    shares of `scale`."""
    weights = [1 / scale**2 for _, _, scale in points]
    total = sum(weights)
    x0 = sum(w * x for w, (x, _, _) in zip(weights, points, strict=True)) / total
    y0 = sum(w * y for w, (_, y, _) in zip(weights, points, strict=True)) / total
    xx = sum(w * (x - x0) ** 2 for w, (x, _, _) in zip(weights, points, strict=True))
    xy = sum(w * (x - x0) * (y - y0) for w, (x, y, _) in zip(weights, points, strict=True))
    slope = xy / xx if xx else 0.0
    intercept = y0 - slope * x0
    if slope < 0:
        return 0.0, y0
    if intercept < 0:
        squares = sum(w * x * x for w, (x, _, _) in zip(weights, points, strict=True))
        return sum(w * x * y for w, (x, y, _) in zip(weights, points, strict=True)) / squares, 0.0
    return slope, intercept
