"""One fair and bounded queue in front of the engine's seats."""

import math
from concurrent.futures import FIRST_COMPLETED, wait

import pytest
from gateway_process import PATIENCE_S, ScriptedEngine, gateway_process, until

from carpool.store.lane import Lane

LONG = [{"role": "user", "content": "word " * 1400}]
SEATS = 2
MAX_WAITING = 4


@pytest.fixture(scope="module")
def small_engine():
    with ScriptedEngine(max_num_seqs=SEATS, kv_tokens=3000).serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def small_gateway(small_engine, tmp_path_factory):
    home = tmp_path_factory.mktemp("queue")
    with gateway_process(
        small_engine.url, home, "--max-waiting", str(MAX_WAITING), "--max-wait", "30"
    ) as gateway:
        yield gateway


@pytest.fixture
def small(small_engine, small_gateway):
    """Two seats, and places for four who wait."""
    until(lambda: small_gateway.is_idle)
    small_engine.forget()
    return small_gateway, small_engine


def statuses_of(answers):
    return sorted(answer.result().status_code for answer in answers)


def is_over(answers, count):
    return sum(answer.done() for answer in answers) == count


def test_the_queue_is_bounded_and_whoever_finds_it_full_hears_so_at_once(small):
    gateway, engine = small
    people = gateway.add_people(10)
    with engine.holding() as released:
        answers = [person.start(max_tokens=5) for person in people for _ in range(5)]
        until(lambda: is_over(answers, 50 - SEATS - MAX_WAITING))
        assert (gateway.num_in_flight, gateway.num_waiting) == (SEATS, MAX_WAITING)
        refused = [answer.result() for answer in answers if answer.done()]
        released.set()
        assert statuses_of(answers).count(200) == SEATS + MAX_WAITING
    for response in refused:
        error = response.json()["error"]
        status = {"queue_full": 503, "queue_share": 429}[error["code"]]
        assert response.status_code == status
        assert error["param"] in ("queue", "queue_share")
        assert int(response.headers["retry-after"]) >= 1
        assert any(word in error["message"] for word in ("wait", "waiting"))
    until(lambda: gateway.is_idle)


