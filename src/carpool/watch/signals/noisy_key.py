"""One key takes more than its share while others wait."""

from collections.abc import Iterable

import numpy as np

from carpool.watch.model_view import ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Remedy, Signal, SignalName
from carpool.watch.statistics import known, share

WINDOW_S = 2400
PARTS = 4
"""Of the window: in each of them it must take much."""
SHARE, LEAST_SHARE = 0.5, 0.35
"""Of everybody's time on seats, over the window and in each part of it."""
FAIR_RATIO = 3.0
"""Of its share to what would be its part, if all who are there had the same."""
LEAST_KEYS = 3
BUSY_SHARE = 0.3
"""Of the minutes in which the seats are nearly all taken, or somebody waits."""


def noisy_key(view: ModelView) -> Iterable[Signal]:
    """Over forty minutes, and in each ten of them, one key of three or more had half of the time
    on seats and three times its part, while the machine was busy."""
    callers = [each for each in view.callers_now if each.key_id]
    if len(callers) < LEAST_KEYS:
        return
    minutes = view.minutes
    seats = minutes.last("seats.mean", WINDOW_S)
    in_flight, waiting = (
        minutes.last(f"{name}.mean", WINDOW_S) for name in ("in_flight", "waiting")
    )
    busy = share((in_flight >= 0.85 * seats) | (waiting >= 0.5), in_flight)
    if busy < BUSY_SHARE * view.ease:
        return
    taken = np.stack([np.nan_to_num(each.columns["service_s"]) for each in callers])
    taken = taken[:, -WINDOW_S // 60 :]
    totals = taken.sum(axis=1)
    everybody = float(totals.sum())
    active = int((totals > 0).sum())
    if active < LEAST_KEYS or everybody <= 0:
        return
    most = int(np.argmax(totals))
    of_most = float(totals[most] / everybody)
    parts = [part for part in np.array_split(taken, PARTS, axis=1) if part.sum() > 0]
    least = min((float(part[most].sum() / part.sum()) for part in parts), default=0.0)
    if (
        of_most < SHARE * view.ease
        or least < LEAST_SHARE * view.ease
        or of_most < FAIR_RATIO * view.ease / active
    ):
        return
    caller = callers[most]
    name = view.name_of(caller.person_id)
    yield Signal(
        name=SignalName.NOISY_KEY,
        severity=Severity.WARNING,
        model=view.model,
        since=view.now - WINDOW_S,
        value=of_most,
        threshold=SHARE,
        subject=caller.key_id,
        person_id=caller.person_id,
        sentence=(
            f"A key of {name} takes {100 * of_most:.0f} % of the time on {view.model}, where "
            f"{active} keys are at work and {100 / active:.0f} % would be its part. The queue is "
            "fair, so the others go first, but they wait for its requests to end."
        ),
        figures={
            "share": of_most,
            "keys": active,
            "requests": float(np.nan_to_num(known(caller.columns["requests"])).sum()),
        },
        remedies=(
            Remedy(
                "limit_key",
                f"Give it fewer requests at once: carpool keys limit {caller.key_id} "
                "--max-in-flight 2.",
            ),
            Remedy(
                "spread",
                "Give it a key of the batch lane, which goes when nobody else waits: carpool keys "
                "add NAME --lane batch.",
            ),
        ),
    )
