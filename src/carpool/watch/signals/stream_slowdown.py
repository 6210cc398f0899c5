"""Streams write slower, as all seats are taken."""

from collections.abc import Iterable

import numpy as np

from carpool.watch.model_view import ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Signal, SignalName
from carpool.watch.signals.remedies import for_capacity, mean_context
from carpool.watch.statistics import known, middle, rank_test

WINDOW_S = 3600
FULL, ROOMY = 0.9, 0.5
"""Shares of the seats that are taken."""
LEAST_MINUTES = 15
RATIO = 1.4
SURE = 3.0


def stream_slowdown(view: ModelView) -> Iterable[Signal]:
    """In a quarter of the last hour's minutes the batch was full, and streams wrote 1.4 times
    slower than while at most half of it was taken."""
    minutes = view.minutes
    seats = np.where(minutes["seats.mean"] > 0, minutes["seats.mean"], np.nan)
    taken, tpot = minutes["in_flight.mean"] / seats, minutes["tpot.p50"]
    recent = np.arange(len(taken)) >= len(taken) - WINDOW_S // minutes.step
    full, roomy = known(tpot[recent & (taken >= FULL)]), known(tpot[taken <= ROOMY])
    if len(full) < LEAST_MINUTES * view.ease or len(roomy) < LEAST_MINUTES:
        return
    slow, usual = middle(full), middle(roomy)
    if usual <= 0 or slow < RATIO * view.ease * usual or rank_test(roomy, full) < SURE:
        return
    yield Signal(
        name=SignalName.STREAM_SLOWDOWN,
        severity=Severity.INFO,
        model=view.model,
        since=minutes.start(int(np.flatnonzero(recent & (taken >= FULL))[0])),
        value=slow / usual,
        threshold=RATIO,
        sentence=(
            f"With all seats of {view.model} taken, a stream writes {1 / slow:.0f} tokens a "
            f"second; with half of them, {1 / usual:.0f}. Everybody shares one step, and each "
            "sequence makes it a little longer."
        ),
        figures={"tpot_full_s": slow, "tpot_usual_s": usual, "minutes_full": len(full)},
        remedies=for_capacity(view, mean_context(view)),
    )
