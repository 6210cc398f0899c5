"""What signals look at: a model's figures up to now, as numbers side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from carpool.watch.callers import CallerSeries
from carpool.watch.chunk import CALLER_FIELDS
from carpool.watch.plan_numbers import PlanNumbers
from carpool.watch.series_reader import SeriesTable

MINUTE_NAMES = (
    "ttft.p50",
    "ttft.p90",
    "tpot.p50",
    "queue_wait.p90",
    "waiting.mean",
    "waiting.max",
    "in_flight.mean",
    "seats.mean",
    "kv_reserved.mean",
    "kv_tokens.mean",
    "kv_usage.max",
    "preemptions",
    "restarts",
    "went_down",
    "replicas.mean",
    "replicas_ready.mean",
    "requests",
)
HOUR_NAMES = (
    "ttft.p50",
    "in_flight.mean",
    "seats.mean",
    "requests",
    "prompt_tokens.sum",
    "cached_tokens.sum",
    "output_tokens.sum",
    "think.p50",
    "think.count",
    "people_active.max",
)
HOST_NAMES = ("host_memory_used.mean", "host_memory_total.mean")

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Columns of buckets of `step` seconds, the first beginning at unix second `first`; inside
    of here, NaN is what is not known."""

    step: int
    first: float
    columns: Mapping[str, Array]
    length: int

    @classmethod
    def of_table(cls, table: SeriesTable) -> "Lines":
        columns = {name: np.array(column, float) for name, column in table.columns.items()}
        first = table.starts[0] if table.starts else 0.0
        return cls(table.resolution, first, columns, len(table.starts))

    def __getitem__(self, name: str) -> Array:
        column = self.columns.get(name)
        return np.full(self.length, np.nan) if column is None else column

    def last(self, name: str, seconds: float) -> Array:
        """The end of a column."""
        return self[name][-max(1, int(seconds // self.step)) :]

    def start(self, place: int) -> float:
        """Of the bucket at a place; below 0 it counts from the end."""
        return self.first + self.step * (place if place >= 0 else self.length + place)


@dataclass(frozen=True, slots=True)
class CallerLines:
    """A key's sums, by bucket; NaN where nothing was recorded."""

    key_id: str
    person_id: str
    columns: Mapping[str, Array]

    @classmethod
    def of_series(cls, caller: CallerSeries) -> "CallerLines":
        sums = np.where(caller.known, caller.sums, np.nan)
        columns = dict(zip(CALLER_FIELDS, sums, strict=True))
        return cls(caller.key_id, caller.person_id, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """`minutes` are those of the last day, `hours` those of the last weeks, the one that runs
    included; `callers` by hour, as long as `hours`, `callers_now` by minute of the last hour.
    `calibration_age_s` and `calibrated_step_s` (seconds of a step by the number of sequences)
    are there where a calibration is; `ease` below 1 makes thresholds easier to pass, for those
    that have been passed already."""

    model: str
    now: float
    minutes: Lines
    hours: Lines
    callers: Sequence[CallerLines] = ()
    callers_now: Sequence[CallerLines] = ()
    plan: PlanNumbers | None = None
    calibration_age_s: float | None = None
    calibrated_step_s: tuple[float, float] | None = None
    ease: float = 1.0
    names: Mapping[str, str] = field(default_factory=dict)
    """What people are called, by person id."""

    def name_of(self, person_id: str) -> str:
        return self.names.get(person_id, person_id)
