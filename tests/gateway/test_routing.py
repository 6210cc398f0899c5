"""Which replica gets a request, and that loads come back to nothing."""

import os
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.backends.address import Address
from carpool.backends.backend import BackendState
from carpool.gateway.circuit_breaker import CircuitBreaker
from carpool.gateway.routing import Replica, choose_replica
from carpool.gateway.upstream import Upstream


def make_replicas(count):
    address = Address.from_url("http://127.0.0.1:9")
    return [Replica(f"r{n}", Upstream(address), CircuitBreaker()) for n in range(count)]


def loads(replicas):
    return [each.num_in_flight for each in replicas]


@pytest.mark.parametrize("prefix", [lambda: b"the same", lambda: os.urandom(9)])
def test_twenty_at_once_over_two_are_ten_and_ten(prefix):
    replicas = make_replicas(2)
    with ExitStack() as stack:
        for _ in range(20):
            replica = choose_replica(replicas, prefix(), 0.0)
            stack.enter_context(replica.loaded(0.0))
        assert loads(replicas) == [10, 10]
    assert loads(replicas) == [0, 0]


def test_the_least_loaded_is_asked_whatever_it_knows():
    replicas = make_replicas(3)
    for replica, load in zip(replicas, (5, 2, 9), strict=True):
        replica.num_in_flight = load
    assert {choose_replica(replicas, os.urandom(9), 0.0).name for _ in range(20)} == {"r1"}


def test_idle_replicas_share_prefixes_and_each_keeps_its_own():
    replicas = make_replicas(3)
    homes = {n: choose_replica(replicas, b"prefix %d" % n, 0.0) for n in range(300)}
    assert all(choose_replica(replicas, b"prefix %d" % n, 0.0) is homes[n] for n in homes)
    counts = [sum(home is each for home in homes.values()) for each in replicas]
    assert min(counts) > 60


def test_when_one_goes_only_its_own_prefixes_move():
    replicas = make_replicas(3)
    homes = {n: choose_replica(replicas, b"prefix %d" % n, 0.0) for n in range(100)}
    replicas[0].state = BackendState.DOWN
    for n, home in homes.items():
        moved = choose_replica(replicas, b"prefix %d" % n, 0.0)
        assert moved is home or home is replicas[0]
        assert moved is not replicas[0]


def test_who_fails_is_left_out_until_it_is_tried():
    replicas = make_replicas(2)
    for _ in range(3):
        with replicas[0].loaded(0.0) as attempt:
            attempt.failed(0.0)
    assert {choose_replica(replicas, os.urandom(9), 0.5) for _ in range(20)} == {replicas[1]}
    replicas[1].num_in_flight = 1
    assert choose_replica(replicas, b"", 1.0) is replicas[0]
    with replicas[0].loaded(1.0):
        assert choose_replica(replicas, b"", 1.0) is replicas[1]


def test_none_that_is_ready_is_none():
    replicas = make_replicas(2)
    for replica in replicas:
        replica.state = BackendState.DOWN
    assert choose_replica(replicas, b"", 0.0) is None
    assert choose_replica([], b"", 0.0) is None


@given(st.lists(st.sampled_from(["start", "end", "fail", "cancel"]), max_size=60))
def test_loads_return_to_nothing_however_requests_end(events):
    replicas, running = make_replicas(2), []
    for now, event in enumerate(events):
        if event == "start":
            replica = choose_replica(replicas, b"", now)
            if replica is not None:
                stack = ExitStack()
                running.append((stack, stack.enter_context(replica.loaded(now))))
        elif running:
            stack, attempt = running.pop(0)
            if event == "cancel":
                stack.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
            else:
                attempt.succeeded() if event == "end" else attempt.failed(now)
                stack.close()
        assert sum(loads(replicas)) == len(running)
    for stack, _ in running:
        stack.close()
    assert loads(replicas) == [0, 0]
    later = len(events) + 60.0
    assert all(replica.breaker.allows(later) for replica in replicas), "no trial is left open"
