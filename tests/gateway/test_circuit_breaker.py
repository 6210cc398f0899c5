"""A replica that fails is left alone, and tried again by one request at a time."""

import pytest

from carpool.gateway.circuit_breaker import BreakerState, CircuitBreaker


@pytest.fixture
def breaker():
    return CircuitBreaker(max_failures=3, open_s=1.0, max_open_s=5.0)


def fail(breaker, now):
    """Sends one request, if that may be, and it fails."""
    assert breaker.allows(now)
    attempt = breaker.attempt(now)
    attempt.failed(now)
    attempt.end()


def trip(breaker, now=0.0):
    for _ in range(3):
        fail(breaker, now)


def test_it_opens_after_so_many_failures_in_a_row(breaker):
    for _ in range(2):
        fail(breaker, 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED
    fail(breaker, 0.0)
    assert breaker.state(0.0) is BreakerState.OPEN
    assert not breaker.allows(0.99)
    assert breaker.retry_after_s(0.25) == 0.75


def test_a_success_between_failures_begins_the_count_anew(breaker):
    for _ in range(2):
        fail(breaker, 0.0)
    breaker.attempt(0.0).succeeded()
    for _ in range(2):
        fail(breaker, 0.0)
    assert breaker.allows(0.0)


def test_one_request_at_a_time_tries(breaker):
    trip(breaker)
    assert breaker.state(1.0) is BreakerState.HALF_OPEN
    assert breaker.allows(1.0)
    trial = breaker.attempt(1.0)
    assert not breaker.allows(1.0)
    trial.succeeded()
    trial.end()
    assert breaker.state(1.0) is BreakerState.CLOSED
    assert breaker.allows(1.0)


def test_each_failed_trial_doubles_the_pause_up_to_a_bound(breaker):
    trip(breaker)
    now, pauses = 0.0, []
    for _ in range(5):
        pauses.append(breaker.retry_after_s(now))
        now += pauses[-1]
        fail(breaker, now)
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_after_it_closed_the_pause_is_short_again(breaker):
    trip(breaker)
    fail(breaker, 1.0)
    breaker.attempt(3.0).succeeded()
    trip(breaker, 3.0)
    assert breaker.retry_after_s(3.0) == 1.0


def test_a_trial_whose_client_left_makes_way_for_the_next(breaker):
    trip(breaker)
    breaker.attempt(1.0).end()
    assert breaker.state(1.0) is BreakerState.HALF_OPEN
    assert breaker.allows(1.0)


def test_requests_from_before_it_opened_say_nothing(breaker):
    good, bad, gone = (breaker.attempt(0.0) for _ in range(3))
    trip(breaker)
    good.succeeded()
    assert breaker.state(0.5) is BreakerState.OPEN
    trial = breaker.attempt(1.0)
    bad.failed(1.0)
    gone.end()
    assert breaker.state(1.0) is BreakerState.HALF_OPEN
    assert not breaker.allows(1.0), "the trial runs on"
    trial.succeeded()
    assert breaker.state(1.0) is BreakerState.CLOSED


def test_a_burst_of_failures_opens_it_once(breaker):
    attempts = [breaker.attempt(0.0) for _ in range(50)]
    for attempt in attempts:
        attempt.failed(0.0)
    assert breaker.retry_after_s(0.0) == 1.0


def test_a_replica_known_to_be_well_is_asked_at_once(breaker):
    trip(breaker)
    breaker.close()
    assert breaker.allows(0.0)
    assert breaker.retry_after_s(0.0) == 0.0
