"""An engine goes away and comes back, again and again."""

from collections.abc import Iterable

import numpy as np

from carpool.watch.model_view import ModelView
from carpool.watch.severity import Severity
from carpool.watch.signal import Remedy, Signal, SignalName
from carpool.watch.statistics import mean

WINDOW_S = 3600
LEAST = 3


def backend_flapping(view: ModelView) -> Iterable[Signal]:
    """Three times within an hour an engine was lost or started again."""
    minutes = view.minutes
    down = np.nan_to_num(minutes.last("went_down", WINDOW_S))
    restarts = np.nan_to_num(minutes.last("restarts", WINDOW_S))
    times = float(max(down.sum(), restarts.sum()))
    if times < max(2, LEAST * view.ease):
        return
    events = np.flatnonzero(down + restarts > 0)
    replicas = minutes.last("replicas.mean", WINDOW_S)
    ready = mean(minutes.last("replicas_ready.mean", WINDOW_S)) / max(1.0, mean(replicas, 1.0))
    yield Signal(
        name=SignalName.BACKEND_FLAPPING,
        severity=Severity.CRITICAL if ready < 0.5 else Severity.WARNING,
        model=view.model,
        since=minutes.start(int(events[0]) - len(down)),
        value=times,
        threshold=LEAST,
        sentence=(
            f"An engine of {view.model} was lost {times:.0f} times in an hour, and was there "
            f"{100 * min(1.0, ready):.0f} % of it: what ran then was cut off. Its log says why it "
            "ends; memory is the usual reason."
        ),
        figures={"times": times, "ready_share": min(1.0, ready)},
        remedies=(
            Remedy("fix_backend", "Read the last lines of the engine in the gateway's log."),
            Remedy("free_memory", "Start it with fewer sequences, or less of the memory."),
        ),
    )
