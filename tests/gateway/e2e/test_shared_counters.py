"""Several gateways in front of one engine, which share limits and seats in a real Redis."""

import contextlib
import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import redis
from direct_line import needs_redis
from gateway_process import GatewayProcess, Person, ScriptedEngine, gateway_process, until

pytestmark = needs_redis


class RedisServer:
    """A Redis of one's own, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.program = shutil.which("valkey-server") or shutil.which("redis-server")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.folder = folder
        self.process = None

    def start(self):
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self.process = subprocess.Popen(
            [*command, "--dir", str(self.folder)], stdout=subprocess.DEVNULL
        )
        client = redis.Redis.from_url(self.url)
        until(lambda: self._answers(client))
        client.close()

    def _answers(self, client):
        with contextlib.suppress(redis.RedisError):
            return client.ping()
        return False

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path):
    made = RedisServer(tmp_path)
    if made.program is None:
        pytest.skip("no redis-server to start")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def engine():
    with ScriptedEngine(max_num_seqs=4).serving() as made:
        yield made


@pytest.fixture
def gateways(server, engine, tmp_path):
    """Two, with one database, before one engine."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                gateway_process(
                    engine.url,
                    tmp_path / name,
                    "--counters",
                    server.url,
                    database=tmp_path / "carpool.db",
                )
            )
            for name in ("one", "two")
        ]


def at(gateway: GatewayProcess, person: Person) -> Person:
    """The same person, who asks another gateway, once that knows their key."""
    there = Person(gateway, person.new)
    until(lambda: there.get("/v1/models").status_code == 200)
    return there


def test_a_rate_holds_over_gateways(gateways):
    one, two = gateways
    ada = one.add_person(rpm=10)
    both = [ada, at(two, ada)]
    answers = [both[number % 2].start() for number in range(30)]
    codes = [each.result().status_code for each in answers]
    assert codes.count(200) == 10
    assert codes.count(429) == 20


def test_the_engine_never_has_more_than_its_seats(gateways, engine):
    one, two = gateways
    people = one.add_people(5)
    both = [(each, at(two, each)) for each in people]
    engine.slow_down(0.02)
    answers = [both[number % 5][number // 5 % 2].start() for number in range(50)]
    assert {each.result().status_code for each in answers} == {200}
    assert engine.most_at_once == 4
    until(lambda: one.is_idle and two.is_idle)


def test_two_people_at_two_gateways_get_equal_shares(gateways, engine):
    one, two = gateways
    ada, bob = one.add_person(), one.add_person()
    people = [(ada, "ada"), (at(two, bob), "bob")]
    engine.slow_down(0.05)
    started = [each.start(max_tokens=20, user=name) for _ in range(60) for each, name in people]
    until(lambda: len(engine.asked) >= 90, within_s=20)
    names = [each.json["user"] for each in engine.asked]
    first = max(names.index("ada"), names.index("bob"))
    served = Counter(names[first : first + 80])
    assert {each.result().status_code for each in started} == {200}
    assert min(served.values()) >= 0.9 * max(served.values())
    assert len(served) == 2


def test_what_another_gateway_has_at_the_engine_is_not_taken_for_a_strangers(gateways, engine):
    ada = gateways[0].add_person()
    with engine.holding():
        held = [ada.start() for _ in range(2)]
        until(lambda: len(engine.asked) == 2)
        engine.load = (2, 0)
        num_polls = engine.num_polls
        until(lambda: engine.num_polls >= num_polls + 5)
        assert [each.metric("seats") for each in gateways] == [4, 4]
        engine.load = (4, 0)
        until(lambda: [each.metric("seats") for each in gateways] == [2, 2])
    assert {each.result().status_code for each in held} == {200}


def test_a_gateway_that_is_killed_gives_its_seats_back(gateways, engine):
    one, two = gateways
    ada, cem, bob = one.add_people(3)
    bob = at(two, bob)
    with engine.holding():
        held = [ada.start() for _ in range(3)]
        until(lambda: len(engine.asked) == 3)
        held.append(cem.start())
        until(lambda: len(engine.asked) == 4)
        waiting = bob.start(timeout=20)
        until(lambda: two.num_waiting == 1)
        one.process.kill()
        until(lambda: len(engine.asked) == 5)
    assert waiting.result().status_code == 200
    assert all(each.exception() for each in held)


def test_while_redis_is_away_requests_go_on_and_afterwards_limits_hold_again(
    gateways, engine, server
):
    one, two = gateways
    ada = one.add_person(rpm=10)
    both = [ada, at(two, ada)]
    free = one.visitor
    engine.slow_down(0.1)
    running = [free.start() for _ in range(12)]
    server.stop()
    assert {each.result().status_code for each in running} == {200}
    until(lambda: one.metric("counters_away") == 1 and two.metric("counters_away") == 1)
    engine.forget()
    codes = [both[number % 2].ask().status_code for number in range(16)]
    assert codes.count(200) == 10, "five at each"
    server.start()
    until(lambda: one.metric("counters_away") == 0 and two.metric("counters_away") == 0)
    codes = [both[number % 2].ask().status_code for number in range(16)]
    assert codes.count(200) == 10
    for gateway in gateways:
        log = gateway.log.read_text()
        assert log.count("shared counters are away") == 1
        assert log.count("shared counters are back") == 1


def test_a_server_that_is_not_there_is_said_in_one_line(tmp_path, engine):
    with (
        pytest.raises(AssertionError, match="did not start"),
        gateway_process(engine.url, tmp_path, "--counters", "redis://:secret@127.0.0.1:1/0"),
    ):
        pass
    log = (tmp_path / "stderr.log").read_text()
    assert log.startswith("carpool: the shared counters at redis://127.0.0.1:1/0 cannot be reached")
    assert log.count("\n") == 1
    assert "secret" not in log
