"""What is said of a place for shared counters that cannot be used, and of none of its secrets."""

import sys

import pytest

from carpool.backends.address import Address
from carpool.gateway.redis_link import CountersError, check_counters
from carpool.gateway.sharing import seat_pool


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:6379", "write redis://HOST:PORT/DB"),
        ("http://127.0.0.1:6379", "write redis://HOST:PORT/DB"),
        ("redis://:secret@127.0.0.1:port/0", "a number for the port"),
        ("redis://:secret@127.0.0.1:1/0", "redis://127.0.0.1:1/0 cannot be reached"),
        ("valkey://:secret@127.0.0.1:1/0", "valkey://127.0.0.1:1/0 cannot be reached"),
        ("unix:///no/such/socket?password=secret", "unix:///no/such/socket cannot be reached"),
    ],
)
def test_an_address_that_cannot_be_used_is_named_without_its_password(url, said):
    with pytest.raises(CountersError) as caught:
        check_counters(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(CountersError, match=r"pip install 'carpool\[redis\]'"):
        check_counters("redis://127.0.0.1:1/0")


def test_seats_are_one_pool_for_those_who_reach_the_same_engines():
    engines = [Address.from_url("http://10.0.0.5:8000"), Address.from_url("http://10.0.0.6:8000")]
    assert seat_pool("m", engines) == seat_pool("m", engines[::-1])
    assert seat_pool("m", engines) != seat_pool("m", engines[:1])
    assert seat_pool("m", engines) != seat_pool("n", engines)


def test_a_local_address_is_of_this_machine_alone(monkeypatch):
    engines = [Address.from_url("http://127.0.0.1:8000")]
    here = seat_pool("m", engines)
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert seat_pool("m", engines) != here
