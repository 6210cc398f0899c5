import asyncio
import json

import pytest
from mock_engine import (
    DONE,
    JSON,
    MODEL,
    SSE,
    MockEngine,
    Reply,
    chat_body,
    chat_events,
    dumps,
    event,
    json_reply,
    sse_reply,
    usage,
)

from carpool.backends.address import Address
from carpool.gateway.api_kind import ApiKind, kind_of_path
from carpool.gateway.client import Client
from carpool.gateway.forward import ModelRequest, Target, ask, forward
from carpool.gateway.json_object import JsonObject
from carpool.gateway.upstream import Upstream
from carpool.gateway.upstream_errors import (
    ConnectFailed,
    CutOff,
    FirstByteLate,
    How,
    Timeouts,
    UpstreamError,
)
from carpool.gateway.usage_sniffer import Usage

CHAT = "/v1/chat/completions"
SHORT = 0.05


def target_of(engine: MockEngine, **options) -> Target:
    return Target(upstream=Upstream(Address.from_url(engine.url)), **options)


def request_of(fields, path: str = CHAT, **options) -> ModelRequest:
    body = fields if isinstance(fields, JsonObject) else JsonObject.parse(dumps(fields))
    return ModelRequest(
        kind=kind_of_path(path),
        path=path,
        body=body,
        model=body.fields.get("model", ""),
        **{"prompt_estimate": 50, **options},
    )


async def send(engine, asgi, fields, path=CHAT, extra_headers=(), target=None, **options):
    with Client(asgi.receive, asgi.send) as client:
        request = request_of(fields, path, **options)
        return await forward(request, target or target_of(engine), client, extra_headers)


@pytest.fixture
def through(run, new_client):
    """What a client gets, and how it went, for one request to an engine with this script."""

    def go(script, fields, path=CHAT, target=None, **options):
        async def scenario():
            async with MockEngine(script) as engine:
                asgi = new_client()
                made = target_of(engine, **(target or {}))
                forwarded = await send(engine, asgi, fields, path, target=made, **options)
                return asgi, forwarded, engine.requests[0]

        return run(scenario())

    return go


# Bytes through


def test_an_answer_passes_byte_by_byte(through):
    raw = b'{ "id":1,\n "model" : "m", "x":[1.0e2,"\\u00e9"], '
    raw += b'"usage":{"prompt_tokens":3,"completion_tokens":4}}\n'
    body = JsonObject.parse(b'{"model": "m", "unknown" : [1.50, "\xc3\xa9"]}')

    asgi, forwarded, request = through(Reply(pieces=(raw,)), body)

    assert asgi.body == raw
    assert request.body == body.raw
    assert asgi.headers["content-length"] == str(len(raw))
    assert asgi.headers["content-type"] == "application/json"
    assert (asgi.status, forwarded.status, forwarded.how) == (200, 200, How.COMPLETED)
    assert forwarded.usage == Usage(3, 0, 4, "reported")


def test_a_stream_passes_byte_by_byte_wherever_it_was_cut(run, new_client):
    events = [
        b": ping\n\n",
        *chat_events(["🚗 ", "é", "日本"]),
    ]
    stream = b"".join(events)

    async def scenario():
        async with MockEngine() as engine:
            target = target_of(engine)
            for at in range(1, len(stream)):
                engine.script = Reply(headers=SSE, pieces=(stream[:at], stream[at:]))
                asgi = new_client()
                fields = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}}
                forwarded = await send(engine, asgi, fields, target=target)
                assert asgi.body == stream
                assert asgi.is_finished
                assert forwarded.usage == Usage(7, 0, 3, "reported")

    run(scenario())


def test_every_event_goes_when_it_comes(run, new_client):
    events = chat_events(["a", "b", "c"], has_usage=False)

    async def scenario():
        async with MockEngine(sse_reply(events, piece_delay=0.01)) as engine:
            asgi = new_client()
            await send(engine, asgi, {"model": MODEL, "stream": True})
            assert asgi.pieces == events

    run(scenario())


def test_parallel_tool_calls_pass_unchanged(through):
    def call(index, identity, arguments):
        function = {"name": f"f{index}", "arguments": arguments}
        tool = {"index": index, "id": identity, "type": "function", "function": function}
        return event({"choices": [{"index": 0, "delta": {"tool_calls": [tool]}}]})

    events = [call(0, "a", '{"x"'), call(1, "b", "{}"), call(0, None, ":1}"), DONE]
    asgi, _, _ = through(sse_reply(events), {"model": MODEL, "stream": True})
    assert asgi.body == b"".join(events)


