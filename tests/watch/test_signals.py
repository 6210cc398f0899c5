"""Each signal by hand-made series: it fires for its reason, and for nothing else."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.watch.model_view import (
    HOST_NAMES,
    HOUR_NAMES,
    MINUTE_NAMES,
    CallerLines,
    Lines,
    ModelView,
)
from carpool.watch.plan_numbers import Assumptions, PlanNumbers
from carpool.watch.signal import SignalName, Trend, as_dict
from carpool.watch.signals import find_signals, read_trend
from carpool.watch.signals.memory_limit import memory_limit

DAY_S = 86_400
NOW = 1_800_057_600.0 + 15 * 3600
MINUTES, HOURS = 1440, 15 * 24
PLAN = PlanNumbers(
    lambda context: int(32_000 / context),
    lambda context: int(64_000 / context),
    lambda context: int(70_000 / context),
    Assumptions(think_seconds=120, context_tokens=1000, cached_share=0.5, num_people=20),
)
CALM = {
    "ttft.p50": 0.4,
    "ttft.p90": 0.6,
    "tpot.p50": 0.03,
    "queue_wait.p90": 0.0,
    "waiting.mean": 0.0,
    "waiting.max": 0.0,
    "in_flight.mean": 2.0,
    "seats.mean": 8.0,
    "kv_reserved.mean": 4000.0,
    "kv_tokens.mean": 32_000.0,
    "kv_usage.max": 0.2,
    "preemptions": 0.0,
    "restarts": 0.0,
    "went_down": 0.0,
    "replicas.mean": 1.0,
    "replicas_ready.mean": 1.0,
    "requests": 4.0,
}
CALM_HOURS = {
    "ttft.p50": 0.4,
    "in_flight.mean": 2.0,
    "seats.mean": 8.0,
    "requests": 240.0,
    "prompt_tokens.sum": 240 * 900.0,
    "cached_tokens.sum": 240 * 450.0,
    "output_tokens.sum": 240 * 200.0,
    "think.p50": 120.0,
    "think.count": 200.0,
    "people_active.max": 15.0,
}


def view_of(minutes=(), hours=(), callers=(), **fields):
    """Calm but for what is named: columns, or functions of them."""

    def lines(step, length, usual, changes):
        columns = {name: np.full(length, value) for name, value in usual.items()}
        for name, change in dict(changes).items():
            columns[name] = change(columns[name].copy())
        return Lines(step, NOW - step * length, columns, length)

    return ModelView(
        **{
            "model": "m",
            "now": NOW,
            "minutes": lines(60, MINUTES, CALM, minutes),
            "hours": lines(3600, HOURS, CALM_HOURS, hours),
            "callers": [caller(name, prompts) for name, prompts in dict(callers).items()],
            "plan": PLAN,
        }
        | fields
    )


def caller(name, prompts, requests=20.0):
    """With so many tokens a prompt, by hour."""
    rng = np.random.default_rng(len(name))
    counts = np.full(HOURS, requests)
    logs = counts * np.log(prompts) + rng.normal(0, 0.7 * math.sqrt(requests), HOURS)
    columns = {
        "requests": counts,
        "prompt_tokens": counts * prompts,
        "prompt_logs": logs,
        "service_s": counts * 5.0,
    }
    return CallerLines(name, f"person of {name}", columns)


def last(number, value):
    def change(column):
        column[-number:] = value
        return column

    return change


def found(view):
    return {signal.name: signal for signal in find_signals(view)}


def test_a_calm_day_is_calm():
    assert found(view_of()) == {}
    assert read_trend(view_of()).trend is Trend.CALM


def test_a_queue_that_stays_is_told_from_one_that_comes_and_goes():
    full = {"waiting.mean": last(40, 3.0), "in_flight.mean": last(40, 8.0)}
    signal = found(view_of(full))[SignalName.SUSTAINED_QUEUE]
    assert signal.since == NOW - 40 * 60
    assert "3 requests wait" in signal.sentence
    half = {"waiting.mean": lambda column: np.where(np.arange(MINUTES) % 2, 3.0, 0.0)}
    assert SignalName.SUSTAINED_QUEUE not in found(view_of(half))


def test_a_climb_to_full_seats_is_a_matter_of_capacity():
    climb = {
        "in_flight.mean": last(240, np.linspace(2, 8, 240)),
        "ttft.p50": last(240, np.linspace(0.4, 9, 240)),
    }
    view = view_of(climb)
    signals = found(view)
    assert {SignalName.CAPACITY, SignalName.TTFT_CLIMB} <= set(signals)
    assert read_trend(view).trend is Trend.CLIMB
    actions = [remedy.action for remedy in signals[SignalName.CAPACITY].remedies]
    assert actions == ["cap_context", "quantise_kv", "add_gpu"]
    for remedy in signals[SignalName.CAPACITY].remedies:
        assert remedy.before == 32
        assert remedy.after > remedy.before


def test_a_climb_that_comes_every_day_is_none():
    def daily(column):
        column[-240:] = np.linspace(2, 7, 240)
        return column

    hour = (np.arange(HOURS) + (NOW - 3600 * HOURS) / 3600) % 24
    usual = np.where(np.abs(hour - 15) < 4, 7.0, 2.0)
    view = view_of({"in_flight.mean": daily}, {"in_flight.mean": lambda column: usual})
    assert found(view) == {}


def test_bursts_are_told_from_growth():
    def sawtooth(column):
        for end in range(40, 320, 60):
            column[-end : -end + 8] = 12.0
        return column

    view = view_of({"waiting.max": sawtooth, "waiting.mean": sawtooth})
    assert set(found(view)) == {SignalName.BURSTS}
    assert read_trend(view).trend is Trend.SAWTOOTH
    assert found(view)[SignalName.BURSTS].figures["bursts"] == 5


def test_streams_that_slow_down_as_seats_fill():
    full = {"in_flight.mean": last(30, 8.0), "tpot.p50": last(30, 0.06)}
    signal = found(view_of(full))[SignalName.STREAM_SLOWDOWN]
    assert signal.value == pytest.approx(2.0)
    roomy = {"tpot.p50": last(30, 0.06)}
    assert SignalName.STREAM_SLOWDOWN not in found(view_of(roomy))


def test_preemptions_and_memory_without_room_are_pressure():
    assert set(found(view_of({"preemptions": last(15, 2.0)}))) == {SignalName.KV_PRESSURE}
    away = {"kv_reserved.mean": last(15, 31_500.0), "waiting.mean": last(15, 1.0)}
    assert set(found(view_of(away))) == {SignalName.KV_PRESSURE}
    assert found(view_of({"preemptions": last(1, 4.0)})) == {}


def test_an_engine_that_comes_and_goes():
    def thrice(column):
        column[[-10, -25, -40]] = 1.0
        return column

    signal = found(view_of({"restarts": thrice, "went_down": thrice}))[SignalName.BACKEND_FLAPPING]
    assert signal.value == 3
    assert signal.since == NOW - 40 * 60


def test_the_key_whose_prompts_grow_is_named_with_what_it_costs():
    steady = {f"key{number}": np.full(HOURS, 900.0) for number in range(8)}
    grown = np.full(HOURS, 900.0)
    grown[-6:] = 2700.0
    hours = {
        "requests": lambda column: np.full(HOURS, 180.0),
        "prompt_tokens.sum": lambda column: 160 * 900.0 + 20 * grown,
        "output_tokens.sum": lambda column: np.full(HOURS, 180 * 200.0),
    }
    view = view_of(hours=hours, callers=steady | {"ana": grown}, names={"person of ana": "Ana"})
    (signal,) = [each for each in find_signals(view) if each.name is SignalName.CONTEXT_CREEP]
    assert signal.subject == "ana"
    assert "Ana" in signal.sentence
    assert signal.since == NOW - 6 * 3600
    assert signal.value == pytest.approx(3, rel=0.1)
    before, now = signal.figures["sequences_before"], signal.figures["sequences_now"]
    assert before == pytest.approx(32_000 / 1000, abs=1.5)
    assert now == int(32_000 / 1200)
    assert signal.remedies[0].action == "cap_context"
    assert signal.remedies[0].after == before


def test_prompts_of_everybody_that_grow_are_one_signal_more():
    grown = np.full(HOURS, 900.0)
    grown[-6:] = 2000.0
    view = view_of(callers={f"key{number}": grown for number in range(8)})
    subjects = {each.subject for each in find_signals(view)}
    assert "" in subjects


def test_one_key_alone_may_take_everything():
    """With nobody else there, nobody waits for it."""
    lonely = CallerLines("ana", "ana", {"service_s": np.full(60, 400.0), "requests": np.ones(60)})
    busy = {"in_flight.mean": last(60, 8.0)}
    assert SignalName.NOISY_KEY not in found(view_of(busy, callers_now=[lonely]))


def test_a_key_that_takes_most_while_others_wait():
    def of(name, seconds):
        columns = {"service_s": np.full(60, seconds), "requests": np.full(60, 2.0)}
        return CallerLines(name, f"person of {name}", columns)

    callers = [of("ana", 300.0), *(of(f"key{number}", 20.0) for number in range(6))]
    busy = {"in_flight.mean": last(60, 8.0), "waiting.mean": last(60, 2.0)}
    signal = found(view_of(busy, callers_now=callers))[SignalName.NOISY_KEY]
    assert signal.subject == "ana"
    assert signal.value == pytest.approx(300 / 420)
    assert SignalName.NOISY_KEY not in found(view_of(callers_now=callers))


def test_people_who_are_not_as_planned():
    signal = found(view_of(hours={"think.p50": lambda column: column / 3}))[SignalName.PLAN_DRIFT]
    assert "40 s between requests, not 120" in signal.sentence
    longer = {"prompt_tokens.sum": lambda column: 2 * column}
    assert "contexts of" in found(view_of(hours=longer))[SignalName.PLAN_DRIFT].sentence
    assert found(view_of(hours={"think.p50": lambda column: 3 * column})) == {}


def test_a_calibration_that_is_old_or_off():
    assert SignalName.CALIBRATION_OLD in found(view_of(calibration_age_s=90.0 * DAY_S))
    fresh = {"calibration_age_s": 5.0 * DAY_S}
    assert found(view_of(**fresh, calibrated_step_s=(0.02, 0.005))) == {}
    off = found(view_of(**fresh, calibrated_step_s=(0.01, 0.002)))
    assert off[SignalName.CALIBRATION_OLD].value == pytest.approx(0.03 / 0.014)


def test_memory_that_is_full_or_soon_will_be():
    def host(used):
        columns = {"host_memory_used.mean": used, "host_memory_total.mean": np.full(420, 32e9)}
        return list(memory_limit(Lines(60, NOW - 420 * 60, columns, 420)))

    noise = np.random.default_rng(1).normal(0, 1e8, 420)
    assert host(20e9 + noise) == []
    assert [each.severity for each in host(31e9 + noise)] == ["critical"]
    (rising,) = host(np.linspace(20e9, 28e9, 420) + noise)
    assert "it is full in" in rising.sentence


def test_what_has_been_passed_is_held_a_little_below():
    almost = {"waiting.mean": lambda column: np.where(np.arange(MINUTES) % 5, 2.0, 0.0)}
    assert SignalName.SUSTAINED_QUEUE not in found(view_of(almost))
    assert SignalName.SUSTAINED_QUEUE in found(view_of(almost, ease=0.8))


def gappy(names, length):
    """Columns with gaps, zeroes and leaps."""
    # A microsecond is the least that anything takes.
    values = st.one_of(st.just(math.nan), st.just(0.0), st.floats(1e-6, 1e6))
    pieces = st.lists(st.tuples(values, st.integers(1, length)), min_size=1, max_size=6)

    def column(parts):
        flat = np.concatenate([np.full(number, value) for value, number in parts])
        return np.resize(flat, length)

    return st.fixed_dictionaries({name: pieces.map(column) for name in names})


@settings(max_examples=15, deadline=None)
@given(
    gappy(MINUTE_NAMES, 180),
    gappy(HOUR_NAMES, 60),
    gappy(("requests", "prompt_tokens", "prompt_logs", "service_s"), 60),
    st.sampled_from([None, PLAN]),
)
def test_whatever_the_series_no_figure_is_nan_or_infinite(minutes, hours, sums, plan):
    own = CallerLines("k", "p", sums)
    view = ModelView(
        model="m",
        now=NOW,
        minutes=Lines(60, NOW - 180 * 60, minutes, 180),
        hours=Lines(3600, NOW - 60 * 3600, hours, 60),
        callers=[own, own, own],
        callers_now=[own, own, own],
        plan=plan,
        calibration_age_s=1e9,
        calibrated_step_s=(0.0, 0.0),
    )
    for each in [*find_signals(view), read_trend(view)]:
        told = as_dict(each)
        assert "nan" not in told["sentence"]
        numbers = [told["since"], *told["figures"].values(), told.get("value", 0.0)]
        assert all(math.isfinite(value) for value in numbers if not isinstance(value, str))


def test_an_empty_view_is_unknown():
    nothing = Lines(60, NOW, {}, 0)
    view = ModelView(model="m", now=NOW, minutes=nothing, hours=nothing)
    assert find_signals(view) == []
    assert read_trend(view).trend is Trend.UNKNOWN
    assert list(memory_limit(Lines(60, NOW, dict.fromkeys(HOST_NAMES, np.zeros(0)), 0))) == []
