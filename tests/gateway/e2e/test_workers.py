"""Several workers of one gateway: to those who ask, and to the engine, they are one."""

import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from direct_line import URL, needs_redis
from gateway_process import (
    CHAT,
    MODEL,
    Person,
    ScriptedEngine,
    body,
    gateway_process,
    read_until_cut,
    until,
)
from mock_engine import chat_events, sse_reply

from carpool.store.admin_key import AdminKeyStore

pytestmark = needs_redis


@pytest.fixture(scope="module")
def shared():
    with ScriptedEngine(max_num_seqs=8).serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def shared_workers(shared, tmp_path_factory):
    home = tmp_path_factory.mktemp("workers")
    arguments = ("--workers", "2", "--counters", URL, "--admin-port", "0")
    with gateway_process(shared.url, home, *arguments) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def admin(shared_workers):
    key = AdminKeyStore(shared_workers.store.database).renew()
    headers = {"authorization": f"Bearer {key.text}"}
    url = f"{shared_workers.admin_url}/admin/v1"
    with httpx.Client(base_url=url, headers=headers) as http:
        yield http


@pytest.fixture
def gateway(shared, shared_workers):
    until(lambda: shared_workers.is_idle)
    shared.forget()
    return shared_workers


@pytest.fixture
def engine(shared):
    return shared


def workers_of(gateway):
    """Process ids."""
    children = Path(f"/proc/{gateway.pid}/task").glob("*/children")
    pids = [int(pid) for each in children for pid in each.read_text().split()]
    return [pid for pid in pids if b"carpool.gateway.worker" in command_of(pid)]


def command_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def add_people(gateway, number, **options):
    """People whose keys all workers know: each reads them again within half a second."""
    people = gateway.add_people(number, **options)
    since = time.monotonic()
    while time.monotonic() < since + 0.6:
        with httpx.Client(base_url=gateway.url, headers=people[0].headers) as http:
            if http.get("/v1/models").status_code != 200:
                since = time.monotonic()
    return people


def ask_anew(person: Person, **fields):
    """On a connection of its own, which any worker may take."""
    with httpx.Client(base_url=person.gateway.url, timeout=20) as http:
        return http.post(CHAT, headers=person.headers, json=body(**fields))


def start_anew(person: Person, **fields):
    return person.gateway.pool.submit(ask_anew, person, **fields)


def test_a_rate_holds_over_workers(gateway):
    [ada] = add_people(gateway, 1, rpm=10)
    answers = [start_anew(ada) for _ in range(30)]
    codes = Counter(each.result().status_code for each in answers)
    assert codes == {200: 10, 429: 20}


def test_the_engine_never_has_more_than_its_seats(gateway, engine):
    people = add_people(gateway, 5)
    engine.slow_down(0.05)
    answers = [start_anew(people[number % 5]) for number in range(50)]
    assert {each.result().status_code for each in answers} == {200}
    assert engine.most_at_once == 8


def test_a_key_that_was_revoked_is_refused_by_all_within_a_second(gateway, admin):
    [ada] = add_people(gateway, 1)
    assert all(ask_anew(ada).status_code == 200 for _ in range(8))
    assert admin.post(f"/keys/{ada.key_id}/revoke", json={}).status_code == 200
    deadline = time.monotonic() + 1
    until(lambda: all(ask_anew(ada).status_code == 401 for _ in range(8)), within_s=1)
    while time.monotonic() < deadline:
        assert ask_anew(ada).status_code == 401


def test_figures_are_those_of_all_workers(gateway, engine, admin):
    [ada] = add_people(gateway, 1)
    before = gateway.metric("requests_total", outcome="completed")
    assert {ask_anew(ada).status_code for _ in range(20)} == {200}
    until(lambda: gateway.metric("requests_total", outcome="completed") == before + 20)
    assert gateway.metric("seats") == 8
    assert gateway.metric("replicas_ready") == 1
    assert "carpool_gateway_seats" in httpx.get(f"{gateway.admin_url}/metrics").text
    with engine.holding():
        answers = [start_anew(ada) for _ in range(6)]
        until(lambda: gateway.num_in_flight == 6)
        live = admin.get("/live").json()
        assert [(each["name"], each["in_flight"]) for each in live["models"]] == [(MODEL, 6)]
        assert [each["in_flight"] for each in live["people"]] == [6]
        assert admin.get("/now").json()["num_places"] == 6
        until(lambda: len(ada.get("/v1/me").json()["in_flight"]) == 6)
    assert {each.result().status_code for each in answers} == {200}


def test_a_worker_that_is_killed_gives_its_seats_back_and_is_started_again(gateway, engine):
    ada, bob = add_people(gateway, 2)
    engine.slow_down(0.05)
    before = workers_of(gateway)
    assert len(before) == 2
    answers = [start_anew(each) for _ in range(60) for each in (ada, bob)]
    until(lambda: len(engine.asked) >= 20)
    os.kill(before[0], signal.SIGKILL)
    done = [each for each in answers if each.exception() is None]
    assert {each.result().status_code for each in done} == {200}
    assert len(done) >= 60
    until(lambda: len(workers_of(gateway)) == 2)
    assert len(set(workers_of(gateway)) & set(before)) == 1
    until(lambda: gateway.is_idle)
    with engine.holding():
        people = add_people(gateway, 8)
        held = [start_anew(each) for each in people]
        until(lambda: gateway.num_in_flight == 8)
    assert {each.result().status_code for each in held} == {200}
    until(lambda: num_completed(gateway, ada, bob) >= len(done))
    ids = [row["request_id"] for each in (ada, bob) for row in gateway.rows(each)]
    assert len(ids) == len(set(ids))
    assert num_completed(gateway, ada, bob) <= len(engine.asked)


def num_completed(gateway, *people):
    rows = [row for each in people for row in gateway.rows(each)]
    return sum(row["outcome"] == "completed" for row in rows)


@pytest.fixture
def own(engine, tmp_path):
    """Workers of a test's own, which it may stop."""
    engine.forget()
    arguments = ("--workers", "2", "--counters", URL, "--drain-timeout", "5")
    with gateway_process(engine.url, tmp_path, *arguments) as gateway:
        yield gateway


def test_sigterm_lets_all_workers_finish_what_they_have(own, engine):
    [ada] = add_people(own, 1)
    engine.slow_down(1.0)
    answers = [start_anew(ada) for _ in range(7)]
    until(lambda: len(engine.asked) == 7)
    workers = workers_of(own)
    assert own.stop() == 0
    assert {each.result().status_code for each in answers} == {200}
    assert not any(command_of(pid) for pid in workers)
    assert num_completed(own, ada) == 7


def test_nothing_is_left_of_workers_whose_parent_was_killed(own, engine):
    [ada] = add_people(own, 1)
    workers = workers_of(own)
    engine.script = sse_reply(chat_events(["word "] * 2000), piece_delay=0.02)
    with ada.stream() as response:
        pieces = response.iter_bytes()
        next(pieces)
        own.process.kill()
        read_until_cut(pieces)
    until(lambda: not any(command_of(pid) for pid in workers), within_s=15)


def test_several_workers_without_counters_are_refused(tmp_path, engine):
    with (
        pytest.raises(AssertionError, match="did not start"),
        gateway_process(engine.url, tmp_path, "--workers", "2", env={"CARPOOL_COUNTERS": ""}),
    ):
        pass
    log = (tmp_path / "stderr.log").read_text()
    assert log.startswith("carpool: --workers 2 needs --counters redis://HOST:PORT/DB")
    assert log.count("\n") == 1