def test_a_stream_is_marked_for_the_proxies_on_its_way(through):
    asgi, _, _ = through(
        sse_reply(chat_events(["a"])),
        {"model": MODEL, "stream": True},
        extra_headers=[(b"x-carpool-queue-ms", b"3")],
    )
    assert asgi.headers["x-accel-buffering"] == "no"
    assert asgi.headers["cache-control"] == "no-cache"
    assert asgi.headers["content-type"].startswith("text/event-stream")
    assert asgi.headers["x-carpool-queue-ms"] == "3"
    assert "content-length" not in asgi.headers


def test_what_is_neither_json_nor_events_passes_as_it_comes(through):
    reply = Reply(headers=(("content-type", "audio/wav"),), pieces=(b"\x00\xff", b"RIFF"))
    asgi, forwarded, _ = through(reply, {"model": MODEL}, path="/v1/audio/speech")
    assert asgi.body == b"\x00\xffRIFF"
    assert forwarded.how is How.COMPLETED


def test_the_client_s_key_stays_here(through):
    headers = [
        (b"authorization", b"Bearer cp-abc-secret"),
        (b"x-api-key", b"cp-abc-secret"),
        (b"content-type", b"application/json"),
    ]
    _, _, request = through(
        json_reply(chat_body("a")), {"model": MODEL}, headers=headers, target={"key": "engine-key"}
    )
    assert request.headers["authorization"] == "Bearer engine-key"
    assert "cp-abc" not in json.dumps(request.headers)
    assert request.headers["content-type"] == "application/json"


def test_fields_are_changed_on_the_way_up(through):
    fields = {"model": MODEL, "max_completion_tokens": 4096, "priority": -9}
    _, _, request = through(
        json_reply(chat_body("a")),
        fields,
        changes={"max_tokens": 100},
        renames={"max_completion_tokens": "max_tokens"},
        removals=("priority",),
    )
    assert request.json == {"model": MODEL, "max_tokens": 100}


# Names


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_alias_is_what_the_client_sees(through, is_stream):
    script = (
        sse_reply(chat_events(["a"], model=MODEL))
        if is_stream
        else json_reply(chat_body("a", model=MODEL))
    )
    asgi, forwarded, request = through(
        script, {"model": "fast", "stream": is_stream}, target={"model": MODEL}
    )
    assert request.json["model"] == MODEL
    assert MODEL.encode() not in asgi.body
    assert b'"model":"fast"' in asgi.body
    assert asgi.headers["x-carpool-model"] == MODEL
    assert forwarded.model == MODEL


# Usage


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("asked", [None, False, True])
def test_usage_is_always_accounted_and_shown_to_who_asked(through, path, asked):
    events = chat_events(["a", "b"])
    fields = {"model": MODEL, "stream": True}
    if asked is not None:
        fields["stream_options"] = {"include_usage": asked}

    asgi, forwarded, request = through(sse_reply(events), fields, path)

    assert request.json["stream_options"] == {"include_usage": True}
    assert forwarded.usage == Usage(7, 0, 2, "reported")
    assert asgi.body.count(b'"choices":[]') == (1 if asked else 0)
    assert asgi.body.endswith(DONE)


def test_an_engine_that_knows_no_stream_usage_is_not_asked_for_it(through):
    events = chat_events(["a", "b"], has_usage=False)
    _, forwarded, request = through(
        sse_reply(events), {"model": MODEL, "stream": True}, target={"has_stream_usage": False}
    )
    assert "stream_options" not in request.json
    assert forwarded.usage == Usage(50, 0, 2, "estimated")


def test_embeddings_are_accounted(through):
    body = {"data": [{"embedding": [0.1] * 100}], "model": MODEL, "usage": {"prompt_tokens": 9}}
    asgi, forwarded, _ = through(json_reply(body), {"model": MODEL}, path="/v1/embeddings")
    assert asgi.body == dumps(body)
    assert forwarded.usage == Usage(9, 0, 0, "reported")


