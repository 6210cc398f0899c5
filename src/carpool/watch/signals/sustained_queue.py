"""People wait, and do not stop waiting."""

from collections.abc import Iterable

import numpy as np

from carpool.watch.model_view import ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Signal, SignalName
from carpool.watch.signals.remedies import duration, for_capacity, mean_context
from carpool.watch.statistics import known, middle, share

WINDOW_S = 1800
SHARE = 0.9
"""Of the minutes of the window in which somebody waits."""
LEAST = 0.5
"""Requests in the queue, on average over a minute, that make it one of them."""
LONG_WAIT_S = 15.0


def sustained_queue(view: ModelView) -> Iterable[Signal]:
    """In nine of ten minutes of the last half hour somebody waited for a seat."""
    waiting = view.minutes.last("waiting.mean", WINDOW_S)
    if len(known(waiting)) < 0.8 * WINDOW_S / view.minutes.step:
        return
    part = share(waiting >= LEAST, waiting)
    depth = middle(waiting)
    if part < SHARE * view.ease or depth < view.ease:
        return
    wait = middle(view.minutes.last("queue_wait.p90", WINDOW_S))
    column = view.minutes["waiting.mean"]
    empty = np.flatnonzero(~(column >= LEAST))
    # A minute or two without anybody do not end it.
    runs = empty[np.flatnonzero(np.diff(empty) == 1)] if len(empty) > 1 else empty
    first = int(runs[-1]) + 2 if len(runs) else 0
    yield Signal(
        name=SignalName.SUSTAINED_QUEUE,
        severity=Severity.CRITICAL if wait >= LONG_WAIT_S else Severity.WARNING,
        model=view.model,
        since=view.minutes.start(min(first, len(column) - 1)),
        value=part,
        threshold=SHARE,
        sentence=(
            f"The queue of {view.model} does not empty: {depth:.0f} "
            f"{'request waits' if round(depth) == 1 else 'requests wait'} at a time, one in ten "
            f"for {duration(wait)} or longer. All seats are taken; more people only wait longer."
        ),
        figures={"waiting": depth, "share_of_minutes": part, "queue_wait_p90_s": wait},
        remedies=for_capacity(view, mean_context(view)),
    )
