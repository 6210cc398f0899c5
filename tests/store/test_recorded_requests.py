"""Recorded requests are kept for a while, and no more of them than agreed."""

from pathlib import Path

import pytest

from carpool.store.database import open_database
from carpool.store.recorded_requests import (
    MAX_PER_KEY,
    RETENTION_S,
    RecordedRequest,
    RecordedRequestStore,
)

NOW = 1e9


def request(
    request_id: str, key_id: str = "k1", at: float = NOW, model: str = "m"
) -> RecordedRequest:
    return RecordedRequest(request_id, at, key_id, "ada", model, '{"messages": []}')


@pytest.fixture
def store(tmp_path: Path) -> RecordedRequestStore:
    return RecordedRequestStore(open_database(f"sqlite:///{tmp_path}/x.db"), lambda: NOW)


def ids(found: list[RecordedRequest]) -> list[str]:
    return [each.request_id for each in found]


def test_what_is_chosen(store: RecordedRequestStore) -> None:
    store.insert([request("a", at=NOW - 9), request("b", "k2", NOW - 5), request("c", model="n")])
    store.insert([request("a", at=NOW - 9)])
    assert ids(store.find()) == ["a", "b", "c"]
    assert ids(store.find(key_ids=["k2"])) == ["b"]
    assert ids(store.find(model="n")) == ["c"]
    assert ids(store.find(since=NOW - 6)) == ["b", "c"]
    assert ids(store.find(request_ids=["c", "a"])) == ["a", "c"]
    assert ids(store.find(limit=2)) == ["b", "c"]


def test_what_is_old_is_let_go_of(store: RecordedRequestStore) -> None:
    store.insert([request("old", at=NOW - RETENTION_S - 1), request("new")])
    assert ids(store.find()) == ["new"]


def test_of_each_key_so_many_at_the_most(store: RecordedRequestStore) -> None:
    store.insert([request(f"r{n}", at=NOW - 5000 + n) for n in range(MAX_PER_KEY + 5)])
    store.insert([request("other", "k2", NOW - 9000)])
    found = ids(store.find(limit=5000))
    assert len(found) == MAX_PER_KEY + 1
    assert "r4" not in found
    assert "r5" in found


def test_it_is_forgotten_when_its_holder_wants_that(store: RecordedRequestStore) -> None:
    store.insert([request("a"), request("b", "k2")])
    assert store.forget("k1") == 1
    assert ids(store.find()) == ["b"]
