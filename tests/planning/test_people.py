"""People to requests in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.planning.errors import PlanError
from carpool.planning.people import in_flight, people_for, seats_for

people = st.integers(1, 120)
seconds = st.floats(0.1, 500)
seats = st.integers(1, 60)


def steady(service_seconds: float):
    return lambda num_seqs: service_seconds


@given(people, seconds, seconds, seats)
def test_littles_law_holds(num: int, think: float, service: float, num_seats: int) -> None:
    found = in_flight(num, think, steady(service), num_seats)
    assert found.mean == pytest.approx(found.requests_per_second * service, rel=1e-6)
    # Everybody thinks, is served or waits.
    thinking = found.requests_per_second * think
    waiting = found.requests_per_second * found.mean_wait_seconds
    assert thinking + found.mean + waiting == pytest.approx(num, rel=1e-6)


@given(people, seconds, seconds)
def test_with_a_seat_for_each_it_is_n_r_over_r_plus_z(
    num: int, think: float, service: float
) -> None:
    found = in_flight(num, think, steady(service), num)
    assert found.mean == pytest.approx(num * service / (service + think), rel=1e-6)
    assert found.wait_share == 0


@given(people, seconds, seconds, seats)
def test_more_seats_never_make_more_people_wait(
    num: int, think: float, service: float, num_seats: int
) -> None:
    fewer = in_flight(num, think, steady(service), num_seats)
    more = in_flight(num, think, steady(service), num_seats + 1)
    assert more.wait_share <= fewer.wait_share + 1e-9


@given(people, seconds, seconds, st.sampled_from([0.01, 0.05]))
def test_the_seats_asked_for_are_the_fewest(
    num: int, think: float, service: float, share: float
) -> None:
    fewest = seats_for(num, think, steady(service), share)
    assert in_flight(num, think, steady(service), fewest).wait_share <= share
    if fewest > 1:
        assert in_flight(num, think, steady(service), fewest - 1).wait_share > share


@given(seats, seconds, seconds)
def test_the_people_they_would_do_for_do_not_wait(
    num_seats: int, think: float, service: float
) -> None:
    most = people_for(num_seats, think, steady(service), 0.01, most=200)
    assert in_flight(most, think, steady(service), num_seats).wait_share <= 0.01 or most == 0


@pytest.mark.parametrize("num", [0, -3])
def test_nobody_is_refused(num: int) -> None:
    with pytest.raises(PlanError, match="people is"):
        in_flight(num, 10, steady(1), 4)