# Errors before the first byte


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_engine_s_error_keeps_its_status(through, status):
    error = {"error": {"message": "no"}}
    reply = json_reply(error, status, headers=(*JSON, ("retry-after", "7")))
    asgi, forwarded, _ = through(reply, {"model": MODEL, "stream": True})
    assert (asgi.status, asgi.body) == (status, dumps(error))
    assert asgi.headers["retry-after"] == "7"
    assert forwarded.how is (How.UPSTREAM_ERROR if status >= 500 else How.COMPLETED)
    assert forwarded.usage == Usage(0, 0, 0, "reported")


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (event({"error": {"message": "too long", "code": 400}}), 400),
        (event({"error": {"message": "x", "type": "rate_limit_error", "code": "slow"}}), 429),
        (event({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}), 400),
        (event({"type": "error", "error": {"type": "overloaded_error"}}, "error"), 503),
        (event({"error": "broken"}), 502),
        (b": ping\n\n: ping\n\n" + event({"error": {"message": "x"}}), 502),
    ],
)
def test_an_error_as_first_event_gets_a_status(through, first, status):
    asgi, forwarded, _ = through(sse_reply([first, DONE]), {"model": MODEL, "stream": True})
    assert asgi.status == forwarded.status == status
    assert asgi.headers["content-type"] == "application/json"
    assert "error" in json.loads(asgi.body)
    assert asgi.is_finished
    assert forwarded.how is (How.UPSTREAM_ERROR if status >= 500 else How.COMPLETED)


def test_a_first_event_that_only_talks_of_errors_is_none(through):
    events = [event({"choices": [{"delta": {"content": '"error"'}}], "error": None}), DONE]
    asgi, _, _ = through(sse_reply(events), {"model": MODEL, "stream": True})
    assert asgi.status == 200
    assert asgi.body == b"".join(events)


def test_a_first_event_that_is_long_is_not_waited_for(run, new_client):
    long = event({"choices": [{"delta": {"content": "x" * 20_000}}]})

    async def scenario():
        async with MockEngine(Reply(headers=SSE, pieces=(long[:10_000],), stall_after=1)) as engine:
            answer = await ask(request_of({"model": MODEL, "stream": True}), target_of(engine))
            assert answer.status == 200
            answer.close()

    run(scenario())


@pytest.mark.parametrize(
    ("reply", "timeouts", "error"),
    [
        (Reply(head_delay=60), Timeouts(first_byte=SHORT), FirstByteLate),
        (sse_reply([b": ping\n\n"], stall_after=1), Timeouts(first_byte=SHORT), FirstByteLate),
        (
            sse_reply([b": ping\n\n"] * 40, piece_delay=SHORT / 5),
            Timeouts(first_byte=2 * SHORT),
            FirstByteLate,
        ),
        (Reply(cut_after=0), Timeouts(), CutOff),
        (sse_reply([b": ping\n\n"], cut_after=1), Timeouts(), CutOff),
        (Reply(pieces=(b'{"a"', b":1}"), cut_after=1), Timeouts(), CutOff),
        (sse_reply([b": ping\n\n"], framing="close"), Timeouts(), CutOff),
        (Reply(pieces=(b'{"choices": [',), framing="close"), Timeouts(), CutOff),
    ],
)
def test_nothing_is_sent_when_the_engine_fails_first(run, new_client, reply, timeouts, error):
    async def scenario():
        async with MockEngine(reply) as engine:
            asgi = new_client()
            with pytest.raises(error):
                await send(
                    engine,
                    asgi,
                    {"model": MODEL, "stream": True},
                    target=target_of(engine, timeouts=timeouts),
                )
            assert asgi.status is None

    run(scenario())


def test_an_engine_that_is_not_there(run, new_client):
    async def scenario():
        target = Target(upstream=Upstream(Address("127.0.0.1", 1)))
        with pytest.raises(ConnectFailed):
            await send(None, new_client(), {"model": MODEL}, target=target)

    run(scenario())


# After the first byte


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_a_cut_stream_ends_as_an_error_and_not_as_an_end(through, framing):
    events = chat_events(["a", "b", "c"])
    half = events[3][:25]
    reply = sse_reply([*events[:3], half, b""], cut_after=4, framing=framing)

    asgi, forwarded, _ = through(reply, {"model": MODEL, "stream": True})

    whole = b"".join(events[:3])
    assert asgi.body.startswith(whole)
    (error,) = asgi.body[len(whole) :].removesuffix(b"\n\n").split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "upstream_cut"
    assert b"[DONE]" not in asgi.body
    assert not asgi.is_finished
    assert forwarded.how is How.UPSTREAM_CUT
    assert forwarded.usage == Usage(50, 0, 2, "estimated")


