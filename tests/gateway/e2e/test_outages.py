"""An engine that fails, a database that is away, a gateway that has to leave."""

import signal
import time

import httpx
import pytest
from gateway_process import (
    PATIENCE_S,
    ScriptedEngine,
    chunks_of,
    connected,
    gateway_process,
    request_bytes,
    until,
)
from mock_engine import Reply, chat_events, json_reply, sse_reply

BROKEN = Reply(raw=b"HTTP/1.1 ")


@pytest.fixture
def own_engine():
    with ScriptedEngine(max_num_seqs=2).serving() as engine:
        yield engine


@pytest.fixture
def own(own_engine, tmp_path):
    """A gateway for one test, with two seats."""
    with gateway_process(own_engine.url, tmp_path, "--drain-timeout", "10") as gateway:
        assert gateway.visitor.ask().status_code == 200
        own_engine.forget()
        yield gateway


def test_an_engine_that_keeps_failing_is_left_alone_and_tried_again_by_one(gateway, engine):
    engine.script = BROKEN
    people = gateway.add_people(4)
    assert [people[0].ask().status_code for _ in range(3)] == [502] * 3
    num_asked = len(engine.asked)
    refused = people[0].ask()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "backend_down"
    assert len(engine.asked) == num_asked

    def is_let_through():
        trial = people[0].start()
        until(lambda: trial.done() or len(engine.asked) > num_asked)
        return len(engine.asked) > num_asked

    with engine.holding():
        until(is_let_through)
        answers = [person.ask().status_code for person in people[1:]]
        assert answers == [503] * 3
        assert len(engine.asked) == num_asked + 1
    until(lambda: people[0].ask().status_code == 200)


@pytest.mark.parametrize("status", [400, 422, 500])
def test_what_may_be_the_fault_of_a_request_never_makes_an_engine_suspect(gateway, engine, status):
    engine.script = json_reply({"error": {"message": "no"}}, status)
    assert {gateway.visitor.ask().status_code for _ in range(8)} == {status}
    assert len(engine.asked) == 8


def test_while_the_engine_is_away_people_wait_and_it_is_found_again(tmp_path):
    first = ScriptedEngine()
    with first.serving():
        port = int(first.url.rpartition(":")[2])
        manager = gateway_process(first.url, tmp_path)
        gateway = manager.__enter__()
        ada = gateway.add_person()
    try:
        until(lambda: gateway.http.get("/ready").status_code == 503)
        assert gateway.http.get("/health").status_code == 200
        waiting = ada.start()
        until(lambda: gateway.num_waiting == 1)
        with ScriptedEngine().serving(port) as second:
            assert waiting.result().status_code == 200
            assert len(second.asked) == 1
            gateway.stop()
    finally:
        manager.__exit__(None, None, None)


def test_while_the_database_is_away_known_keys_work_and_nothing_is_lost(own, own_engine):
    ada = own.add_person()
    away = own.database.with_suffix(".away")
    own.database.rename(away)
    try:
        assert [ada.ask(max_tokens=3).status_code for _ in range(5)] == [200] * 5
        until(lambda: own.metric("database_away") == 1)
        assert own.http.get("/ready").status_code == 200
        assert ada.ask(max_tokens=3).status_code == 200
    finally:
        away.rename(own.database)
    until(lambda: len(own.rows(ada)) == 6)
    until(lambda: own.metric("database_away") == 0)
    assert ada.ask(max_tokens=3).status_code == 200
    until(lambda: len(own.rows(ada)) == 7)
    assert {row["output_tokens"] for row in own.rows(ada)} == {3}
    assert not list(own.journal.glob("*.usage.jsonl"))
    ada.revoke()
    until(lambda: ada.ask().status_code == 401)


def test_what_a_killed_gateway_had_written_down_is_in_the_ledger_of_the_next(own_engine, tmp_path):
    with gateway_process(own_engine.url, tmp_path) as gateway:
        ada = gateway.add_person()
        assert ada.ask().status_code == 200
        until(lambda: gateway.rows(ada))
        away = gateway.database.with_suffix(".away")
        gateway.database.rename(away)
        assert [ada.ask().status_code for _ in range(4)] == [200] * 4
        # The row of the last is written right after its answer, so before the next one.
        assert gateway.http.get("/health").status_code == 200
        gateway.process.send_signal(signal.SIGKILL)
        gateway.process.wait(PATIENCE_S)
        away.rename(gateway.database)
    with gateway_process(own_engine.url, tmp_path) as gateway:
        until(lambda: len(gateway.rows(ada)) == 5)


def test_a_gateway_that_has_to_leave_finishes_what_runs_and_refuses_the_rest(own, own_engine):
    ada, ben, eve = own.add_people(3)
    reply = sse_reply(chat_events(["a", "b"]), stall_after=2)
    with own_engine.holding(reply) as released, ada.stream() as response:
        lines = response.iter_lines()
        assert any('"a"' in line for line in lines)
        whole = ben.start(stream=True)
        until(lambda: len(own_engine.asked) == 2)
        waiting = [person.start() for person in (ada, ben, eve)]
        until(lambda: own.num_waiting == 3)
        own.process.send_signal(signal.SIGTERM)
        until(lambda: own.http.get("/ready").status_code == 503)
        refused = [answer.result() for answer in waiting] + [eve.ask()]
        for answer in refused:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "draining"
            assert int(answer.headers["retry-after"]) >= 1
        assert own.process.poll() is None
        released.set()
        assert "data: [DONE]" in lines
        assert chunks_of(whole.result().text)[-1] == "[DONE]"
    assert own.process.wait(PATIENCE_S) == 0
    assert len(own.rows(ada)) + len(own.rows(ben)) + len(own.rows(eve)) >= 5


def test_who_has_yet_to_send_a_request_holds_nobody_up(own):
    ada = own.add_person()
    request = request_bytes(ada)
    with connected(own) as connection:
        connection.sendall(request[:-1])
        until(lambda: own.http.get("/health").status_code == 200)
        asked_at = time.monotonic()
        own.process.send_signal(signal.SIGTERM)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in answer
    assert own.process.wait(PATIENCE_S) == 0
    assert time.monotonic() - asked_at < PATIENCE_S / 2
    assert "Traceback" not in own.log.read_text()


def test_what_still_runs_at_the_drain_limit_is_cut_off_with_an_error(own_engine, tmp_path):
    with gateway_process(own_engine.url, tmp_path, "--drain-timeout", "0.3") as gateway:
        ada = gateway.add_person()
        reply = sse_reply(chat_events(["a", "b"]), stall_after=2)
        with own_engine.holding(reply), ada.stream() as response:
            pieces = response.iter_bytes()
            next(pieces)
            asked_at = time.monotonic()
            gateway.process.send_signal(signal.SIGTERM)
            content = b""
            with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012
                for piece in pieces:
                    content += piece
            assert gateway.process.wait(PATIENCE_S) == 0
            assert time.monotonic() - asked_at < PATIENCE_S
        assert gateway.row(ada)["output_tokens"] >= 1
        assert b'"error"' in content
