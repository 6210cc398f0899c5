"""A simulated day as the gateway would have recorded it, minute by minute and hour by hour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.queue_simulation import Machine, Requests

Array = np.ndarray[Any, np.dtype[Any]]

DAY_S, MINUTES = 86_400, 1440
CACHED_SHARE = 0.3
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Day:
    """Columns of 1440 minutes by the names that are read; `by_key` of (keys, 1440) sums."""

    minutes: Mapping[str, Array]
    by_key: Mapping[str, Array]
    host: Mapping[str, Array] = field(default_factory=dict)


def recorded(requests: Requests, machine: Machine, num_keys: int) -> Day:
    """Requests are counted in the minute in which they end, as the ledger has them then."""
    arrived, granted, first, ended, left = (
        np.array(column, float)
        for column in (
            requests.arrived,
            requests.granted,
            requests.first,
            requests.ended,
            requests.left,
        )
    )
    has_ended = ~np.isnan(ended)
    minute = np.minimum((ended[has_ended] // 60).astype(int), MINUTES - 1)
    prompt = np.array(requests.prompt, float)[has_ended]
    output = np.array(requests.output, float)[has_ended]
    keys = np.array(requests.key, int)[has_ended]
    service = (ended - granted)[has_ended]
    ttft = (first - arrived)[has_ended]
    tpot = ((ended - first)[has_ended]) / np.maximum(1, output - 1)
    wait = (granted - arrived)[has_ended]
    tokens = np.array(requests.prompt, float) + np.array(requests.output, float)
    minutes = {
        "ttft.p50": _quantile(minute, ttft, 0.5),
        "ttft.p90": _quantile(minute, ttft, 0.9),
        "tpot.p50": _quantile(minute, tpot, 0.5),
        "queue_wait.p90": _quantile(minute, wait, 0.9),
        "waiting.mean": _level(arrived, granted, np.ones(len(arrived))),
        "waiting.max": _most_waiting(arrived, granted),
        "in_flight.mean": _level(granted, left, np.ones(len(arrived))),
        "kv_reserved.mean": _level(granted, left, tokens),
        "seats.mean": np.full(MINUTES, float(machine.seats)),
        "kv_tokens.mean": np.full(MINUTES, float(machine.kv_told)),
        "kv_usage.max": np.full(MINUTES, np.nan),
        "preemptions": _counts(np.array(requests.preempted)),
        "requests": np.bincount(minute, minlength=MINUTES).astype(float),
        "prompt_tokens.sum": np.bincount(minute, prompt, MINUTES),
        "cached_tokens.sum": np.bincount(minute, prompt * CACHED_SHARE, MINUTES),
        "output_tokens.sum": np.bincount(minute, output, MINUTES),
        "replicas.mean": np.ones(MINUTES),
        **_engine(machine),
    }
    place = keys * MINUTES + minute
    sums = {
        "requests": np.ones(len(keys)),
        "prompt_tokens": prompt,
        "cached_tokens": prompt * CACHED_SHARE,
        "output_tokens": output,
        "service_s": service,
        "kv_token_s": service * (prompt + output / 2),
        "prompt_logs": np.log(np.maximum(1, prompt)),
    }
    by_key = {
        name: np.bincount(place, values, num_keys * MINUTES).reshape(num_keys, MINUTES)
        for name, values in sums.items()
    }
    minutes["think"] = _thinks(requests)
    return Day(minutes, by_key)


def _thinks(requests: Requests) -> Array:
    """The day's median, which each minute shows: think times differ little by the hour."""
    middle = float(np.median(requests.think)) if requests.think else np.nan
    return np.full(MINUTES, middle)


def _engine(machine: Machine) -> dict[str, Array]:
    starts = np.array([start for start, _ in machine.outages])
    down = _counts(starts)
    ready = np.ones(MINUTES)
    for start, end in machine.outages:
        edges = 60.0 * np.arange(MINUTES)
        ready -= np.clip(np.minimum(end, edges + 60) - np.maximum(start, edges), 0, 60) / 60
    return {"went_down": down, "restarts": down, "replicas_ready.mean": ready}


def _counts(moments: Array) -> Array:
    if not len(moments):
        return np.zeros(MINUTES)
    places = np.minimum((moments // 60).astype(int), MINUTES - 1)
    return np.bincount(places, minlength=MINUTES).astype(float)


def _level(begins: Array, ends: Array, sizes: Array) -> Array:
    """The mean over each minute of what had begun and not ended."""
    has_begun = ~np.isnan(begins)
    has_ended = has_begun & ~np.isnan(ends)
    moments = np.concatenate([begins[has_begun], ends[has_ended]])
    changes = np.concatenate([sizes[has_begun], -sizes[has_ended]])
    order = np.argsort(moments, kind="stable")
    moments, changes = moments[order], changes[order]
    levels = np.concatenate([[0.0], np.cumsum(changes)])
    moments = np.concatenate([[0.0], moments, [DAY_S + 60.0]])
    area = np.concatenate([[0.0], np.cumsum(levels * np.diff(moments))])
    edges = np.interp(60.0 * np.arange(MINUTES + 1), moments, area)
    levels_by_minute: Array = np.diff(edges) / 60
    return levels_by_minute


def _most_waiting(arrived: Array, granted: Array) -> Array:
    """The most of each minute, as seen at arrivals."""
    granted = np.sort(granted[~np.isnan(granted)])
    moments = np.sort(arrived)
    before = np.searchsorted(granted, moments, side="right")
    waiting = np.arange(1, len(moments) + 1) - before
    most = np.zeros(MINUTES)
    np.maximum.at(most, np.minimum((moments // 60).astype(int), MINUTES - 1), waiting)
    return most


def _quantile(minute: Array, values: Array, share: float) -> Array:
    """Of each minute; NaN where there is none."""
    order = np.lexsort((values, minute))
    minute, values = minute[order], values[order]
    counts = np.bincount(minute, minlength=MINUTES)
    starts = np.cumsum(counts) - counts
    places = starts + (share * np.maximum(counts - 1, 0)).astype(int)
    found = np.full(MINUTES, np.nan)
    has = counts > 0
    found[has] = values[places[has]]
    return found