def test_the_last_event_needs_no_blank_line_where_the_stream_ends_with_its_connection(through):
    events = chat_events(["a"])
    assert events[-1].startswith(b"data: [DONE]")
    bare = [*events[:-1], b"data: [DONE]"]
    asgi, forwarded, _ = through(sse_reply(bare, framing="close"), {"model": MODEL, "stream": True})
    assert asgi.body.endswith(b"data: [DONE]")
    assert asgi.is_finished
    assert forwarded.how is How.COMPLETED


def test_a_cut_after_the_last_event_is_an_end(through):
    events = chat_events(["a"])
    asgi, forwarded, _ = through(
        sse_reply([*events, b": x\n"], cut_after=len(events)), {"model": MODEL, "stream": True}
    )
    assert forwarded.how is How.COMPLETED
    assert asgi.is_finished


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/messages", ApiKind.MESSAGES), ("/v1/responses", ApiKind.RESPONSES)]
)
def test_a_cut_is_told_in_the_words_of_the_api(through, path, kind):
    reply = sse_reply([event({"type": "x"}, "x"), b""], cut_after=1)
    asgi, _, request = through(reply, {"model": MODEL, "stream": True}, path)
    assert b"stream_options" not in request.body
    last = asgi.body.split(b"\n\n")[-2]
    name, data = last.split(b"\n")
    assert name == b"event: error"
    body = json.loads(data.removeprefix(b"data: "))
    assert body["type"] == "error"
    assert "message" in body["error"]
    assert kind_of_path(path) is kind


def test_a_pause_that_is_too_long_is_named(through):
    events = chat_events(["a"])
    asgi, forwarded, _ = through(
        sse_reply(events, stall_after=2),
        {"model": MODEL, "stream": True},
        target={"timeouts": Timeouts(idle=SHORT)},
    )
    assert forwarded.how is How.IDLE_TIMEOUT
    assert b"idle timeout" in asgi.body
    assert "idle timeout" in forwarded.message


def test_an_error_event_within_a_stream_passes_and_counts_as_one(through):
    events = [*chat_events(["a"])[:2], event({"error": {"message": "oom", "code": 500}}), DONE]
    asgi, forwarded, _ = through(sse_reply(events), {"model": MODEL, "stream": True})
    assert asgi.body == b"".join(events)
    assert forwarded.how is How.UPSTREAM_ERROR


def test_malformed_chunks_within_a_stream_are_a_failure(through):
    first = chat_events(["a"])[0]
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    raw = head + b"%x\r\n%s\r\n" % (len(first), first) + b"oops\r\n"
    asgi, forwarded, _ = through(Reply(raw=raw), {"model": MODEL, "stream": True})
    assert forwarded.how is How.UPSTREAM_MALFORMED
    assert asgi.body.startswith(first)
    assert not asgi.is_finished


def test_the_gateway_can_end_an_answer_itself(run, new_client):
    async def scenario():
        async with MockEngine(sse_reply(chat_events(["a", "b"]), stall_after=2)) as engine:
            asgi = new_client()
            with Client(asgi.receive, asgi.send) as client:
                answer = await ask(request_of({"model": MODEL, "stream": True}), target_of(engine))
                asgi.on_piece = lambda piece: answer.stop("the key was revoked")
                forwarded = await answer.relay(client)
            assert forwarded.how is How.STOPPED
            assert b"the key was revoked" in asgi.body
            assert not asgi.is_finished
            await engine.has_closed(within=1)

    run(scenario())


# A client that goes


@pytest.mark.parametrize("num_seen", [0, 1, 3])
def test_a_client_that_leaves_a_stream_closes_it_upstream(run, new_client, num_seen):
    events = chat_events(["a"] * 500, has_usage=False)

    async def scenario():
        async with MockEngine(sse_reply(events, piece_delay=0.01)) as engine:
            asgi = new_client()

            def count(piece):
                if len(asgi.pieces) == num_seen + 1:
                    asgi.go()

            asgi.on_piece = count
            forwarded = await send(engine, asgi, {"model": MODEL, "stream": True})
            closed = await engine.has_closed(within=1)
            assert closed.num_pieces < 20
            assert forwarded.how is How.CLIENT_CANCELLED
            assert forwarded.usage == Usage(50, 0, num_seen, "estimated")
            await engine.until(lambda: engine.num_replying == 0)

    run(scenario())


