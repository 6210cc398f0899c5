"""What workers count reaches the parent once, whatever becomes of an answer on the way."""

from carpool.gateway.worker_points import PARCEL, Parcels
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow
from carpool.watch.accumulator import Accumulators

ROW = UsageRow(
    request_id="r",
    started_at=1_800_000_000.0,
    person_id="ana",
    key_id="anakey",
    model="m",
    backend="m",
    api="chat",
    lane=Lane.INTERACTIVE,
    prompt_tokens=1000,
    cached_tokens=200,
    output_tokens=100,
    usage_source="reported",
    queue_ms=50.0,
    ttft_ms=400.0,
    tpot_ms=20.0,
    total_ms=2400.0,
    outcome="completed",
    status=200,
    is_stream=True,
    is_fallback=False,
)


def test_a_parcel_is_given_again_until_it_has_arrived():
    sums = Accumulators()
    parcels = Parcels(sums)
    sums.refused("bad_key")
    first = parcels.give(0)
    assert first.number == 1
    assert first.points[""].counters == {"outcome.bad_key": 1}
    sums.refused("bad_key")
    assert parcels.give(0) == first  # the answer was lost
    second = parcels.give(1)
    assert second.number == 2
    assert second.points[""].counters == {"outcome.bad_key": 1}
    assert parcels.give(2).points == {}


def test_a_parcel_survives_the_way():
    sums = Accumulators()
    sums.refused("bad_key")
    parcel = Parcels(sums).give(0)
    assert PARCEL.validate_json(PARCEL.dump_json(parcel)) == parcel


def test_sketches_and_callers_survive_it_too():
    sums = Accumulators()
    sums.ended("m", ROW)
    parcel = Parcels(sums).give(0)
    arrived = PARCEL.validate_json(PARCEL.dump_json(parcel))
    assert arrived == parcel
    assert arrived.points["m"].callers["anakey"].prompt_tokens == 1000
