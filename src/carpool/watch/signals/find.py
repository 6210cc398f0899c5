"""All signals, one after the other."""

from collections.abc import Callable, Iterable

from carpool.watch.model_view import ModelView
from carpool.watch.signal import Signal
from carpool.watch.signals.backend_flapping import backend_flapping
from carpool.watch.signals.calibration_old import calibration_old
from carpool.watch.signals.context_creep import context_creep
from carpool.watch.signals.kv_pressure import kv_pressure
from carpool.watch.signals.noisy_key import noisy_key
from carpool.watch.signals.plan_drift import plan_drift
from carpool.watch.signals.stream_slowdown import stream_slowdown
from carpool.watch.signals.sustained_queue import sustained_queue
from carpool.watch.signals.trend import bursts, capacity
from carpool.watch.signals.ttft_climb import ttft_climb

FINDERS: tuple[Callable[[ModelView], Iterable[Signal]], ...] = (
    backend_flapping,
    kv_pressure,
    sustained_queue,
    ttft_climb,
    stream_slowdown,
    capacity,
    noisy_key,
    context_creep,
    bursts,
    plan_drift,
    calibration_old,
)


def find_signals(view: ModelView) -> list[Signal]:
    """Those that hold now, the worst first."""
    found = [signal for find in FINDERS for signal in find(view)]
    return sorted(found, key=lambda signal: -signal.severity.rank)
