"""Forwarding between real sockets: a client's HTTP, an ASGI server, the engine."""

import asyncio
import contextlib
import time

import httpx
import openai
import pytest
import uvicorn
from mock_engine import DONE, MODEL, MockEngine, Reply, chat_events, sse_reply

from carpool.backends.address import Address
from carpool.gateway.api_kind import kind_of_path
from carpool.gateway.client import Client
from carpool.gateway.forward import ModelRequest, Target, forward
from carpool.gateway.json_object import JsonObject
from carpool.gateway.upstream import Upstream

CHAT = "/v1/chat/completions"
STREAM = {"model": "fast", "stream": True, "messages": []}


class App:
    """Forwards everything to one engine, as `fast`."""

    def __init__(self, engine: MockEngine) -> None:
        self.target = Target(upstream=Upstream(Address.from_url(engine.url)), model=MODEL)
        self.results = []

    async def __call__(self, scope, receive, send):
        body = b""
        has_more = True
        while has_more:
            message = await receive()
            body += message["body"]
            has_more = message["more_body"]
        item = JsonObject.parse(body)
        request = ModelRequest(
            kind=kind_of_path(scope["path"]),
            path=scope["path"],
            headers=scope["headers"],
            body=item,
            model=item.fields["model"],
        )
        with Client(receive, send) as client:
            self.results.append(await forward(request, self.target, client))


@contextlib.asynccontextmanager
async def gateway(script):
    """The engine, the app and its address."""
    async with MockEngine(script) as engine:
        app = App(engine)
        config = uvicorn.Config(app, port=0, http="httptools", lifespan="off", log_level="critical")
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None
        task = asyncio.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield engine, app, f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = server.force_exit = True
            app.target.upstream.close()
            await task


def test_a_cut_reaches_the_client_as_an_error_and_a_broken_connection(run):
    events = chat_events(["a", "b"])
    received = []

    async def read(http):
        async with http.stream("POST", CHAT, json=STREAM) as response:
            assert response.status_code == 200
            async for piece in response.aiter_bytes():
                received.append(piece)

    async def scenario():
        reply = sse_reply([*events[:2], events[2][:20], b""], cut_after=3)
        async with gateway(reply) as (_, _, url), httpx.AsyncClient(base_url=url) as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await read(http)
        assert b"upstream_cut" in b"".join(received)
        assert b"[DONE]" not in b"".join(received)

    run(scenario())


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_hangs_up_frees_the_engine_within_a_second(run, is_stream):
    if is_stream:
        reply = sse_reply(chat_events(["a"] * 1000), piece_delay=0.02)
    else:
        reply = Reply(head_delay=60)

    async def scenario():
        async with gateway(reply) as (engine, app, url):
            port = int(url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            body = b'{"model":"fast","stream":%s}' % (b"true" if is_stream else b"false")
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await engine.until(lambda: bool(engine.requests))
            if is_stream:
                await reader.readuntil(b'"content":"a"')
            left_at = time.monotonic()
            writer.close()
            closed = await engine.has_closed()
            assert closed.at - left_at < 1.0
            while not app.results:
                await asyncio.sleep(0.001)
            assert app.results[0].how == "client_cancelled"

    run(scenario())


def test_the_openai_client_reads_streams_pings_and_errors(run):
    words = ["Hello ", "🚗", "!"]
    events = chat_events(words)
    pinged = [b": ping\n", events[0], b": ping\n\n", *events[1:]]
    script = [
        sse_reply(pinged, piece_delay=0.001),
        sse_reply([*events[:3], b""], cut_after=3),
        sse_reply([b'data: {"error":{"message":"too long","code":400}}\n\n', DONE]),
    ]

    async def ask(client):
        stream = await client.chat.completions.create(model="fast", messages=[], stream=True)
        return [chunk async for chunk in stream]

    async def scenario():
        async with (
            gateway(script) as (_, _, url),
            openai.AsyncOpenAI(base_url=url + "/v1", api_key="cp-x", max_retries=0) as client,
        ):
            chunks = await ask(client)
            assert [chunk.choices[0].delta.content for chunk in chunks] == ["", *words, None]
            assert {chunk.model for chunk in chunks} == {"fast"}
            with pytest.raises(openai.APIError, match="closed the connection"):
                await ask(client)
            with pytest.raises(openai.BadRequestError, match="too long"):
                await ask(client)

    run(scenario())
