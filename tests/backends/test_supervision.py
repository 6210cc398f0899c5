"""When an engine is started, restarted, killed and given up: never the last."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.backends.backend import BackendState
from carpool.backends.supervision import (
    Begun,
    Exited,
    Probed,
    RestartPolicy,
    Send,
    Start,
    StopAsked,
    Supervision,
    TimePassed,
)
from carpool.scheduling.capacity import Capacity, Provenance

POLICY = RestartPolicy(
    first_delay_s=1,
    max_delay_s=8,
    stable_s=60,
    num_probes_down=3,
    num_probes_restart=5,
    kill_after_s=10,
    expected_load_s=20,
)
CAPACITY = Capacity(8, 1024, 512, Provenance.REPORTED)
READY, LOADING, DOWN = BackendState.READY, BackendState.LOADING, BackendState.DOWN


def begun(is_launched=True):
    supervision = Supervision(POLICY, is_launched=is_launched)
    effects = supervision.handle(Begun(), 0.0)
    assert effects == ((Start(1),) if is_launched else ())
    return supervision


def probe(supervision, state, now, reason="no answer"):
    capacity = CAPACITY if state is READY else None
    return supervision.handle(Probed(supervision.status.life, state, capacity, reason), now)


def exit_now(supervision, now, reason="the engine exited with 1"):
    return supervision.handle(Exited(supervision.status.life, reason), now)


def test_it_is_loading_then_ready_with_a_capacity():
    supervision = begun()
    assert supervision.status.state is LOADING
    probe(supervision, READY, 12.0)
    assert (supervision.status.state, supervision.status.capacity) == (READY, CAPACITY)
    assert supervision.status.reason == ""


def test_loading_is_no_failure_however_long_it_takes():
    supervision = begun()
    for second in range(1, 1000):
        state = LOADING if second % 2 else DOWN
        assert probe(supervision, state, float(second)) == ()
        assert supervision.status.state is LOADING
    assert probe(supervision, READY, 1000.0) == ()
    assert supervision.status.state is READY


def test_an_engine_that_ends_is_down_and_started_again_after_the_delay():
    supervision = begun()
    probe(supervision, READY, 1.0)
    assert exit_now(supervision, 5.0, "the engine was killed by SIGKILL") == ()
    assert supervision.status.state is DOWN
    assert "killed by SIGKILL" in supervision.status.reason
    assert "again in 1 s" in supervision.status.reason
    assert supervision.handle(TimePassed(), 5.9) == ()
    assert supervision.handle(TimePassed(), 6.0) == (Start(2),)
    assert supervision.status.state is LOADING
    probe(supervision, READY, 7.0)
    assert supervision.status.state is READY


def test_delays_double_up_to_a_limit_and_it_never_gives_up():
    supervision, now, delays = begun(), 0.0, []
    for life in range(1, 101):
        exit_now(supervision, now)
        delays.append(supervision.wake_at - now)
        now = supervision.wake_at
        assert supervision.handle(TimePassed(), now) == (Start(life + 1),)
    assert delays[:5] == [1, 2, 4, 8, 8]
    assert delays[-1] == 8


def test_a_life_that_was_ready_long_enough_begins_again_at_the_first_delay():
    supervision = begun()
    for now in (1.0, 3.0, 7.0):
        exit_now(supervision, now)
        supervision.handle(TimePassed(), supervision.wake_at)
    probe(supervision, READY, 20.0)
    exit_now(supervision, 80.0)
    assert supervision.wake_at == 81.0


def test_what_an_earlier_life_says_changes_nothing():
    supervision = begun()
    exit_now(supervision, 1.0)
    supervision.handle(TimePassed(), 2.0)
    before = supervision.status
    assert supervision.handle(Probed(1, READY, CAPACITY), 3.0) == ()
    assert supervision.handle(Exited(1, "late"), 3.0) == ()
    assert supervision.status == before


def test_a_probe_that_answers_for_a_process_that_is_gone_is_not_believed():
    supervision = begun()
    exit_now(supervision, 1.0)
    supervision.handle(Probed(1, READY, CAPACITY), 1.5)
    assert supervision.status.state is DOWN


def test_one_lost_probe_is_nothing_and_several_are_down_until_it_answers():
    supervision = begun()
    probe(supervision, READY, 1.0)
    for now in (2.0, 3.0):
        probe(supervision, DOWN, now)
        assert supervision.status.state is READY
    probe(supervision, DOWN, 4.0, "no answer within 5 s")
    assert supervision.status.state is DOWN
    assert supervision.status.reason == "no answer within 5 s"
    probe(supervision, READY, 5.0)
    assert supervision.status.state is READY


def test_a_hung_engine_gets_sigterm_then_sigkill_and_is_started_again():
    supervision = begun()
    probe(supervision, READY, 1.0)
    effects = [probe(supervision, DOWN, float(now)) for now in range(2, 10)]
    assert effects == [(), (), (), (), (Send(1, signal.SIGTERM),), (), (), ()]
    assert supervision.handle(TimePassed(), 16.0) == (Send(1, signal.SIGKILL),)
    exit_now(supervision, 16.1)
    assert supervision.handle(TimePassed(), 17.1) == (Start(2),)


def test_an_engine_that_loads_again_is_not_failing():
    supervision = begun()
    probe(supervision, READY, 1.0)
    for now in range(2, 100):
        assert probe(supervision, LOADING, float(now)) == ()
        assert supervision.status.state is LOADING


def test_stopping_drains_then_kills():
    supervision = begun()
    probe(supervision, READY, 1.0)
    assert supervision.handle(StopAsked(30.0), 10.0) == (Send(1, signal.SIGTERM),)
    assert supervision.status.state is BackendState.DRAINING
    assert supervision.handle(TimePassed(), 39.0) == ()
    assert supervision.handle(TimePassed(), 40.0) == (Send(1, signal.SIGKILL),)
    assert not supervision.is_over
    exit_now(supervision, 40.1)
    assert supervision.is_over
    assert supervision.status.state is DOWN


def test_a_request_to_stop_while_it_stops_may_only_hasten_it():
    supervision = begun()
    supervision.handle(StopAsked(30.0), 10.0)
    assert supervision.handle(StopAsked(60.0), 11.0) == ()
    assert supervision.wake_at == 40.0
    assert supervision.handle(StopAsked(0.0), 12.0) == ()
    assert supervision.handle(TimePassed(), 12.0) == (Send(1, signal.SIGKILL),)


def test_stopping_while_it_waits_to_start_again_is_over_at_once():
    supervision = begun()
    exit_now(supervision, 1.0)
    assert supervision.handle(StopAsked(30.0), 1.5) == ()
    assert supervision.is_over
    assert supervision.handle(TimePassed(), 10.0) == ()


def test_an_attached_engine_is_never_started_or_signalled():
    supervision = begun(is_launched=False)
    probe(supervision, DOWN, 1.0, "cannot connect")
    assert (supervision.status.state, supervision.status.reason) == (DOWN, "cannot connect")
    probe(supervision, READY, 2.0)
    assert supervision.status.state is READY
    for now in range(3, 50):
        assert probe(supervision, DOWN, float(now)) == ()
    assert supervision.status.state is DOWN
    assert supervision.handle(StopAsked(30.0), 60.0) == ()
    assert supervision.is_over


def test_retry_after_is_the_rest_of_the_load_and_learns_how_long_that_is():
    supervision = begun()
    assert supervision.retry_after_s(5.0) == 15
    assert supervision.retry_after_s(300.0) == 1
    probe(supervision, READY, 40.0)
    assert supervision.retry_after_s(41.0) == 0
    exit_now(supervision, 50.0)
    assert supervision.retry_after_s(50.0) == 41
    supervision.handle(TimePassed(), 51.0)
    assert supervision.retry_after_s(61.0) == 30


EVENTS = st.one_of(
    st.just(TimePassed()),
    st.builds(Probed, st.integers(0, 3), st.sampled_from(BackendState), st.just(CAPACITY)),
    st.builds(Exited, st.integers(0, 3), st.just("gone")),
    st.builds(StopAsked, st.floats(0, 30)),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 20)), max_size=40))
def test_never_two_processes_and_a_way_out_of_every_state(events):
    supervision, now, alive = begun(), 0.0, {1}
    for event, passed in events:
        now += passed
        if isinstance(event, Exited):
            alive.discard(event.life)
        for effect in supervision.handle(event, now):
            if isinstance(effect, Start):
                assert not alive
                alive.add(effect.life)
        if not alive and not supervision.is_over:
            assert supervision.wake_at is not None
        assert (supervision.status.state is READY) == (supervision.retry_after_s(now) == 0)
    supervision.handle(StopAsked(0.0), now)
    if alive:
        assert supervision.wake_at is not None
        supervision.handle(Exited(supervision.status.life, "gone"), now)
    assert supervision.is_over


def test_delays_have_a_floor_and_a_ceiling():
    assert POLICY.delay_s(1) == 1
    assert POLICY.delay_s(10**6) == 8
    assert RestartPolicy().delay_s(1) == pytest.approx(0.5)
