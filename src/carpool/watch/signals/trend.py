"""Climb or sawtooth: whether more machine is needed, or only patience."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from carpool.watch.model_view import ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Reading, Remedy, Signal, SignalName, Trend
from carpool.watch.signals.remedies import duration, for_capacity, mean_context
from carpool.watch.signals.ttft_climb import usual_at
from carpool.watch.statistics import blocks, known, mann_kendall, mean, middle, theil_sen

Array = np.ndarray[Any, np.dtype[Any]]

BURST_WINDOW_S = 6 * 3600
LEAST_BURSTS = 3
LONGEST_BURST_S = 1200
QUEUED = 3.0
"""Requests in the queue at some moment of a minute, that make it part of a burst."""
LEAST_PEAK = 1.0
"""Of the seats: requests in the queue at the height of a burst, a whole batch of them."""
CLIMB_WINDOW_S, BLOCK_S = 4 * 3600, 600
SURE = 4.0
LEAST_RISE = 0.3
"""Of the seats, over the window."""
LEAST_LOAD = 0.8
"""Of the seats, at its end."""
ABOVE_USUAL = 0.25
"""Of the seats, more than at this hour on other days."""
FULL_S, FULL_SHARE = 3600, 0.85
"""Seats that are all taken for so much of an hour are a matter of capacity, too."""


class _Bursts(NamedTuple):
    number: int
    first: int
    length_s: float
    peak: float
    queued_share: float


class _Climb(NamedTuple):
    load: float
    rise: float
    is_full: bool


def read_trend(view: ModelView) -> Reading:
    """The steady climb, the sawtooth, or calm."""
    minutes = view.minutes
    if len(known(minutes.last("in_flight.mean", CLIMB_WINDOW_S))) < 30:
        sentence = f"Less than half an hour of {view.model} is recorded: too little to tell."
        return _reading(view, Trend.UNKNOWN, minutes.start(0), sentence)
    climb, saw = _climb(view), _bursts(view)
    if climb is not None:
        more = "" if climb.is_full else f", {100 * climb.rise:.0f} points more than four hours ago"
        sentence = (
            f"{view.model} climbs steadily: {100 * climb.load:.0f} % of its seats are asked for"
            f"{more}. That is a matter of capacity."
        )
        figures = {"load": climb.load, "rise": climb.rise}
        return _reading(view, Trend.CLIMB, view.now - CLIMB_WINDOW_S, sentence, figures)
    if saw is not None:
        sentence = (
            f"{view.model} goes up and down: {saw.number} bursts in six hours, of "
            f"{duration(saw.length_s)} each, and the queue is empty in between."
        )
        return _reading(view, Trend.SAWTOOTH, minutes.start(saw.first), sentence, saw._asdict())
    load = mean(_load(view)[-60:])
    sentence = f"{view.model} is calm: {100 * load:.0f} % of its seats are taken."
    return _reading(view, Trend.CALM, view.now - CLIMB_WINDOW_S, sentence, {"load": load})


def bursts(view: ModelView) -> Iterable[Signal]:
    """Three times in six hours the queue filled and emptied within twenty minutes."""
    saw = _bursts(view)
    if saw is None or _climb(view) is not None:
        return
    yield Signal(
        name=SignalName.BURSTS,
        severity=Severity.INFO,
        model=view.model,
        since=view.minutes.start(saw.first),
        value=float(saw.number),
        threshold=LEAST_BURSTS,
        sentence=(
            f"Requests to {view.model} come in bursts: {saw.number} times in six hours the queue "
            f"filled, up to {saw.peak:.0f} requests, and was empty again after "
            f"{duration(saw.length_s)}. The queue absorbs that; more machine would stand idle."
        ),
        figures={
            "bursts": saw.number,
            "burst_s": saw.length_s,
            "peak_waiting": saw.peak,
            "queued_share": saw.queued_share,
        },
        remedies=(
            Remedy("spread", "Let jobs run in the batch lane, or not all on the full hour."),
        ),
    )


def capacity(view: ModelView) -> Iterable[Signal]:
    """Over four hours the load has risen by a third of the seats to four fifths of them, more
    than is usual at this hour; or for an hour nearly all were taken."""
    climb = _climb(view)
    if climb is None:
        return
    context = mean_context(view)
    left = ""
    if not climb.is_full and climb.rise > 0:
        hours = max(0.0, 1 - climb.load) / climb.rise * CLIMB_WINDOW_S
        left = f" At this rate all are taken in {duration(hours)}." if hours > 300 else ""
    yield Signal(
        name=SignalName.CAPACITY,
        severity=Severity.WARNING,
        model=view.model,
        since=view.now - (FULL_S if climb.is_full else CLIMB_WINDOW_S),
        value=climb.load,
        threshold=LEAST_LOAD,
        sentence=(
            f"{view.model} runs out of seats: {100 * climb.load:.0f} % of them are asked for, and "
            f"it is a steady climb, not a burst.{left}"
        ),
        figures={"load": climb.load, "rise": climb.rise, "context_tokens": context},
        remedies=for_capacity(view, context),
    )


def _load(view: ModelView) -> Array:
    """What is asked for, in flight or waiting, over the seats, by minute."""
    seats = view.minutes["seats.mean"]
    asked = view.minutes["in_flight.mean"] + np.nan_to_num(view.minutes["waiting.mean"])
    load: Array = asked / np.where(seats > 0, seats, np.nan)
    return load


def _climb(view: ModelView) -> _Climb | None:
    load = _load(view)
    recent = load[-FULL_S // 60 :]
    ease = view.ease
    if len(known(recent)) < 20:
        return None
    usual = _usual_load(view)
    line = blocks(load[-CLIMB_WINDOW_S // 60 :], BLOCK_S // 60)
    rise = theil_sen(line) * max(0, len(line) - 1)
    now = middle(load[-1800 // 60 :])
    full = float((known(recent) >= 0.98).mean())
    hour = blocks(recent, 15, 0.3)
    is_full = full >= FULL_SHARE * ease and float(known(hour).min(initial=1.0)) >= 0.98 * ease
    is_rising = (
        now >= LEAST_LOAD * ease
        and rise >= LEAST_RISE * ease
        and mann_kendall(line) >= SURE * ease
        and (usual is None or now >= usual + ABOVE_USUAL * ease)
    )
    return _Climb(now, rise, is_full) if is_full or is_rising else None


def _usual_load(view: ModelView) -> float | None:
    in_flight = usual_at(view.hours, "in_flight.mean", view.now)
    seats = usual_at(view.hours, "seats.mean", view.now)
    return in_flight / seats if in_flight is not None and seats else None


def _bursts(view: ModelView) -> _Bursts | None:
    """Runs of minutes with a queue, a minute or two without one counted in."""
    waiting = view.minutes.last("waiting.max", BURST_WINDOW_S)
    least = max(QUEUED, LEAST_PEAK * middle(view.minutes.last("seats.mean", BURST_WINDOW_S)))
    queued = np.flatnonzero(waiting >= QUEUED * view.ease)
    if not len(queued):
        return None
    gaps = np.flatnonzero(np.diff(queued) > 3)
    starts = queued[np.concatenate([[0], gaps + 1])]
    ends = queued[np.concatenate([gaps, [len(queued) - 1]])]
    peaks = np.array([np.nanmax(waiting[a : b + 1]) for a, b in zip(starts, ends, strict=True)])
    is_over = ends < len(waiting) - 1
    real = (peaks >= least * view.ease) & is_over
    if real.sum() < max(2, LEAST_BURSTS * view.ease):
        return None
    lengths = (ends - starts + 1)[real] * view.minutes.step
    if np.max(lengths) > 2 * LONGEST_BURST_S or np.median(lengths) > LONGEST_BURST_S:
        return None
    first = view.minutes.length - len(waiting) + int(starts[real][0])
    part = len(queued) / max(1, len(known(waiting)))
    if part > 0.5:
        return None
    return _Bursts(
        int(real.sum()), first, float(np.median(lengths)), float(peaks[real].max()), part
    )


def _reading(
    view: ModelView,
    trend: Trend,
    since: float,
    sentence: str,
    figures: dict[str, Any] | None = None,
) -> Reading:
    return Reading(
        model=view.model, trend=trend, since=since, sentence=sentence, figures=figures or {}
    )
