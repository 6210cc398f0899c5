"""The first token comes later and later."""

from collections.abc import Iterable

import numpy as np

from carpool.watch.model_view import Lines, ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Signal, SignalName
from carpool.watch.signals.remedies import duration, for_capacity, mean_context
from carpool.watch.statistics import blocks, known, mann_kendall, middle

WINDOW_S = 3 * 3600
BLOCK_S = 600
RATIO = 3.0
"""Of the median TTFT of the last half hour to what is usual."""
LEAST_S = 1.0
SURE = 2.5
"""Of Mann and Kendall's test over the window, as it climbs."""


def ttft_climb(view: ModelView) -> Iterable[Signal]:
    """The median TTFT of the last half hour is three times what is usual at this hour (at any,
    where less than three days are known), above a second, and has risen within three hours or
    stays there."""
    minutes = view.minutes
    now = middle(minutes.last("ttft.p50", 1800))
    if len(known(minutes.last("ttft.p50", 1800))) < 10 or now < LEAST_S * view.ease:
        return
    usual = usual_at(view.hours, "ttft.p50", view.now) or quiet(minutes)
    if not usual or now < RATIO * view.ease * usual:
        return
    line = blocks(minutes.last("ttft.p50", WINDOW_S), BLOCK_S // 60, 0.3)
    if mann_kendall(line) < SURE and middle(minutes.last("ttft.p50", 3600)) < RATIO * usual:
        return
    above = np.flatnonzero(~(blocks(minutes["ttft.p50"], BLOCK_S // 60, 0.3) >= RATIO / 2 * usual))
    first = above[-1] + 1 if len(above) else 0
    since = view.minutes.start(0) + (view.minutes.length % (BLOCK_S // 60)) * 60 + first * BLOCK_S
    yield Signal(
        name=SignalName.TTFT_CLIMB,
        severity=Severity.CRITICAL if now >= 10 else Severity.WARNING,
        model=view.model,
        since=float(since),
        value=now / usual,
        threshold=RATIO,
        sentence=(
            f"The first token of {view.model} comes after {duration(now)}, where "
            f"{duration(usual)} are usual at this hour: requests wait for seats or for each "
            "other's prompts, and it gets worse as more people come."
        ),
        figures={"ttft_s": now, "usual_ttft_s": usual},
        remedies=for_capacity(view, mean_context(view)),
    )


def usual_at(hours: Lines, name: str, now: float, least_days: int = 3) -> float | None:
    """The median at about this hour on earlier days; None before there are enough."""
    column = hours[name][: -12 if len(hours[name]) > 12 else 0]
    if not len(column):
        return None
    starts = hours.first + hours.step * np.arange(len(column))
    distance = np.abs((starts + 1800 - now + 43_200) % 86_400 - 43_200)
    same = known(column[distance <= 1.5 * 3600])
    days = len(np.unique((starts[(distance <= 1.5 * 3600) & ~np.isnan(column)]) // 86_400))
    return float(np.median(same)) if days >= least_days else None


def quiet(minutes: Lines) -> float | None:
    """What the better half of the last day's blocks is like."""
    line = known(blocks(minutes["ttft.p50"], BLOCK_S // 60, 0.3))
    return float(np.quantile(line, 0.25)) if len(line) >= 6 else None
