"""Sessions of the dashboard: how long they last, how many there are."""

import pytest

from carpool.gateway.dashboard_sessions import IDLE_S, LIFE_S, MAX_SESSIONS, DashboardSessions


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def sessions(clock):
    return DashboardSessions(clock)


def test_a_token_stands_for_the_key_it_began_with_until_it_ends(sessions):
    first, second = sessions.begin("one"), sessions.begin("two")
    assert first != second
    assert (sessions.admin_key_id(first), sessions.admin_key_id(second)) == ("one", "two")
    sessions.end(first)
    sessions.end("never was")
    assert (sessions.admin_key_id(first), sessions.admin_key_id(second)) == (None, "two")
    assert sessions.admin_key_id("") is None
    assert sessions.admin_key_id("\udcff") is None


def test_one_that_asks_nothing_ends_and_so_does_one_that_always_asks(sessions, clock):
    idle, busy = sessions.begin("one"), sessions.begin("one")
    while clock.now < 1000 + LIFE_S - IDLE_S / 2:
        clock.now += IDLE_S / 2
        assert sessions.admin_key_id(busy) == "one"
    assert sessions.admin_key_id(idle) is None
    clock.now = 1000 + LIFE_S
    assert sessions.admin_key_id(busy) is None
    assert len(sessions) == 0


def test_however_many_log_in_those_that_are_busy_stay(sessions, clock):
    busy = sessions.begin("one")
    for _ in range(3 * MAX_SESSIONS):
        clock.now += 1
        assert sessions.admin_key_id(busy) == "one"
        sessions.begin("one")
    assert len(sessions) == MAX_SESSIONS
    assert sessions.admin_key_id(busy) == "one"


def test_the_token_itself_is_nowhere(sessions):
    token = sessions.begin("one")
    assert token not in repr(vars(sessions))