@pytest.mark.parametrize(
    "reply",
    [
        Reply(head_delay=60),
        Reply(pieces=(b"{}",), first_byte_delay=60),
        Reply(pieces=(b"{", b"}"), stall_after=1),
        sse_reply([b": ping\n\n"], stall_after=1),
    ],
)
def test_a_client_that_leaves_before_the_answer_closes_it_upstream(run, new_client, reply):
    async def scenario():
        async with MockEngine(reply) as engine:
            asgi = new_client()
            task = asyncio.create_task(send(engine, asgi, {"model": MODEL}))
            await engine.until(lambda: bool(engine.requests))
            asgi.go()
            forwarded = await task
            await engine.has_closed(within=1)
            assert (forwarded.status, forwarded.how) == (499, How.CLIENT_CANCELLED)
            assert forwarded.usage == Usage(50, 0, 0, "estimated")

    run(scenario())


def test_a_client_who_does_not_read_holds_the_engine_back(run, new_client):
    words = ["x" * 50_000] * 200

    async def scenario():
        async with MockEngine(sse_reply(chat_events(words, has_usage=False))) as engine:
            asgi = new_client()
            asgi.can_take.clear()
            task = asyncio.create_task(send(engine, asgi, {"model": MODEL, "stream": True}))
            await engine.until(lambda: bool(engine.requests))
            (connection,) = engine._open
            while connection._can_write.is_set():
                await asyncio.sleep(0.001)
            assert connection._num_pieces < len(words)
            asgi.can_take.set()
            assert (await task).how is How.COMPLETED
            assert asgi.body == b"".join(chat_events(words, has_usage=False))

    run(scenario())


def test_cancelling_from_outside_closes_the_engine_s_connection(run, new_client):
    async def scenario():
        async with MockEngine(sse_reply(chat_events(["a"]), stall_after=2)) as engine:
            asgi = new_client()
            task = asyncio.create_task(send(engine, asgi, {"model": MODEL, "stream": True}))
            while not asgi.pieces:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await engine.has_closed(within=1)

    run(scenario())


# A stream that was begun while the request was waiting


def test_an_answer_goes_into_a_stream_that_was_begun(run, new_client):
    events = chat_events(["a"], has_usage=False)
    error = {"error": {"message": "no", "code": 503}}

    async def scenario():
        async with MockEngine([sse_reply(events), json_reply(error, 503)]) as engine:
            for expected in (b"".join(events), event(error)):
                asgi = new_client()
                with Client(asgi.receive, asgi.send) as client:
                    await client.start(200, [(b"content-type", b"text/event-stream")])
                    await client.write(b": waiting\n")
                    request = request_of({"model": MODEL, "stream": True})
                    await forward(request, target_of(engine), client)
                assert asgi.body == b": waiting\n" + expected
                assert asgi.is_finished

    run(scenario())


def test_many_requests_leave_nothing_behind(run, new_client):
    events = chat_events(["a"] * 5)

    async def scenario():
        async with MockEngine(sse_reply(events)) as engine:
            target = target_of(engine)
            before = len(asyncio.all_tasks())

            async def one(number):
                asgi = new_client()
                if number % 3 == 0:
                    asgi.on_piece = lambda piece: asgi.go()
                try:
                    return await send(engine, asgi, {"model": MODEL, "stream": True}, target=target)
                except UpstreamError:
                    pytest.fail("the engine is well")

            results = await asyncio.gather(*(one(number) for number in range(120)))
            assert {each.how for each in results} <= {How.COMPLETED, How.CLIENT_CANCELLED}
            target.upstream.close()
            await engine.until(lambda: engine.num_replying == 0 and not engine._open)
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) <= before

    run(scenario())


def test_usage_reported_before_a_cut_counts(through):
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": usage(7, 1)}
    _, forwarded, _ = through(
        sse_reply([event(chunk), b""], cut_after=1), {"model": MODEL, "stream": True}
    )
    assert forwarded.usage == Usage(7, 0, 1, "reported")
