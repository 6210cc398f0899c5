"""The series as they are now, read and judged: what the dashboard, alerts and reports ask."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carpool.planning.calibration import Calibration
from carpool.planning.plan import Plan
from carpool.store.calibration_store import CalibrationStore
from carpool.store.database import Database
from carpool.store.key_store import KeyStore
from carpool.watch.model_view import (
    HOST_NAMES,
    HOUR_NAMES,
    MINUTE_NAMES,
    CallerLines,
    Lines,
    ModelView,
)
from carpool.watch.plan_numbers import PlanNumbers
from carpool.watch.resolution import DAY_S, HOURS, MINUTES
from carpool.watch.series_reader import SeriesReader
from carpool.watch.signal import Reading, Signal
from carpool.watch.signals import find_signals, read_trend
from carpool.watch.signals.memory_limit import memory_limit
from carpool.watch.statistics import known

HISTORY_S = 14 * DAY_S
FRESH_S = 20.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """`at` is the unix second it was made; `has_data` is False where nothing is recorded yet."""

    at: float
    readings: tuple[Reading, ...]
    signals: tuple[Signal, ...]
    has_data: bool


class Watching:
    """Synchronous, and usable from several threads. `plans` are those of models by name: where
    there is none, remedies have the engine's own figures. Raises DatabaseAway, StoreError."""

    def __init__(
        self,
        database: Database,
        plans: Mapping[str, Plan] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.reader = SeriesReader(database)
        self._calibrations = CalibrationStore(database)
        self._keys = KeyStore(database)
        self._plans = {name: PlanNumbers.of_plan(plan) for name, plan in (plans or {}).items()}
        self._clock = clock
        self._lock = threading.Lock()
        self._made: dict[tuple[float, float], tuple[float, Outlook]] = {}

    def look(
        self, now: float | None = None, *, history_s: float = HISTORY_S, ease: float = 1.0
    ) -> Outlook:
        """Signals that hold at `now`. What was found less than twenty seconds ago is told again."""
        with self._lock:
            at = self._clock() if now is None else now
            before = self._made.get((history_s, ease))
            if before is not None and 0 <= at - before[0] < FRESH_S:
                return before[1]
            outlook = self._look(at, history_s, ease)
            self._made[history_s, ease] = at, outlook
            return outlook

    def signals(self, ease: float) -> tuple[Signal, ...]:
        """Those of `look`, with every threshold times `ease`."""
        return self.look(ease=ease).signals

    def plan_numbers(self, model: str) -> PlanNumbers | None:
        """None where neither a plan nor an engine's word is known."""
        if (plan := self._plans.get(model)) is not None:
            return plan
        now = self._clock()
        names = ("seats.max", "kv_tokens.max")
        return _engines_word(
            Lines.of_table(self.reader.read_series(names, now - DAY_S, now, 3600, model))
        )

    def _look(self, now: float, history_s: float, ease: float) -> Outlook:
        names = self._people()
        views = [self._view(model, now, history_s, ease, names) for model in self.reader.models()]
        views = [view for view in views if len(known(view.minutes["in_flight.mean"]))]
        minutes = _before(now, MINUTES.seconds)
        host = self.reader.read_series(HOST_NAMES, minutes - 7 * 3600, minutes, 60)
        signals = [signal for view in views for signal in find_signals(view)]
        signals += memory_limit(Lines.of_table(host), ease)
        signals.sort(key=lambda signal: -signal.severity.rank)
        return Outlook(now, tuple(read_trend(view) for view in views), tuple(signals), bool(views))

    def _view(
        self, model: str, now: float, history_s: float, ease: float, names: Mapping[str, str]
    ) -> ModelView:
        read, callers = self.reader.read_series, self.reader.read_callers
        whole_minutes = _before(now, MINUTES.seconds)
        hours = read(
            (*HOUR_NAMES, "seats.max", "kv_tokens.max"), now - history_s, now, HOURS.seconds, model
        )
        lines = Lines.of_table(hours)
        calibration = self._calibration(model)
        return ModelView(
            model=model,
            now=now,
            minutes=Lines.of_table(
                read(MINUTE_NAMES, whole_minutes - DAY_S, whole_minutes, MINUTES.seconds, model)
            ),
            hours=lines,
            callers=[
                CallerLines.of_series(each)
                for each in callers(now - history_s, now, HOURS.seconds, model)
            ],
            callers_now=[
                CallerLines.of_series(each)
                for each in callers(whole_minutes - 3600, whole_minutes, MINUTES.seconds, model)
            ],
            plan=self._plans.get(model) or _engines_word(lines),
            calibration_age_s=None if calibration is None else now - calibration.measured_at,
            calibrated_step_s=None
            if calibration is None
            else (calibration.step_fixed_s, calibration.step_per_seq_s),
            ease=ease,
            names=names,
        )

    def _calibration(self, model: str) -> Calibration | None:
        return self._calibrations.newest(model=model)

    def _people(self) -> dict[str, str]:
        return {each.person_id: each.name for each in self._keys.snapshot().people.values()}


def _before(now: float, seconds: int) -> float:
    """The end of the last whole bucket."""
    return float(now // seconds * seconds)


def _engines_word(hours: Lines) -> PlanNumbers | None:
    seats, tokens = known(hours["seats.max"]), known(hours["kv_tokens.max"])
    if not len(seats) or not len(tokens):
        return None
    return PlanNumbers.of_capacity(int(seats[-1]), int(tokens[-1]))
