"""What is coming, as a figure, a sentence and a remedy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from carpool.watch.severity import Severity


class SignalName(StrEnum):
    TTFT_CLIMB = "ttft_climb"
    SUSTAINED_QUEUE = "sustained_queue"
    STREAM_SLOWDOWN = "stream_slowdown"
    KV_PRESSURE = "kv_pressure"
    CONTEXT_CREEP = "context_creep"
    NOISY_KEY = "noisy_key"
    BURSTS = "bursts"
    CAPACITY = "capacity"
    MEMORY_LIMIT = "memory_limit"
    PLAN_DRIFT = "plan_drift"
    BACKEND_FLAPPING = "backend_flapping"
    CALIBRATION_OLD = "calibration_old"


@dataclass(frozen=True, slots=True)
class Remedy:
    """`action` is a word for programs. `before` and `after` are sequences in flight by the plan,
    None where it has no number for that."""

    action: str
    sentence: str
    before: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """`value` has passed `threshold`; `since` is the unix second from which on it holds.
    `subject` is a key id where it is about one key, whose person is `person_id`; `remedies` come
    cheapest first."""

    name: SignalName
    severity: Severity
    model: str
    since: float
    sentence: str
    value: float
    threshold: float
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    subject: str = ""
    person_id: str = ""

    @property
    def id(self) -> str:
        """The same for as long as it lasts."""
        return f"{self.name.value}:{self.model}:{self.subject}"


class Trend(StrEnum):
    CALM = "calm"
    CLIMB = "climb"
    """Steadily more: a matter of capacity."""
    SAWTOOTH = "sawtooth"
    """Up and down again: bursts, which the queue may absorb."""
    UNKNOWN = "unknown"
    """Too little is recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the last hours of a model look like."""

    model: str
    trend: Trend
    since: float
    sentence: str
    figures: Mapping[str, float | int | str] = field(default_factory=dict)


def as_dict(found: Signal | Reading) -> dict[str, Any]:
    """Ready for JSON."""
    fields = asdict(found)
    return {"id": found.id, **fields} if isinstance(found, Signal) else fields
