"""The last lines of the benchmarks, from figures that are made up."""

import pytest

from benchmarks import abandon, fairness, gateway
from benchmarks.rig_figures import Spread
from benchmarks.rig_load import RequestFigures, StreamFigures
from benchmarks.rig_people import Served
from benchmarks.rig_probe import Held


def measured(rps: float, p50: float, delay_p99: float) -> gateway.Measured:
    requests = RequestFigures(rps, Spread(p50, 2 * p50), 0)
    half = RequestFigures(rps / 2, Spread(p50 / 5, p50), 0)
    streams = StreamFigures(12_800.0, Spread(0.1, delay_p99), 0)
    return gateway.Measured(requests, half, streams)


def test_the_gateways_line_has_overheads_above_the_floor():
    found = {"floor": measured(40_000, 0.5, 1.0), "carpool": measured(3_000, 5.0, 4.0)}
    assert gateway.summary(found) == {
        "floor_rps": 40_000,
        "carpool": {
            "rps": 3_000,
            "p50_overhead_ms": 4.5,
            "p50_overhead_half_load_ms": 0.9,
            "stream_p99_added_ms": 3.0,
        },
        "nginx": None,
        "litellm": None,
    }


def phase(ttft: Spread, *floods: float, light: float = 0.0) -> fairness.Phase:
    return fairness.Phase(
        floods=tuple(Served(tokens, tokens, 10.0) for tokens in floods),
        light=Served(light, light, 10.0),
        light_ttft_ms=ttft,
        mean_prompt=230.0,
    )


def test_the_fairness_line_is_in_ratios():
    nothing = Spread(None, None)
    found = {
        "light alone": phase(Spread(100.0, 200.0), light=10),
        "flood alone": phase(nothing, 1000.0),
        "both, fair share": phase(Spread(250.0, 800.0), 900.0, light=50),
        "both, first come": phase(Spread(9000.0, 9900.0), 900.0, light=50),
        "two floods": phase(nothing, 510.0, 490.0),
    }
    assert fairness.summary(found) == {
        "light_alone_ttft_p50_ms": 100.0,
        "light_flood_ttft_p50_ms": 250.0,
        "ratio_p50": 2.5,
        "ratio_p99": 4.0,
        "throughput_ratio": pytest.approx(0.95),
        "equal_floods_service_gap": pytest.approx(4.0),
    }


REST = Held(
    descriptors=17,
    tasks=6,
    exchanges=0,
    reservations=0,
    tickets_waiting=0,
    seats=0,
    seat_tokens=0,
    replica_loads=0,
)


def result(**changes):
    good = {"left_behind": {}, "failed": 0, "most_at_engine": 32, "rss_growth_mib": 3.0}
    return good | changes


def test_only_what_there_is_more_of_was_left_behind():
    after = Held(17, 5, 0, 2, 0, 1, 0, 0)
    assert abandon.left_behind(REST, after) == {"reservations": 2, "seats": 1}
    assert abandon.left_behind(REST, REST) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"left_behind": {"seats": 1}},
        {"failed": 1},
        {"most_at_engine": 33},
        {"rss_growth_mib": 20.0},
    ],
)
def test_anything_left_behind_or_failed_is_said(changes):
    assert abandon.holds(result())
    assert not abandon.holds(result(**changes))
