"""What was measured of the engine is no longer what it does."""

from collections.abc import Iterable

import numpy as np

from carpool.watch.model_view import ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Remedy, Signal, SignalName
from carpool.watch.signals.remedies import duration
from carpool.watch.statistics import known

MOST_AGE_S = 60 * 86_400
MOST_OFF = 0.4
"""Of the time of a step, either way."""
LEAST_MINUTES = 120


def calibration_old(view: ModelView) -> Iterable[Signal]:
    """The calibration is two months old, or over the last day steps took 1.4 times as long (or
    as short) as it says for as many sequences."""
    if view.calibration_age_s is None:
        return
    off = _off(view)
    is_old = view.calibration_age_s >= MOST_AGE_S * view.ease
    is_off = off is not None and abs(np.log(off)) >= np.log(1 + MOST_OFF) * view.ease
    if not (is_old or is_off):
        return
    if is_off and off is not None:
        what = f"steps take {off:.1f} times as long as `carpool verify` measured"
        value, threshold = off, 1 + MOST_OFF
    else:
        what = f"`carpool verify` measured it {duration(view.calibration_age_s)} ago"
        value, threshold = view.calibration_age_s / 86_400, MOST_AGE_S / 86_400
    yield Signal(
        name=SignalName.CALIBRATION_OLD,
        severity=Severity.INFO,
        model=view.model,
        since=view.now - (86_400 if is_off else max(0.0, view.calibration_age_s - MOST_AGE_S)),
        value=float(value),
        threshold=float(threshold),
        sentence=f"The plan of {view.model} may not hold any more: {what}.",
        figures={"age_days": view.calibration_age_s / 86_400, "step_ratio": off or 1.0},
        remedies=(Remedy("calibrate", "Run `carpool verify` again when few people are on it."),),
    )


def _off(view: ModelView) -> float | None:
    """Measured over calibrated time of a step, over the last day's minutes."""
    if view.calibrated_step_s is None:
        return None
    fixed, per_seq = view.calibrated_step_s
    expected = fixed + per_seq * np.maximum(1.0, view.minutes["in_flight.mean"])
    ratios = known(view.minutes["tpot.p50"] / np.where(expected > 0, expected, np.nan))
    ratios = ratios[ratios > 0]
    return float(np.median(ratios)) if len(ratios) >= LEAST_MINUTES else None
