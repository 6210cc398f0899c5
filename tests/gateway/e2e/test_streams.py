"""What a stream looks like on the other side of the gateway."""

import json

import openai
import pytest
from gateway_process import ALIAS, CHAT, MODEL, body, chunks_of, raw_answer, read_until_cut, until
from mock_engine import (
    DONE,
    SSE,
    Reply,
    chat_body,
    chat_events,
    dumps,
    event,
    json_reply,
    sse_reply,
    usage,
)

COMPLETIONS = "/v1/completions"
TEXT = "naïve — 日本語 👩‍👩‍👧 🎉"


def completion_events(words, *, has_usage):
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
    events = [event({**head, "choices": [{"index": 0, "text": word}]}) for word in words]
    if has_usage:
        events.append(event({**head, "choices": [], "usage": usage(3, len(words))}))
    return [*events, DONE]


def by_option(events_of):
    """An engine that reports usage to those who ask."""

    def script(request):
        options = request.json.get("stream_options") or {}
        return sse_reply(events_of(has_usage=bool(options.get("include_usage"))))

    return script


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("is_asked", [False, True])
def test_usage_is_always_accounted_and_shown_to_those_who_asked(gateway, engine, path, is_asked):
    ada = gateway.add_person()
    make = chat_events if path == CHAT else completion_events
    engine.script = by_option(lambda has_usage: make(["a", "b", "c"], has_usage=has_usage))
    options = {"stream_options": {"include_usage": True}} if is_asked else {}
    with ada.stream(path, **options) as response:
        chunks = chunks_of(response.read().decode())
    assert engine.asked[0].json["stream_options"] == {"include_usage": True}
    without_choices = [chunk for chunk in chunks if chunk != "[DONE]" and not chunk["choices"]]
    assert len(without_choices) == is_asked
    assert chunks[-1] == "[DONE]"
    row = gateway.row(ada)
    assert (row["output_tokens"], row["usage_source"]) == (3, "reported")


def test_usage_that_is_null_in_every_chunk_but_one_is_that_one(gateway, engine):
    ada = gateway.add_person()
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": None},
        {"choices": [], "usage": usage(11, 22, cached=4)},
        {"choices": [], "usage": None},
    ]
    engine.script = sse_reply([*map(event, chunks), DONE])
    with ada.stream() as response:
        response.read()
    row = gateway.row(ada)
    assert (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"]) == (11, 4, 22)
    assert row["usage_source"] == "reported"


def test_a_stream_that_was_cut_ends_with_an_error_and_not_as_if_it_were_whole(gateway, engine):
    ada = gateway.add_person()
    events = chat_events(["word "] * 60)
    engine.script = sse_reply(events, cut_after=40, piece_delay=0.001)
    with ada.stream() as response:
        chunks = chunks_of(read_until_cut(response).decode())
    assert "[DONE]" not in chunks
    assert len(chunks) == 41
    assert chunks[-1]["error"]["code"] == "upstream_cut"
    row = gateway.row(ada)
    assert (row["outcome"], row["usage_source"]) == ("upstream_cut", "estimated")
    assert "without completing" not in gateway.log.read_text()
    assert row["output_tokens"] == 39


def test_an_event_that_was_cut_in_two_is_not_merged_with_the_error(gateway, engine):
    ada = gateway.add_person()
    first, half = event({"choices": []}), event({"choices": [{"index": 0}]})[:19]
    engine.script = sse_reply([first, half], cut_after=2)
    with ada.stream() as response:
        content = read_until_cut(response)
    events = content.split(b"\n\n")
    assert json.loads(events[-2].removeprefix(b"data: "))["error"]["code"] == "upstream_cut"
    assert events[0] + b"\n\n" == first


@pytest.mark.parametrize("status", [400, 404, 429, 503])
def test_an_error_before_the_first_byte_keeps_its_status(gateway, engine, status):
    error = {"error": {"message": "no", "type": "x", "code": status}}
    engine.script = json_reply(error, status, headers=(("retry-after", "7"),))
    response = gateway.visitor.ask(stream=True)
    assert response.status_code == status
    assert response.json() == error
    assert response.headers["retry-after"] == "7"
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    "error",
    [
        {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400},
        {"error": {"message": "too long", "type": "BadRequestError", "code": 400}},
    ],
)
def test_an_error_as_the_first_event_becomes_an_answer_with_its_status(gateway, engine, error):
    engine.script = sse_reply([b": hello\n\n", event(error), DONE])
    response = gateway.visitor.ask(stream=True)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["message"] == "too long"


def test_text_that_is_split_anywhere_arrives_as_it_was(gateway, engine):
    chunk = {"choices": [{"index": 0, "delta": {"content": TEXT}}]}
    whole = event(chunk) + DONE
    splits = [(whole[:at], whole[at:]) for at in range(1, len(whole))]
    splits.append(tuple(whole[at : at + 1] for at in range(len(whole))))
    engine.script = [sse_reply(pieces) for pieces in splits]
    for _ in splits:
        with gateway.visitor.stream() as response:
            assert response.read() == whole


def test_every_chunk_goes_on_as_it_comes(gateway, engine):
    reply = sse_reply(chat_events(["first", "second"]), stall_after=2)
    with engine.holding(reply) as released, gateway.visitor.stream() as response:
        lines = response.iter_lines()
        assert any("first" in line for line in lines)
        released.set()
        assert any("second" in line for line in lines)


def test_nothing_on_the_way_is_told_to_hold_a_stream_back(gateway, engine):
    with gateway.visitor.stream(headers={"accept-encoding": "gzip, br"}) as response:
        response.read()
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in response.headers
    assert "accept-encoding" not in engine.asked[0].headers


