"""The memory for keys and values is what is short."""

from collections.abc import Iterable

import numpy as np

from carpool.watch.model_view import ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Signal, SignalName
from carpool.watch.signals.remedies import for_capacity, mean_context, sequences
from carpool.watch.statistics import known, mean, share

WINDOW_S = 900
SHARE = 0.5
"""Of the minutes of the window in which the memory is full, or the engine preempts."""
FULL = 0.92
LEAST_PREEMPTIONS = 5


def kv_pressure(view: ModelView) -> Iterable[Signal]:
    """In half of the last quarter hour's minutes the engine preempted, or the gateway had given
    away nearly all KV tokens while seats were free."""
    minutes = view.minutes
    if len(known(minutes.last("in_flight.mean", WINDOW_S))) < 5:
        return
    preemptions = np.nan_to_num(minutes.last("preemptions", WINDOW_S))
    preempting = float((preemptions > 0).mean())
    tokens = minutes.last("kv_tokens.mean", WINDOW_S)
    reserved = minutes.last("kv_reserved.mean", WINDOW_S) / np.where(tokens > 0, tokens, np.nan)
    seats = minutes.last("seats.mean", WINDOW_S)
    has_seats = minutes.last("in_flight.mean", WINDOW_S) < 0.9 * seats
    waits = minutes.last("waiting.mean", WINDOW_S) >= 0.5
    given_away = share((reserved >= FULL * view.ease) & has_seats & waits, reserved)
    is_preempting = preempting >= SHARE * view.ease and preemptions.sum() >= LEAST_PREEMPTIONS
    if not is_preempting and given_away < SHARE * view.ease:
        return
    context = mean_context(view, hours=2)
    in_flight = mean(minutes.last("in_flight.mean", WINDOW_S))
    what = (
        f"the engine has put back {preemptions.sum():.0f} requests in {WINDOW_S // 60} minutes to "
        "make room, and computes them again"
        if is_preempting
        else f"with {sequences(in_flight)}, {100 * mean(reserved):.0f} % of its tokens are spoken "
        "for, and others wait although there are seats"
    )
    yield Signal(
        name=SignalName.KV_PRESSURE,
        severity=Severity.WARNING,
        model=view.model,
        since=view.now - WINDOW_S,
        value=max(preempting, given_away),
        threshold=SHARE,
        sentence=f"The KV memory of {view.model} is full: {what}. Contexts are long for it.",
        figures={
            "preemptions": float(preemptions.sum()),
            "reserved_share": mean(reserved),
            "context_tokens": context,
        },
        remedies=for_capacity(view, context),
    )
