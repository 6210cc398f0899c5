"""Simulated days as a view of them at some moment: what a gateway's reader would have read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.simulated_day import DAY_S, MINUTES, Day
from carpool.watch.model_view import CallerLines, Lines, ModelView
from carpool.watch.plan_numbers import Assumptions, PlanNumbers

Array = np.ndarray[Any, np.dtype[Any]]

MIDNIGHT = 1_800_057_600.0
"""Of the day that is looked at; the week before it is history."""
_HOURLY_SUMS = ("requests", "prompt_tokens.sum", "cached_tokens.sum", "output_tokens.sum")


def plan_numbers(assumptions: Assumptions, seats: int, kv_tokens: int) -> PlanNumbers:
    """By the arithmetic of a plan: 8-bit keys and values take half, and a GPU more is another
    pool of the same size."""

    def fit(num_seats: int, tokens: float, context: float) -> int:
        return min(num_seats, int(tokens / max(1.0, context)))

    return PlanNumbers(
        lambda context: fit(seats, kv_tokens, context),
        lambda context: fit(seats, 2 * kv_tokens, context),
        lambda context: fit(2 * seats, 2 * kv_tokens, context),
        assumptions,
    )


class Sight:
    """The last of `days` from midnight on, with those before it as history."""

    def __init__(
        self,
        days: Sequence[Day],
        key_ids: Sequence[str],
        plan: PlanNumbers,
        calibrated_step_s: tuple[float, float] | None,
    ) -> None:
        self._today, before = days[-1], days[-2]
        self._num_days = len(days)
        self._key_ids = key_ids
        self._plan = plan
        self._calibrated = calibrated_step_s
        self._minutes = {
            name: np.concatenate([before.minutes[name], column])
            for name, column in self._today.minutes.items()
        }
        self._hours = _hours(days)
        self._by_key = {
            name: np.concatenate([_by_hour(day.by_key[name]) for day in days], axis=1)
            for name in self._today.by_key
        }

    def at(self, minute: int, ease: float = 1.0) -> ModelView:
        """After so many minutes of the day."""
        now = MIDNIGHT + 60.0 * minute
        minutes = {
            name: column[minute : MINUTES + minute] for name, column in self._minutes.items()
        }
        num_hours = 24 * (self._num_days - 1) + -(-minute // 60)
        first = MIDNIGHT - DAY_S * (self._num_days - 1)
        hours = {name: column[:num_hours] for name, column in self._hours.items()}
        start = minute // 60 * 60
        if minute > start:
            hours = hours | {
                name: _ended_by(hours[name], self._today.minutes[name][start:minute].sum())
                for name in _HOURLY_SUMS
            }
        return ModelView(
            model="m",
            now=now,
            minutes=Lines(60, now - DAY_S, minutes, MINUTES),
            hours=Lines(3600, first, hours, num_hours),
            callers=self._callers(num_hours, start, minute),
            callers_now=[
                CallerLines(key_id, key_id, self._last_hour(number, minute))
                for number, key_id in enumerate(self._key_ids)
            ],
            plan=self._plan,
            calibration_age_s=20.0 * DAY_S,
            calibrated_step_s=self._calibrated,
            ease=ease,
        )

    def host(self, minute: int) -> Lines:
        columns = {
            name: column[max(0, minute - 420) : minute] for name, column in self._today.host.items()
        }
        length = min(420, minute)
        return Lines(60, MIDNIGHT + 60.0 * (minute - length), columns, length)

    def _callers(self, num_hours: int, start: int, minute: int) -> list[CallerLines]:
        columns = {name: table[:, :num_hours] for name, table in self._by_key.items()}
        if minute > start:
            for name, table in columns.items():
                columns[name] = table.copy()
                columns[name][:, -1] = self._today.by_key[name][:, start:minute].sum(axis=1)
        return [
            CallerLines(key_id, key_id, {name: table[number] for name, table in columns.items()})
            for number, key_id in enumerate(self._key_ids)
        ]

    def _last_hour(self, number: int, minute: int) -> dict[str, Array]:
        return {
            name: table[number, max(0, minute - 60) : minute]
            for name, table in self._today.by_key.items()
        }


def _hours(days: Sequence[Day]) -> dict[str, Array]:
    columns: dict[str, list[Array]] = {}
    for day in days:
        minutes = day.minutes
        own = {name: _by_hour(minutes[name][None])[0] for name in _HOURLY_SUMS}
        own["ttft.p50"] = _middle(minutes["ttft.p50"])
        own["think.p50"] = minutes["think"][::60]
        own["think.count"] = own["requests"]
        for name in ("in_flight.mean", "seats.mean"):
            own[name] = minutes[name].reshape(24, 60).mean(axis=1)
        active = _by_hour(day.by_key["requests"]) > 0
        own["people_active.max"] = active.sum(axis=0).astype(float)
        for name, column in own.items():
            columns.setdefault(name, []).append(column)
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _by_hour(table: Array) -> Array:
    hours: Array = table.reshape(len(table), 24, 60).sum(axis=2)
    return hours


def _middle(column: Array) -> Array:
    rows = column.reshape(24, 60)
    middles = np.full(24, np.nan)
    has = (~np.isnan(rows)).any(axis=1)
    middles[has] = np.nanmedian(rows[has], axis=1)
    return middles


def _ended_by(column: Array, value: float) -> Array:
    column = column.copy()
    column[-1] = value
    return column
