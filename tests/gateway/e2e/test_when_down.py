"""What becomes of requests while the engine is down or full: hold, fallback, refuse."""

import contextlib
import time

import httpx
import pytest
from gateway_process import (
    CHAT,
    MODEL,
    ScriptedEngine,
    chunks_of,
    gateway_process,
    plausible,
    read_until_cut,
    until,
)
from mock_engine import Reply, chat_body, chat_events, json_reply, serving, sse_reply

HOSTED_MODEL = "hosted/team-model"
HOSTED_KEY = "sk-of-the-host"
ELSEWHERE = json_reply(chat_body("from elsewhere", model=HOSTED_MODEL))


@pytest.fixture
def hosted():
    with serving(ELSEWHERE) as host:
        yield host


class House:
    """A gateway whose engine can be taken away and put back."""

    def __init__(self, gateway, engine, running):
        self.gateway = gateway
        self.engine = engine
        self._running = running
        self._port = int(engine.url.rpartition(":")[2])

    def kill(self):
        """The gateway may not know yet."""
        self._running.close()

    def take_away(self):
        self.kill()
        until(lambda: self.gateway.http.get("/ready").status_code == 503)

    def put_back(self):
        self._running.enter_context(self.engine.serving(self._port))


@contextlib.contextmanager
def housed(home, *arguments, num_seats=2, env=None):
    engine = ScriptedEngine(max_num_seqs=num_seats)
    with contextlib.ExitStack() as running:
        running.enter_context(engine.serving())
        with gateway_process(engine.url, home, *arguments, env=env) as gateway:
            yield House(gateway, engine, running)


@pytest.fixture
def house(hosted, tmp_path):
    options = ("--fallback", f"{hosted.url}/v1", "--fallback-model", HOSTED_MODEL)
    key = ("--fallback-key-env", "HOST_KEY")
    with housed(tmp_path, *options, *key, env={"HOST_KEY": HOSTED_KEY}) as made:
        yield made


def posts(host):
    return [request for request in host.requests if request.method == "POST"]


def test_who_is_refused_at_once_is_told_when_to_try_again(tmp_path):
    with housed(tmp_path, "--when-down", "refuse") as house:
        ada = house.gateway.add_person()
        assert ada.ask().status_code == 200
        house.take_away()
        began = time.monotonic()
        refused = ada.ask()
        assert time.monotonic() - began < 1
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] in ("backend_down", "loading")
        house.put_back()
        until(lambda: ada.ask().status_code == 200)


def test_those_who_wait_are_refused_when_the_engine_goes(tmp_path):
    with housed(tmp_path, "--when-down", "refuse", num_seats=1) as house:
        ada, ben = house.gateway.add_people(2)
        with house.engine.holding():
            cut = ada.start()
            until(lambda: house.engine.asked)
            waiting = ben.start()
            until(lambda: house.gateway.num_waiting == 1)
            house.take_away()
            assert waiting.result().status_code == 503
            assert cut.result().status_code == 502


def test_a_request_that_nobody_received_is_held_until_the_engine_is_back(tmp_path):
    with housed(tmp_path) as house:
        ada = house.gateway.add_person()
        house.kill()
        waiting = ada.start()
        until(lambda: house.gateway.num_waiting == 1)
        house.put_back()
        assert waiting.result().status_code == 200


def test_an_engine_that_loads_is_waited_for_and_is_not_down(tmp_path):
    with housed(tmp_path) as house:
        ada = house.gateway.add_person()
        house.take_away()
        house.engine.is_loading = True
        house.put_back()
        waiting = ada.start()
        until(lambda: house.gateway.num_waiting == 1)
        until(lambda: house.engine.num_probes >= 3)
        assert house.gateway.http.get("/health").status_code == 200
        assert house.gateway.http.get("/ready").status_code == 503
        house.engine.is_loading = False
        assert waiting.result().status_code == 200


def test_who_is_refused_while_the_engine_loads_is_told_so(tmp_path):
    with housed(tmp_path, "--when-down", "refuse") as house:
        ada = house.gateway.add_person()
        house.take_away()
        house.engine.is_loading = True
        house.put_back()
        refused = until(lambda: (r := ada.ask()).json()["error"]["code"] == "loading" and r)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        house.engine.is_loading = False
        until(lambda: ada.ask().status_code == 200)