def test_what_the_queue_refused_costs_no_requests_and_no_tokens(small):
    gateway, engine = small
    ada = gateway.add_person(max_in_flight=1, rpm=10, daily_tokens=100_000)
    with engine.holding() as released:
        answers = [ada.start(max_tokens=5) for _ in range(21)]
        until(lambda: is_over(answers, 21 - 1 - MAX_WAITING // 2))
        released.set()
        statuses = statuses_of(answers)
    assert statuses == [200] * 3 + [429] * 18
    assert [ada.ask(max_tokens=5).status_code for _ in range(8)] == [200] * 7 + [429]
    tokens = sum(row["prompt_tokens"] + row["output_tokens"] for row in gateway.rows(ada))
    until(lambda: len(gateway.rows(ada)) == 29)
    served = [row for row in gateway.rows(ada) if row["status"] == 200]
    assert len(served) == 10
    assert tokens <= sum(row["prompt_tokens"] + row["output_tokens"] for row in served)


def test_where_one_stands_and_how_long_one_waited_is_told(small):
    gateway, engine = small
    ada, ben = gateway.add_people(2)
    with engine.holding() as released:
        first = ada.start(max_tokens=5)
        until(lambda: len(engine.asked) == 1)
        waiting = ada.start(max_tokens=5)
        until(lambda: gateway.num_waiting == 1)
        newcomer = ben.start(max_tokens=5)
        until(lambda: len(engine.asked) == 2)
        released.set()
        answers = [each.result() for each in (first, waiting, newcomer)]
    positions = [int(answer.headers["x-carpool-queue-position"]) for answer in answers]
    waits = [int(answer.headers["x-carpool-queue-ms"]) for answer in answers]
    assert positions[0] == 0
    assert waits[1] > waits[0]
    row = gateway.row(ben)
    assert row["queue_ms"] < max(row["total_ms"], 1)


def test_memory_for_tokens_is_counted_as_well_as_seats(small):
    gateway, engine = small
    people = gateway.add_people(3)
    with engine.holding() as released:
        answers = [person.start(messages=LONG, max_tokens=9) for person in people]
        until(lambda: gateway.num_waiting == 2)
        assert len(engine.asked) == 1
        released.set()
        assert statuses_of(answers) == [200] * 3


def test_what_could_never_fit_is_refused(small):
    gateway, engine = small
    response = gateway.visitor.ask(messages=[{"role": "user", "content": "word " * 20_000}])
    assert response.status_code == 413
    assert response.json()["error"]["param"] == "kv_tokens"
    assert not engine.asked


def test_one_person_cannot_take_all_the_seats(gateway, engine):
    ada, ben = gateway.add_people(2)
    with engine.holding() as released:
        flood = [ada.start() for _ in range(32)]
        until(lambda: gateway.num_waiting + gateway.num_in_flight == 32)
        assert gateway.num_in_flight == 12  # four of the sixteen are kept for others
        small = ben.start()
        until(lambda: len(engine.asked) == 13)
        assert small.running()
        assert gateway.num_in_flight == 13
        released.set()
        assert statuses_of([*flood, small]) == [200] * 33
    assert int(small.result().headers["x-carpool-queue-position"]) == 0 or (
        int(small.result().headers["x-carpool-queue-ms"]) < 500
    )


def test_a_burst_never_goes_over_the_engine_s_seats(gateway, engine):
    people = gateway.add_people(5)
    engine.slow_down(0.01)
    answers = [person.start(max_tokens=5) for person in people for _ in range(20)]
    assert statuses_of(answers) == [200] * 100
    assert engine.most_at_once <= 16
    assert gateway.metric("requests_total", outcome="completed") >= 100


def test_two_people_who_flood_get_their_turns_alike(gateway, engine):
    ada, ben = gateway.add_people(2)
    with engine.holding() as released:
        answers = [ada.start(max_tokens=5, user="ada") for _ in range(40)]
        until(lambda: gateway.num_waiting + gateway.num_in_flight == 40)
        until(lambda: len(engine.asked) == 12)
        answers += [ben.start(max_tokens=5, user="ben") for _ in range(20)]
        until(lambda: gateway.num_waiting + gateway.num_in_flight == 60)
        released.set()
        assert statuses_of(answers) == [200] * 60
    turns = [request.json["user"] for request in engine.asked[12:][:30]]
    assert abs(turns.count("ada") - turns.count("ben")) <= 2


def test_the_batch_lane_goes_when_nobody_else_waits(small):
    gateway, engine = small
    ada = gateway.add_person()
    night = gateway.add_person(lane=Lane.BATCH)
    with engine.holding() as released:
        running = [ada.start(max_tokens=5)]
        until(lambda: len(engine.asked) == 1)
        running.append(gateway.visitor.start(max_tokens=5))
        until(lambda: len(engine.asked) == 2)
        batch = night.start(max_tokens=5)
        until(lambda: gateway.num_waiting == 1)
        more = ada.start(max_tokens=5)
        until(lambda: gateway.num_waiting == 2)
        engine.slow_down(0.05)
        released.set()
        first, _ = wait([batch, more], PATIENCE_S, FIRST_COMPLETED)
        assert first == {more}
        assert statuses_of([*running, batch, more]) == [200] * 4


def test_retry_after_is_a_whole_number_that_grows_with_what_waits(small):
    gateway, engine = small
    people = gateway.add_people(6)
    with engine.holding() as released:
        answers = []
        for number, person in enumerate(people, 1):
            answers.append(person.start(max_tokens=5))
            until(lambda number=number: gateway.num_waiting + gateway.num_in_flight == number)
        refused = gateway.visitor.ask()
        released.set()
        assert statuses_of(answers) == [200] * 6
    seconds = refused.headers["retry-after"]
    assert refused.status_code == 503
    assert seconds == str(math.ceil(float(seconds)))
