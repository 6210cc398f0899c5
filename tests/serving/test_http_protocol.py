"""Connections with requests that never end, in length or in time."""

import asyncio
import re

import pytest

from carpool.serving import http_protocol as module
from carpool.serving.http_server import http_server, run
from carpool.serving.listen import Address, listening

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"


async def count(scope, receive, send):
    """Answers with the length of the body."""
    num_bytes, has_more = 0, True
    while has_more:
        message = await receive()
        num_bytes += len(message.get("body", b""))
        has_more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d bytes" % num_bytes})


def exchange(*parts, until=b"", app=count):
    """Send `parts` one after the other; what comes back, up to `until` or the end."""

    async def main():
        with listening(Address(port=0)) as listener:
            async with http_server(app, listener):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                answer = b""
                try:
                    for part in parts:
                        writer.write(part)
                        await writer.drain()
                    answer = await (reader.readuntil(until) if until else reader.read())
                except ConnectionError:
                    pass
                finally:
                    writer.close()
                return answer

    return run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD + b"x: ", *[b"a" * 4096] * 4096],
        [HEAD, *[b"a: b\r\n" * 500] * 4096],
        [b"GET /", *[b"a" * 4096] * 4096],
        [CHUNKED + b"0\r\n", *[b"a: b\r\n" * 500] * 4096],
    ],
    ids=["one header", "many headers", "path", "trailers"],
)
def test_a_head_without_end_is_not_kept(parts):
    exchange(*parts)  # which would wait for ever for an answer


@pytest.mark.parametrize(
    "parts", [[], [b"GET /"], [HEAD], [HEAD + b"content-length: 9\r\n\r\n1234"], [CHUNKED + CHUNK]]
)
def test_a_request_that_does_not_come_to_its_end_is_cut_off(parts, monkeypatch):
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.1)
    assert exchange(*parts) == b""


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD + b"content-length: 8388608\r\n\r\n", *[b"a" * 65536] * 128],
        [CHUNKED, *[CHUNK] * 128, b"0\r\n\r\n"],
        [CHUNKED, *[b"1\r\na\r\n" * 1024] * 64, b"0\r\n\r\n"],
        [HEAD + b"x: " + b"a" * 60_000 + b"\r\n\r\n"],
    ],
    ids=["length", "chunks", "small chunks", "long header"],
)
def test_long_bodies_and_usual_heads_pass(parts):
    assert exchange(*parts, until=b" bytes").startswith(b"HTTP/1.1 200")


def test_requests_in_a_row_are_answered_in_a_row():
    parts = [HEAD + b"content-length: %d\r\n\r\n" % n + b"a" * n for n in range(8)]
    answer = exchange(b"".join(parts), until=b"7 bytes")
    assert re.findall(rb"(\d) bytes", answer) == [b"%d" % n for n in range(8)]


def test_requests_without_end_are_not_kept():
    started = []

    async def wait(scope, receive, send):
        started.append(scope["path"])
        while (await receive())["type"] != "http.disconnect":
            pass

    assert exchange(*[HEAD + b"content-length: 0\r\n\r\n"] * 100, app=wait) == b""
    assert started == ["/"]


@pytest.mark.parametrize("size", [1, 7, 65536])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_who_offers_another_protocol_is_answered_in_this_one(protocol, size):
    request = (
        HEAD + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %s\r\nhttp2-settings: AAMAAABk\r\n"
        b"content-length: 5\r\n\r\nhello" % protocol
    )
    both = request + request.replace(b"5\r\n\r\nhello", b"6\r\n\r\nhello!")
    parts = [both[at : at + size] for at in range(0, len(both), size)]
    answer = exchange(*parts, until=b"6 bytes")
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"5 bytes" in answer


async def talk(scope, receive, send):
    """Answers without end, until the client has gone."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    gone = asyncio.create_task(receive())
    while not gone.done():
        await send({"type": "http.response.body", "body": b"a" * 65536, "more_body": True})
    scope["state"]["ends"].set()


def test_a_client_that_does_not_read_is_gone(monkeypatch):
    monkeypatch.setattr(module, "WRITE_TIMEOUT_S", 0.2)

    async def main():
        ends = asyncio.Event()

        async def app(scope, receive, send):
            await talk({**scope, "state": {"ends": ends}}, receive, send)

        with listening(Address(port=0)) as listener:
            async with http_server(app, listener):
                _, writer = await asyncio.open_connection(*listener.getsockname(), limit=1)
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                await ends.wait()
                writer.close()

    run(asyncio.wait_for(main(), 20))


def test_a_client_that_reads_slowly_stays(monkeypatch):
    monkeypatch.setattr(module, "WRITE_TIMEOUT_S", 2.0)

    async def main():
        ends = asyncio.Event()

        async def app(scope, receive, send):
            await talk({**scope, "state": {"ends": ends}}, receive, send)

        with listening(Address(port=0)) as listener:
            async with http_server(app, listener):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                for _ in range(200):
                    assert await reader.readexactly(65536)
                assert not ends.is_set()
                writer.close()
                await ends.wait()

    run(asyncio.wait_for(main(), 20))
