"""Every timer is one of its own, and an answer says which of them it was."""

import pytest
from gateway_process import ScriptedEngine, chunks_of, gateway_process, read_until_cut, until
from mock_engine import Reply, chat_body, chat_events, json_reply, sse_reply

FIRST_BYTE_S, IDLE_S, TOTAL_S, WAIT_S = 0.8, 0.4, 1.6, 0.5
TIMERS = ("--first-byte-timeout", "--idle-timeout", "--total-timeout", "--max-wait")
SECONDS = (FIRST_BYTE_S, IDLE_S, TOTAL_S, WAIT_S)


@pytest.fixture(scope="module")
def timed_engine():
    with ScriptedEngine().serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def timed_gateway(timed_engine, tmp_path_factory):
    options = [text for pair in zip(TIMERS, map(str, SECONDS), strict=True) for text in pair]
    with gateway_process(timed_engine.url, tmp_path_factory.mktemp("timers"), *options) as gateway:
        yield gateway


@pytest.fixture
def timed(timed_engine, timed_gateway):
    timed_engine.forget()
    until(lambda: timed_gateway.visitor.ask().status_code == 200)
    timed_engine.forget()
    return timed_gateway, timed_engine


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_engine_that_stays_silent_is_late_with_its_first_byte(timed, is_stream):
    gateway, engine = timed
    engine.script = Reply(head_delay=30)
    response = gateway.visitor.ask(stream=is_stream)
    assert response.status_code == 504
    assert "first-byte timeout" in response.json()["error"]["message"]
    assert len(engine.asked) == 1
    until(lambda: engine.left)


def test_a_first_byte_may_take_longer_than_a_pause_between_two(timed):
    gateway, engine = timed
    engine.script = sse_reply(chat_events(["a"]), head_delay=(FIRST_BYTE_S + IDLE_S) / 2)
    with gateway.visitor.stream() as response:
        assert chunks_of(response.read().decode())[-1] == "[DONE]"


def test_a_pause_in_a_stream_is_told_as_one(timed):
    gateway, engine = timed
    engine.script = sse_reply(chat_events(["a", "b"]), stall_after=2)
    with gateway.visitor.stream() as response:
        chunks = chunks_of(read_until_cut(response).decode())
    assert chunks[-1]["error"]["code"] == "idle_timeout"
    assert "idle timeout" in chunks[-1]["error"]["message"]


def test_a_stream_that_never_pauses_ends_at_its_total(timed):
    gateway, engine = timed
    ada = gateway.add_person()
    engine.script = sse_reply(chat_events(["a"] * 1000), piece_delay=0.05)
    with ada.stream() as response:
        chunks = chunks_of(read_until_cut(response).decode())
    assert chunks[-1]["error"]["code"] == "total_timeout"
    assert gateway.row(ada)["outcome"] == "upstream_timeout"


def test_the_wait_for_a_seat_has_its_own_bound(timed):
    gateway, engine = timed
    ada = gateway.add_person(max_in_flight=1)
    engine.script = json_reply(chat_body("a"), head_delay=WAIT_S + 0.2)
    first = ada.start()
    until(lambda: len(engine.asked) == 1)
    late = ada.ask()
    assert late.status_code == 503
    assert late.json()["error"]["code"] == "queue_timeout"
    assert int(late.headers["retry-after"]) >= 1
    assert first.result().status_code == 200


def test_timeouts_give_back_everything_that_was_taken(timed):
    gateway, engine = timed
    ada = gateway.add_person(max_in_flight=2, rpm=100)
    engine.script = Reply(head_delay=30)
    answers = [ada.start() for _ in range(5)]
    assert {answer.result().status_code for answer in answers} <= {503, 504}
    until(lambda: gateway.is_idle)
    engine.forget()
    until(lambda: ada.ask().status_code == 200)