def test_the_fallback_answers_while_the_engine_is_away_and_says_so(house, hosted):
    ada = house.gateway.add_person()
    assert "x-carpool-fallback" not in ada.ask().headers
    assert not hosted.requests
    house.take_away()
    answer = ada.ask()
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "from elsewhere"
    assert answer.json()["model"] == MODEL
    assert answer.headers["x-carpool-fallback"].startswith("fallback:127.0.0.1")
    [request] = posts(hosted)
    assert request.path == CHAT
    assert request.json["model"] == HOSTED_MODEL
    assert request.headers["authorization"] == f"Bearer {HOSTED_KEY}"
    assert ada.key not in str(request)
    rows = until(lambda: len(found := house.gateway.rows(ada)) == 2 and found)
    assert [row["is_fallback"] for row in rows] == [0, 1]
    assert rows[1]["backend"].startswith("fallback:")
    house.put_back()
    until(lambda: "x-carpool-fallback" not in ada.ask().headers)


def test_the_fallback_is_not_told_who_asks_or_from_where(house, hosted):
    house.take_away()
    told = {
        "x-auth-request-email": "ada@example.com",
        "referer": "http://wiki.internal/plans",
        "via": "1.1 proxy.internal",
        "cookie": "session=1",
    }
    answer = house.gateway.add_person().ask(headers={**told, "anthropic-version": "2023-06-01"})
    assert answer.headers["x-carpool-fallback"]
    [request] = posts(hosted)
    assert not told.keys() & request.headers.keys()
    assert request.headers["anthropic-version"] == "2023-06-01"


def test_an_engine_that_does_not_take_the_gateway_s_key_is_no_matter_of_the_client_s(house, hosted):
    house.engine.script = json_reply({"error": {"message": "wrong key"}}, 401)
    ada = house.gateway.add_person(is_private=True)
    refused = ada.ask()
    assert refused.status_code == 502
    assert "the gateway's key" in refused.json()["error"]["message"]
    assert house.gateway.row(ada)["outcome"] == "upstream_error"
    hosted.script = json_reply({"error": {"message": f"bad key {HOSTED_KEY}"}}, 401)
    assert HOSTED_KEY not in house.gateway.add_person().ask().text
    assert "(401)" in house.gateway.log.read_text()


def test_not_one_byte_of_a_private_key_reaches_the_fallback(house, hosted):
    secretive = house.gateway.add_person(is_private=True)
    assert secretive.ask().status_code == 200
    house.take_away()
    waiting = secretive.start()
    until(lambda: house.gateway.num_waiting == 1)
    assert house.gateway.add_person().ask().headers["x-carpool-fallback"]
    num_connections = hosted.num_connections
    house.put_back()
    answer = waiting.result()
    assert answer.status_code == 200
    assert "x-carpool-fallback" not in answer.headers
    assert hosted.num_connections == num_connections
    assert len(posts(hosted)) == 1


FAULTS = {
    "busy": json_reply({"error": {"message": "busy"}}, 503),
    "cut": Reply(cut_after=0),
    "no HTTP": Reply(raw=b"HTTP/1."),
    "late": json_reply({}, head_delay=30),
    "error event": sse_reply([b'data: {"error": {"message": "no", "code": 503}}\n\n']),
    "cut stream": sse_reply(chat_events(list("abc")), cut_after=2),
}


def test_a_private_key_s_prompts_stay_here_whatever_the_engine_does(hosted, tmp_path):
    options = ("--fallback", hosted.url, "--first-byte-timeout", "1", "--max-waiting", "1")
    with housed(tmp_path, *options, "--max-wait", "0.3", num_seats=1) as house:
        ada, ben, eve = house.gateway.add_people(3, is_private=True)
        for name, fault in FAULTS.items():
            house.engine.script = fault
            with ada.stream() as response:
                content = b""
                with contextlib.suppress(httpx.RemoteProtocolError):
                    for piece in response.iter_bytes():
                        content += piece
            assert b"error" in content, name
        codes = [ada.ask().json()["error"]["code"] for _ in range(3)]
        assert "backend_down" in codes  # its breaker is open
        house.engine.script = plausible
        until(lambda: ada.ask().status_code == 200)
        with house.engine.holding():
            running = ada.start()
            until(lambda: house.gateway.num_in_flight == 1)
            waiting = ben.start()
            until(lambda: house.gateway.num_waiting == 1)
            assert eve.ask().json()["error"]["code"] == "queue_full"
            assert waiting.result().json()["error"]["code"] == "queue_timeout"
            assert running.result().status_code == 504
        house.kill()
        assert ada.ask().status_code == 503
        assert not hosted.num_connections


