"""The machine's memory is about to be full."""

from collections.abc import Iterable

from carpool.watch.model_view import Lines
from carpool.watch.severity import Severity
from carpool.watch.signal import Remedy, Signal, SignalName
from carpool.watch.signals.remedies import duration
from carpool.watch.statistics import blocks, known, mann_kendall, middle, theil_sen

WINDOW_S = 1800
FULL = 0.95
HIGH = 0.8
"""From here on, a steady rise counts that reaches the end within half a day."""
RISE_S, BLOCK_S = 6 * 3600, 900
FORECAST_S = 12 * 3600
SURE = 4.0
GIB = 2**30


def memory_limit(minutes: Lines, ease: float = 1.0) -> Iterable[Signal]:
    """Over half an hour 95 % of the memory was taken, or over six hours it has risen so steadily
    that it will be full within twelve. About the machine, so of no model."""
    total = middle(minutes.last("host_memory_total.mean", WINDOW_S))
    used = minutes.last("host_memory_used.mean", WINDOW_S)
    if total <= 0 or len(known(used)) < 0.5 * WINDOW_S / minutes.step:
        return
    level = middle(used) / total
    line = blocks(minutes.last("host_memory_used.mean", RISE_S), BLOCK_S // 60)
    slope = theil_sen(line) / BLOCK_S
    left_s = (1 - level) * total / slope if slope > 0 else float("inf")
    is_rising = (
        level >= HIGH * ease
        and left_s <= FORECAST_S / ease
        and len(known(line)) >= 12
        and mann_kendall(line) >= SURE
    )
    if level < FULL * ease and not is_rising:
        return
    then = f"; as it has been rising, it is full in {duration(left_s)}" if is_rising else ""
    yield Signal(
        name=SignalName.MEMORY_LIMIT,
        severity=Severity.CRITICAL if level >= FULL else Severity.WARNING,
        model="",
        since=minutes.start(-len(used)) if not is_rising else minutes.start(-RISE_S // 60),
        value=level,
        threshold=HIGH if is_rising and level < FULL else FULL,
        sentence=(
            f"{middle(used) / GIB:.1f} of the machine's {total / GIB:.1f} GiB are taken{then}. "
            "When none is left, the system ends a process, and that is often the engine."
        ),
        figures={"used_share": level, "slope_bytes_per_hour": slope * 3600},
        remedies=(
            Remedy("free_memory", "End what else runs there, or make the KV cache smaller."),
            Remedy("fix_backend", "If it is the engine that grows, start it again at night."),
        ),
    )
