"""So many per minute: what conforms, what is given back, and the bound that holds throughout."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool.gateway.rate_limit import RateLimit

START = 86_400.1  # a machine that has been up for a day: sums of times are inexact


def take_all(limit, now):
    """Take one at a time as long as they conform; how many that were."""
    num_taken = 0
    while limit.wait_s(1, now) == 0:
        limit.take(1, now)
        num_taken += 1
    return num_taken


@pytest.mark.parametrize("per_minute", [1, 3, 7, 60, 1000])
@pytest.mark.parametrize("now", [0.0, 0.1, START, 1e7 / 3])
def test_a_minutes_worth_comes_at_once_and_not_one_more(per_minute, now):
    limit = RateLimit(per_minute)
    assert limit.wait_s(per_minute, now) == 0
    assert take_all(limit, now) == per_minute
    assert limit.remaining(now) == 0
    assert limit.wait_s(1, now) == pytest.approx(60 / per_minute)


def test_after_a_burst_units_come_back_one_by_one():
    limit = RateLimit(60)
    take_all(limit, START)
    assert [take_all(limit, START + seconds) for seconds in (0.5, 1.0, 1.5, 4.0)] == [0, 1, 0, 3]


def test_the_wait_is_exact():
    limit = RateLimit(30)
    limit.take(25, START)
    wait = limit.wait_s(10, START)
    assert wait == pytest.approx(10.0)
    assert limit.wait_s(10, START + wait - 0.01) > 0
    assert limit.wait_s(10, START + wait) == 0


def test_what_is_over_the_limit_in_itself_never_conforms():
    assert math.isinf(RateLimit(10).wait_s(11, START))


def test_what_is_used_beyond_what_conforms_has_to_be_waited_for():
    limit = RateLimit(60)
    limit.take(10, START)
    limit.give_back(-110)
    assert limit.remaining(START) == 0
    assert limit.wait_s(1, START) == pytest.approx(61.0)
    assert limit.reset_s(START) == pytest.approx(120.0)


def test_what_is_given_back_can_be_taken_again():
    limit = RateLimit(10)
    limit.take(10, START)
    limit.give_back(4)
    assert limit.remaining(START) == take_all(limit, START) == 4


def test_giving_back_late_saves_nothing_up():
    limit = RateLimit(10)
    limit.take(10, START)
    limit.give_back(10)
    assert take_all(limit, START + 600) == 10


@pytest.mark.parametrize(("before", "after", "remaining"), [(60, 120, 80), (60, 50, 10)])
def test_another_limit_forgets_nothing(before, after, remaining):
    limit = RateLimit(before)
    limit.take(40, START)
    limit.change(after, START)
    assert limit.remaining(START) == remaining
    assert take_all(limit, START + 120) == after


def test_a_limit_below_what_is_taken_is_waited_for():
    limit = RateLimit(60)
    limit.take(40, START)
    limit.change(10, START)
    assert limit.remaining(START) == 0
    assert limit.wait_s(1, START) == pytest.approx(31 * 6)


def test_a_limit_below_one_is_no_limit():
    with pytest.raises(ValueError, match="is 0, but must be at least 1"):
        RateLimit(0)


events = st.tuples(
    st.floats(0, 90),  # seconds since the event before
    st.integers(1, 40),  # units wanted
    st.booleans(),  # whether they are given back at some later event
)


@given(per_minute=st.integers(1, 40), sequence=st.lists(events, min_size=1, max_size=60))
@example(per_minute=3, sequence=[(0.1, 1, False)] * 60)
def test_no_interval_sees_more_than_its_share_and_a_minutes_worth(per_minute, sequence):
    """In any t seconds: at most limit * (1 + t / 60), less what is given back in them."""
    limit, now = RateLimit(per_minute), START
    counted, held = [], []
    for pause, num_units, is_returned in sequence:
        now += pause
        if held:
            returned = held.pop()
            limit.give_back(returned)
            counted.append((now, -returned))
        if limit.wait_s(num_units, now) > 0:
            assert limit.remaining(now) < num_units
            continue
        assert limit.remaining(now) >= num_units
        limit.take(num_units, now)
        counted.append((now, num_units))
        if is_returned:
            held.append(num_units)
    for first, (begin, _) in enumerate(counted):
        total = 0
        for moment, num_units in counted[first:]:
            total += num_units
            assert total <= per_minute * (1 + (moment - begin) / 60) + 1e-6


@given(
    per_minute=st.integers(1, 1000),
    num_units=st.integers(1, 1000),
    taken=st.integers(0, 1000),
    pause=st.floats(0, 100),
)
def test_the_wait_that_is_told_is_enough(per_minute, num_units, taken, pause):
    limit = RateLimit(per_minute)
    limit.take(taken, START)
    wait = limit.wait_s(num_units, START + pause)
    if num_units <= per_minute:
        assert limit.wait_s(num_units, START + pause + wait) == 0