def test_comments_of_the_engine_go_through_untouched(gateway, engine):
    pieces = [b": ping\n\n", *chat_events(["a"]), b": ping\n"]
    engine.script = sse_reply(pieces)
    with gateway.visitor.stream(stream_options={"include_usage": True}) as response:
        assert response.read() == b"".join(pieces)


def test_parallel_tool_calls_are_unchanged(gateway, engine):
    def call(index, **fields):
        return {"index": index, "type": "function", "function": fields}

    deltas = [
        [{**call(0, name="a", arguments=""), "id": "call_a"}],
        [{**call(1, name="b", arguments=""), "id": "call_b"}],
        [call(0, arguments='{"x":'), call(1, arguments='{"y":')],
        [call(1, arguments="2}")],
        [call(0, arguments="1}")],
    ]
    events = [
        event({"model": MODEL, "choices": [{"index": 0, "delta": {"tool_calls": calls}}]})
        for calls in deltas
    ]
    engine.script = sse_reply([*events, DONE])
    with gateway.visitor.stream() as response:
        assert response.read() == b"".join([*events, DONE])


def test_an_unknown_field_and_its_spelling_reach_the_engine(gateway, engine):
    fields = b'"messages":[],"seed" : 1e2,\n "guided_regex":"\\u00e9+","future":{"b":1, "a":2}'
    content = b'{"model":"%s",%s}' % (MODEL.encode(), fields)
    assert gateway.visitor.ask(content=content).status_code == 200
    assert engine.asked[0].body == content


@pytest.mark.parametrize("is_stream", [False, True])
def test_who_asks_by_an_alias_is_answered_by_it(gateway, engine, is_stream):
    ada = gateway.add_person()
    response = ada.ask(model=ALIAS, stream=is_stream)
    assert engine.asked[0].json["model"] == MODEL
    answers = chunks_of(response.text)[:-1] if is_stream else [response.json()]
    assert {each["model"] for each in answers} == {ALIAS}
    assert response.headers["x-carpool-model"] == MODEL
    assert gateway.row(ada)["model"] == ALIAS


def test_nothing_is_sent_again_after_the_first_byte(gateway, engine):
    events = chat_events(["word "] * 9)
    engine.script = [sse_reply(events, cut_after=5), sse_reply(events)]
    with gateway.visitor.stream() as response:
        read_until_cut(response)
    until(lambda: gateway.is_idle)
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    "reply",
    [
        json_reply({"error": {"message": "busy"}}, 429),
        json_reply({"error": {"message": "broken"}}, 500),
        Reply(raw=b"HTTP/1.1 200"),
        Reply(headers=SSE, pieces=(), cut_after=0),
    ],
    ids=["429", "500", "half an answer", "no event"],
)
def test_an_engine_that_fails_is_not_asked_twice(gateway, engine, reply):
    engine.script = reply
    assert gateway.visitor.ask(stream=True).status_code >= 429
    assert len(engine.asked) == 1


def test_a_plain_answer_is_passed_on_byte_for_byte(gateway, engine):
    content = json.dumps(chat_body(TEXT, model=MODEL), indent=1, ensure_ascii=False).encode()
    engine.script = Reply(pieces=(content[:40], content[40:]))
    assert gateway.visitor.ask().content == content


def test_who_waits_in_the_queue_gets_signs_of_life_that_the_openai_client_survives(gateway, engine):
    ada = gateway.add_person(max_in_flight=1)
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=ada.key, max_retries=0) as client,
        engine.holding() as released,
    ):
        first = ada.start()
        until(lambda: gateway.num_in_flight == 1)
        stream = client.chat.completions.create(
            **body(stream=True, max_tokens=3), extra_headers={"x-carpool-heartbeat": "1"}
        )
        assert gateway.num_waiting == 1
        released.set()
        words = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
        assert first.result().status_code == 200
    assert words.count("word ") == 3


def test_a_sign_of_life_is_one_line_that_ends_no_event(gateway, engine):
    ada = gateway.add_person(max_in_flight=1)
    with engine.holding() as released:
        first = ada.start()
        until(lambda: gateway.num_in_flight == 1)
        with ada.stream(headers={"x-carpool-heartbeat": "1"}) as response:
            assert response.status_code == 200
            pieces = response.iter_bytes()
            assert next(pieces).startswith(b": ")
            released.set()
            rest = b"".join(pieces)
        first.result()
    assert chunks_of(rest.decode())[-1] == "[DONE]"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(
            status=500,
            headers=(("content-type", "text/plain"),),
            pieces=(b"Internal Server Error",),
        ),
        json_reply({"error": {"message": "Internal Server Error"}}, 500),
    ],
    ids=["text", "json"],
)
def test_an_error_of_the_engine_after_signs_of_life_is_an_event(gateway, engine, reply):
    ada = gateway.add_person(max_in_flight=1)
    with engine.holding() as released:
        first = ada.start()
        until(lambda: gateway.num_in_flight == 1)
        with ada.stream(headers={"x-carpool-heartbeat": "1"}) as response:
            pieces = response.iter_bytes()
            assert next(pieces).startswith(b": ")
            engine.script = reply
            released.set()
            rest = b"".join(pieces)
        first.result()
    (chunk,) = chunks_of(rest.decode())
    assert "Internal Server Error" in chunk["error"]["message"]


def test_the_connection_of_a_stream_that_was_cut_is_closed(gateway, engine):
    engine.script = sse_reply(chat_events(["a", "b", "c"]), cut_after=2)
    content = dumps(body(stream=True))
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.visitor.key}\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    answer = raw_answer(gateway, head.encode() + content)
    assert b'"error"' in answer
    assert not answer.endswith(b"0\r\n\r\n")