def test_not_one_byte_of_a_private_model_leaves(hosted, tmp_path):
    with housed(tmp_path, "--private", "--max-wait", "0.3") as house:
        ada = house.gateway.add_person()
        assert ada.ask().status_code == 200
        house.take_away()
        assert ada.ask().status_code == 503
        assert not hosted.num_connections


def test_a_private_model_with_a_fallback_is_not_served(hosted, tmp_path):
    options = ("--private", "--fallback", hosted.url)
    with pytest.raises(AssertionError, match="private"), housed(tmp_path, *options):
        pass


def test_what_has_begun_is_never_begun_again_elsewhere(house, hosted):
    ada = house.gateway.add_person()
    house.engine.script = sse_reply(chat_events(list("abcde")), cut_after=4)
    with ada.stream() as response:
        events = chunks_of(read_until_cut(response).decode())
    assert events[-1]["error"]
    assert "[DONE]" not in events
    assert not hosted.requests


@pytest.mark.parametrize(
    "fault",
    [json_reply({"error": {"message": "busy"}}, 503), Reply(cut_after=0), Reply(raw=b"HTTP/1.")],
)
def test_an_engine_that_fails_before_the_first_byte_is_replaced(house, hosted, fault):
    house.engine.script = fault
    answer = house.gateway.add_person().ask()
    assert answer.status_code == 200
    assert answer.headers["x-carpool-fallback"]


def test_a_first_byte_that_is_late_is_left_before_another_is_asked(hosted, tmp_path):
    options = ("--fallback", hosted.url, "--first-byte-timeout", "0.3")
    with housed(tmp_path, *options) as house, house.engine.holding():
        answer = house.gateway.add_person().ask()
        assert answer.headers["x-carpool-fallback"]
        until(lambda: house.engine.left)
        assert len(posts(hosted)) == 1


def test_mistakes_of_the_client_stay_with_the_engine_that_found_them(house, hosted):
    house.engine.script = json_reply({"error": {"message": "no"}}, 400)
    assert house.gateway.add_person().ask().status_code == 400
    assert not hosted.requests


def test_a_full_queue_overflows_to_the_fallback_and_a_persons_own_share_does_not(hosted, tmp_path):
    options = ("--fallback", hosted.url, "--max-waiting", "4")
    with housed(tmp_path, *options, num_seats=1) as house:
        flooder, *others = house.gateway.add_people(6)
        with house.engine.holding():
            running = [flooder.start()]
            until(lambda: house.engine.asked)
            first = [flooder.start() for _ in range(2)]
            until(lambda: house.gateway.num_waiting == 2)
            assert flooder.ask().status_code == 429
            waiting = [person.start() for person in others[:2]]
            until(lambda: house.gateway.num_waiting == 4)
            overflow = others[2].ask()
            assert overflow.headers["x-carpool-fallback"]
        for answer in running + first + waiting:
            assert answer.result().status_code == 200


def test_a_fallback_that_is_down_as_well_is_an_honest_refusal(house, hosted):
    ada = house.gateway.add_person()
    assert ada.ask().status_code == 200
    hosted.script = json_reply({"error": {"message": "out"}}, 503)
    house.take_away()
    refused = ada.ask()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1


def test_a_busy_engine_is_told_as_busy_where_the_fallback_is_not_there(tmp_path):
    with housed(tmp_path, "--fallback", "http://127.0.0.1:1/v1") as house:
        ada = house.gateway.add_person()
        busy = {"error": {"message": "busy"}}
        for told, seconds in (((("retry-after", "7"),), ["7"]), ((), ["1", "2", "3", "4", "5"])):
            headers = (("content-type", "application/json"), *told)
            house.engine.script = json_reply(busy, 503, headers=headers)
            refused = ada.ask()
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "backend_down"
            assert refused.headers["retry-after"] in seconds


def test_a_stream_by_the_fallback_is_accounted_and_bears_the_alias(house, hosted):
    ada = house.gateway.add_person()
    assert ada.ask().status_code == 200
    hosted.script = sse_reply(chat_events(["x", "y"], model=HOSTED_MODEL))
    house.take_away()
    with ada.stream() as response:
        events = chunks_of(response.read().decode())
    assert {event["model"] for event in events[:-1]} == {MODEL}
    rows = until(lambda: len(found := house.gateway.rows(ada)) == 2 and found)
    assert rows[1]["usage_source"] == "reported"
