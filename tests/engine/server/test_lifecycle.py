"""Whom the server answers, when, and what becomes of a request whose client goes away."""

import asyncio
import json
from typing import Any

import pytest

from carpool.engine.client import EngineState, QueueFull
from carpool.engine.server import create_app
from carpool.scheduling.rejection import RejectReason, RequestRejected
from carpool.scheduling.request import FinishReason

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class Connection:
    """One HTTP exchange with the application, a message at a time."""

    def __init__(self, engine: Any, path: str, body: dict[str, Any], **headers: str) -> None:
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._received.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "server": ("engine", 80),
            "headers": [(b"content-type", b"application/json")]
            + [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        app = engine if callable(engine) else create_app(engine)
        self.task = asyncio.create_task(app(scope, self._received.get, self.sent.put))

    def go_away(self) -> None:
        self._received.put_nowait({"type": "http.disconnect"})

    async def rest(self) -> list[dict[str, Any]]:
        """Everything sent by the time the application is done with this exchange."""
        await self.task
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"n": 3}])
def test_a_client_that_goes_away_aborts_its_request(engine, path, fields):
    async def scenario():
        engine.gate = asyncio.Event()
        connection = Connection(engine, path, {**CHAT, "prompt": "hi", **fields})
        await engine.has_started.wait()
        connection.go_away()
        await connection.rest()
        assert engine.aborted == [request.request_id for request in engine.requests]

    asyncio.run(scenario())


def test_every_delta_is_one_send(engine, script):
    async def scenario():
        engine.script = script("a", "b", "c")
        connection = Connection(engine, "/v1/chat/completions", {**CHAT, "stream": True})
        start, *parts = await connection.rest()
        assert start["type"] == "http.response.start"
        assert len(parts) == 4
        assert [part.get("more_body", False) for part in parts] == [True, True, True, False]

    asyncio.run(scenario())


def test_a_delta_is_sent_before_the_next_one_is_there(engine):
    async def scenario():
        engine.gate = asyncio.Event()
        connection = Connection(engine, "/v1/completions", {"prompt": "hi", "stream": True})
        assert (await connection.sent.get())["type"] == "http.response.start"
        assert b'"Hel"' in (await connection.sent.get())["body"]
        engine.gate.set()
        assert b'"lo"' in (await connection.rest())[0]["body"]

    asyncio.run(scenario())


def test_an_id_that_is_live_is_refused_and_free_again_after(engine):
    async def scenario():
        app = create_app(engine)
        engine.gate = asyncio.Event()
        body = {"prompt": "hi", "request_id": "job-1"}
        first = Connection(app, "/v1/completions", body)
        await engine.has_started.wait()
        start, part = await Connection(app, "/v1/completions", body).rest()
        assert start["status"] == 400
        error = json.loads(part["body"])["error"]
        assert (error["param"], error["code"]) == ("request_id", "duplicate_id")
        assert "job-1" in error["message"]
        engine.gate.set()
        assert (await first.rest())[0]["status"] == 200
        assert (await Connection(app, "/v1/completions", body).rest())[0]["status"] == 200

    asyncio.run(scenario())


def test_the_request_id_is_echoed(client, engine):
    response = client.complete(request_id="from-body")
    assert response.headers["x-request-id"] == "from-body"
    assert response.json()["id"] == "cmpl-from-body"
    assert engine.requests[0].request_id == "from-body"
    headers = {"X-Request-Id": "from-header"}
    response = client.post("/v1/completions", {"prompt": "x", "stream": True}, headers=headers)
    assert response.headers["x-request-id"] == "from-header"
    response = client.post("/v1/completions", {"prompt": ""}, headers=headers)
    assert (response.status_code, response.headers["x-request-id"]) == (400, "from-header")
    response = client.post("/v1/completions", {"prompt": "x"}, headers={"X-Request-Id": "a b"})
    assert response.json()["error"]["param"] == "X-Request-Id"
    assert client.complete().headers["x-request-id"]


def test_a_gateway_on_the_unix_socket_says_whose_share_pays_and_nobody_on_the_network(
    client, engine
):
    headers = {"X-Carpool-Person": "ada"}
    client.post("/v1/completions", {"prompt": "x"}, headers=headers)
    client.peer = None
    client.post("/v1/completions", {"prompt": "x"}, headers=headers)
    client.complete()
    assert [request.person_id for request in engine.requests] == ["", "ada", ""]


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (RequestRejected(RejectReason.EXCEEDS_KV_CACHE, "64 slots"), 400, "exceeds_kv_cache"),
        (
            RequestRejected(RejectReason.EXCEEDS_MAX_MODEL_LEN, "64 slots"),
            400,
            "context_length_exceeded",
        ),
        (RequestRejected(RejectReason.DUPLICATE_ID, "64 slots"), 400, "duplicate_id"),
        (QueueFull("64 slots", retry_after_s=3), 503, "queue_full"),
    ],
)
@pytest.mark.parametrize("fields", [{"stream": True}, {}, {"n": 2, "stream": True}, {"n": 2}])
def test_what_the_engine_refuses_has_its_own_status(client, engine, refusal, status, code, fields):
    engine.refusal = refusal
    response = client.complete(**fields)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["message"] == "64 slots"
    assert response.headers.get("retry-after") == ("3" if status == 503 else None)


