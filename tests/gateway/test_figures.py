"""The figures of several workers, as those of one."""

from dataclasses import replace

from carpool.gateway.figures import (
    Figures,
    counted,
    families_of,
    merged_models,
    merged_people,
    merged_places,
    summed,
)
from carpool.gateway.live_state import Load, ModelState, PersonLoad, Place, ReplicaState
from carpool.store.lane import Lane

PAGE = """\
# HELP carpool_gateway_requests_total Requests that ended
# TYPE carpool_gateway_requests_total counter
carpool_gateway_requests_total{{model="m",outcome="completed"}} {done}
# HELP carpool_gateway_queue_time_seconds From the queue to a seat
# TYPE carpool_gateway_queue_time_seconds histogram
carpool_gateway_queue_time_seconds_bucket{{model="m",le="0.1"}} {done}
carpool_gateway_queue_time_seconds_bucket{{model="m",le="+Inf"}} {done}
carpool_gateway_queue_time_seconds_count{{model="m"}} {done}
carpool_gateway_queue_time_seconds_sum{{model="m"}} 0.5
# HELP carpool_gateway_requests_waiting Requests in the queue
# TYPE carpool_gateway_requests_waiting gauge
carpool_gateway_requests_waiting{{model="m"}} {waiting}
# HELP carpool_gateway_seats Requests that may be there at once
# TYPE carpool_gateway_seats gauge
carpool_gateway_seats{{model="m"}} 8
"""


def values(families):
    return {
        (sample.name.removeprefix("carpool_gateway_"), sample.labels.get("le")): sample.value
        for family in families
        for sample in family.samples
    }


def test_counts_add_up_and_what_is_one_thing_stays_one():
    pages = [
        families_of(PAGE.format(done=3, waiting=1)),
        families_of(PAGE.format(done=4, waiting=2)),
    ]
    found = values(summed(pages))
    assert found["requests_total", None] == 7
    assert found["queue_time_seconds_bucket", "0.1"] == 7
    assert found["queue_time_seconds_sum", None] == 1.0
    assert found["requests_waiting", None] == 3
    assert found["seats", None] == 8


def test_of_a_worker_that_is_gone_counts_stay_and_gauges_go():
    gone = counted(families_of(PAGE.format(done=3, waiting=1)))
    found = values(summed([gone, families_of(PAGE.format(done=4, waiting=2))]))
    assert found["requests_total", None] == 7
    assert found["requests_waiting", None] == 2


def model(in_flight, waiting):
    return ModelState(
        "m", (), "ready", 8, 100, 100, "reported",
        Load(in_flight, 10 * in_flight, waiting, 10 * waiting),
        (ReplicaState("m", "ready", in_flight),),
    )  # fmt: skip


def test_people_and_models_have_what_all_workers_have_of_them():
    ana = PersonLoad("1", "Ana", Load(1, 10), {"m": Load(1, 10)})
    again = PersonLoad("1", "Ana", Load(2, 20, 1, 10), {"n": Load(2, 20, 1, 10)})
    ben = PersonLoad("2", "Ben", Load(waiting=1), {"m": Load(waiting=1)})
    runs = Place(
        request_id="a", model="m", person_id="1", name="Ana", lane=Lane.INTERACTIVE, num_seqs=1,
        num_tokens=10, is_waiting=False, for_s=2.0,
    )  # fmt: skip
    older = replace(runs, request_id="b", for_s=3.0)
    waits = replace(runs, request_id="c", is_waiting=True, for_s=9.0)
    pages = [
        Figures(metrics="", models=(model(1, 1),), people=(ana, ben), places=(waits, runs)),
        Figures(metrics="", models=(model(2, 0),), people=(again,), places=(older,)),
    ]
    [merged] = merged_models([model(0, 0)], pages)
    assert merged.load == Load(3, 30, 1, 10)
    assert merged.replicas == (ReplicaState("m", "ready", 3),)
    first, second = merged_people(pages)
    assert first.load == Load(3, 30, 1, 10)
    assert first.models == {"m": Load(1, 10), "n": Load(2, 20, 1, 10)}
    assert second == ben
    assert [place.request_id for place in merged_places(pages)] == ["b", "a", "c"]