def test_a_request_that_fails_in_the_engine_is_a_500(client, engine, script):
    engine.script = script("a", "", finish=FinishReason.ERROR, error="the step failed")
    response = client.chat()
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the step failed"
    assert response.json()["error"]["type"] == "server_error"


def test_a_stream_that_fails_ends_with_an_error_and_not_with_done(client, engine, script, events):
    engine.script = script("a", "", finish=FinishReason.ERROR, error="the step failed")
    data = events(client.chat(stream=True))
    assert data[-1]["error"]["message"] == "the step failed"
    assert "[DONE]" not in data


def test_one_failed_choice_ends_the_others(client, engine, script):
    failing = script("", "", finish=FinishReason.ERROR, error="the step failed")
    working = script("a", "b")
    engine.script = lambda r: (failing if r.request_id.endswith("-1") else working)(r)
    assert client.complete(n=2).status_code == 500


def test_a_request_the_server_ended_can_be_sent_again(client, engine, script):
    engine.script = script("a", "", finish=FinishReason.ABORT)
    response = client.chat()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "7"


def test_a_bug_is_a_500_in_the_same_shape(client, engine):
    engine.refusal = KeyError("secret")
    response = client.complete()
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text


def test_a_bug_in_a_stream_still_tells_the_client(client, engine, script, events):
    def broken(request):
        yield script("a", "b")(request)[0]
        raise KeyError("secret")

    engine.script = broken
    data = events(client.complete(stream=True))
    assert data[-1]["error"]["type"] == "server_error"
    assert "secret" not in json.dumps(data)


@pytest.mark.parametrize("state", [EngineState.LOADING, EngineState.DRAINING])
def test_generation_waits_while_the_engine_cannot(client, engine, state):
    engine.state = state
    for response in (client.chat(), client.complete(stream=True)):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "7"
        assert response.json()["error"]["code"] == state.value
    assert engine.requests == []


@pytest.mark.parametrize(
    ("state", "ready", "chat", "tokenize"),
    [
        (EngineState.LOADING, 503, 503, 503),
        (EngineState.READY, 200, 200, 200),
        (EngineState.DRAINING, 503, 503, 200),
        (EngineState.FAILED, 503, 500, 500),
    ],
)
def test_what_answers_in_which_state(client, engine, state, ready, chat, tokenize):
    engine.state = state
    assert client.get("/health").status_code == 200
    assert client.get("/version").status_code == 200
    assert client.get("/metrics").status_code == 200
    assert client.get("/v1/models").status_code == 200
    assert client.get("/ready").status_code == ready
    assert ("retry-after" in client.get("/ready").headers) is (ready == 503)
    assert client.chat().status_code == chat
    assert client.post("/tokenize", {"prompt": "ab"}).status_code == tokenize


def test_the_models_are_listed(client):
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny", "gpt-tiny"]
    assert listed["data"][0]["max_model_len"] == 2048
    assert listed["data"][0]["created"] == 1_700_000_000
    assert client.get("/v1/models/tiny").json() == listed["data"][0]
    assert client.get("/v1/models/else").json()["error"]["code"] == "model_not_found"


def test_a_wrong_path_or_method_has_openais_shape(client):
    assert "/v1/nothing" in client.get("/v1/nothing").json()["error"]["message"]
    response = client.get("/v1/completions")
    assert response.status_code == 405
    assert "GET" in response.json()["error"]["message"]


def test_tokens_go_there_and_back(client):
    answer = client.post("/tokenize", {"prompt": "aé", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": 2048,
        "tokens": [97, 0xC3, 0xA9],
        "token_strs": ["a", "\ufffd", "\ufffd"],
    }
    assert client.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "aé"}


def test_a_chat_is_tokenised_as_it_would_run(client, engine):
    client.chat("hi")
    tokens = client.post("/tokenize", CHAT).json()["tokens"]
    assert tuple(tokens) == engine.requests[0].prompt_token_ids


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", **CHAT}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "else"}, "model"),
        ("/detokenize", {"tokens": [257]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_tokenising_nonsense_is_refused(client, path, body, param):
    response = client.post(path, body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param
