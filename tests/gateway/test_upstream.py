import asyncio

import pytest
from mock_engine import JSON, SSE, MockEngine, Reply, json_reply

from carpool.backends.address import Address
from carpool.gateway import upstream_connection
from carpool.gateway.upstream import Upstream
from carpool.gateway.upstream_errors import (
    ConnectFailed,
    CutOff,
    FirstByteLate,
    IdleTooLong,
    Malformed,
    Stopped,
    Timeouts,
    TotalTooLong,
    UpstreamError,
)

OK = json_reply({"ok": True})
SHORT = 0.05


def upstream_of(engine: MockEngine) -> Upstream:
    return Upstream(Address.from_url(engine.url))


async def body_of(upstream: Upstream, **options) -> bytes:
    async with await upstream.send("POST", "/v1/x", body=b"{}", **options) as response:
        return b"".join([piece async for piece in response])


def test_a_request_arrives_as_it_was_sent(run):
    async def scenario():
        async with MockEngine(OK) as engine:
            upstream = Upstream(Address.from_url(engine.url + "/base/v1"))
            headers = [(b"content-type", b"application/json"), (b"x-note", "é".encode())]
            response = await upstream.send("POST", "/v1/chat/completions", headers, b'{"a":1}')
            assert response.status == 200
            assert (b"content-type", b"application/json") in response.headers
            assert await response.read() == b'{"ok":true}'
            assert await response.read() == b""

            (request,) = engine.requests
            assert (request.method, request.path) == ("POST", "/base/v1/chat/completions")
            assert request.body == b'{"a":1}'
            assert request.headers["host"] == f"127.0.0.1:{engine.port}"
            assert request.headers["content-length"] == "7"

    run(scenario())


def test_a_unix_socket_is_an_address_too(run, tmp_path):
    async def scenario():
        async with MockEngine(OK, uds=str(tmp_path / "engine.sock")) as engine:
            assert await body_of(upstream_of(engine)) == b'{"ok":true}'

    run(scenario())


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_bodies_of_every_framing_are_read_whole(run, framing):
    async def scenario():
        pieces = (b"one ", b"two ", "thr\u00e9e".encode())
        async with MockEngine(Reply(pieces=pieces, framing=framing)) as engine:
            upstream = upstream_of(engine)
            assert await body_of(upstream) == b"".join(pieces)
            assert upstream.num_idle == (0 if framing == "close" else 1)

    run(scenario())


def test_every_cut_of_the_bytes_in_transit_reads_the_same(run):
    body = "data: 🚗\n\n".encode()
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    raw = head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    async def read_cut_at(at: int) -> bytes:
        async def reply(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            for part in (raw[:at], raw[at:]):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()

        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            upstream = Upstream(Address("127.0.0.1", port))
            response = await upstream.send("GET", "/")
            return b"".join([piece async for piece in response])

    async def scenario():
        for at in range(len(raw)):
            assert await read_cut_at(at) == body

    run(scenario())


def test_connections_are_kept_and_used_again(run):
    async def scenario():
        async with MockEngine(OK) as engine:
            upstream = upstream_of(engine)
            for _ in range(5):
                await body_of(upstream)
            assert engine.num_connections == 1
            await asyncio.gather(*(body_of(upstream) for _ in range(3)))
            assert engine.num_connections == 3
            upstream.close()
            await engine.has_closed(3)
            assert upstream.num_idle == 0

    run(scenario())


def test_a_connection_that_is_not_to_be_kept_is_not(run):
    async def scenario():
        async with MockEngine(Reply(pieces=(b"{}",), is_kept_alive=False)) as engine:
            upstream = upstream_of(engine)
            await body_of(upstream)
            await body_of(upstream)
            assert engine.num_connections == 2

    run(scenario())


def test_no_more_connections_are_kept_than_allowed(run):
    async def scenario():
        async with MockEngine(OK) as engine:
            upstream = Upstream(Address.from_url(engine.url), max_idle=2)
            await asyncio.gather(*(body_of(upstream) for _ in range(5)))
            assert upstream.num_idle == 2

    run(scenario())


def test_a_kept_connection_that_went_stale_is_replaced(run):
    async def scenario():
        async with MockEngine(OK) as engine:
            upstream = upstream_of(engine)
            await body_of(upstream)
            engine.script = [Reply(cut_after=0, raw=b""), OK]  # closed as the request arrives
            assert await body_of(upstream) == b'{"ok":true}'
            assert [request.connection for request in engine.requests] == [1, 1, 2]

    run(scenario())


def test_a_new_connection_that_dies_is_not_asked_again(run):
    async def scenario():
        async with MockEngine(Reply(raw=b"")) as engine:
            with pytest.raises(CutOff):
                await body_of(upstream_of(engine))
            assert len(engine.requests) == 1

    run(scenario())


def test_nothing_is_sent_again_once_a_byte_has_come(run):
    async def scenario():
        async with MockEngine(OK) as engine:
            upstream = upstream_of(engine)
            await body_of(upstream)
            engine.script = Reply(raw=b"HTTP/1.1 ")
            with pytest.raises(CutOff):
                await body_of(upstream)
            assert len(engine.requests) == 2

    run(scenario())


@pytest.mark.parametrize("has_read", [False, True], ids=["after the head", "within the body"])
def test_leaving_an_answer_closes_the_connection_at_once(run, has_read):
    async def scenario():
        async with MockEngine(Reply(pieces=(b"a",), stall_after=1)) as engine:
            async with await upstream_of(engine).send("POST", "/") as response:
                if has_read:
                    assert await response.read() == b"a"
            assert (await engine.has_closed(within=1)).num_pieces is not None

    run(scenario())


def test_cancelling_the_wait_for_an_answer_closes_the_connection(run):
    async def scenario():
        async with MockEngine(Reply(head_delay=60)) as engine:
            task = asyncio.create_task(upstream_of(engine).send("POST", "/"))
            await engine.until(lambda: bool(engine.requests))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await engine.has_closed(within=1)

    run(scenario())


def test_nobody_there(run, tmp_path):
    async def scenario():
        for address in (Address("127.0.0.1", 1), Address(uds=tmp_path / "none.sock")):
            with pytest.raises(ConnectFailed, match="no connection to"):
                await Upstream(address).send("GET", "/")

    run(scenario())


@pytest.mark.parametrize(
    ("reply", "timeouts", "error"),
    [
        (Reply(head_delay=60), Timeouts(first_byte=SHORT), FirstByteLate),
        (Reply(pieces=(b"a",), first_byte_delay=60), Timeouts(first_byte=SHORT), FirstByteLate),
        (Reply(pieces=(b"a",), stall_after=1), Timeouts(idle=SHORT), IdleTooLong),
        (Reply(head_delay=60), Timeouts(total=SHORT), TotalTooLong),
        (Reply(pieces=(b"a",) * 50, piece_delay=0.01), Timeouts(total=SHORT), TotalTooLong),
    ],
)
def test_each_timer_fires_by_itself_and_closes_the_connection(run, reply, timeouts, error):
    async def scenario():
        async with MockEngine(reply) as engine:
            with pytest.raises(error, match="timeout"):
                await body_of(upstream_of(engine), timeouts=timeouts)
            await engine.has_closed(within=1)

    run(scenario())


@pytest.mark.parametrize(
    ("reply", "timeouts"),
    [
        (Reply(pieces=(b"a",), head_delay=2 * SHORT), Timeouts(idle=SHORT, connect=SHORT)),
        (Reply(pieces=(b"a", b"a"), piece_delay=3 * SHORT), Timeouts(first_byte=2 * SHORT)),
        (Reply(pieces=(b"a",) * 8, piece_delay=SHORT / 4), Timeouts(idle=2 * SHORT)),
    ],
)
def test_no_timer_fires_for_what_it_is_not_about(run, reply, timeouts):
    async def scenario():
        async with MockEngine(reply) as engine:
            assert await body_of(upstream_of(engine), timeouts=timeouts)

    run(scenario())


def test_a_reader_who_is_slow_is_no_idle_engine(run):
    async def scenario():
        async with MockEngine(Reply(pieces=(b"a", b"b"))) as engine:
            timeouts = Timeouts(idle=SHORT)
            async with await upstream_of(engine).send("GET", "/", timeouts=timeouts) as response:
                await asyncio.sleep(3 * SHORT)
                assert await response.read() == b"ab"

    run(scenario())


@pytest.mark.parametrize(
    "reply",
    [
        Reply(pieces=(b"a", b"b"), cut_after=1),
        Reply(pieces=(b"a", b"b"), cut_after=1, framing="length"),
    ],
)
def test_what_came_before_a_cut_is_read_first(run, reply):
    async def scenario():
        async with MockEngine(reply) as engine:
            response = await upstream_of(engine).send("GET", "/")
            assert await response.read() == b"a"
            with pytest.raises(CutOff, match="in the middle"):
                await response.read()

    run(scenario())


@pytest.mark.parametrize(
    "raw",
    [
        b"SMTP ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_what_is_not_http_or_beyond_the_bounds_is_malformed(run, raw):
    async def scenario():
        async with MockEngine(Reply(raw=raw)) as engine:
            with pytest.raises(Malformed):
                await body_of(upstream_of(engine))

    run(scenario())


def test_an_interim_answer_is_passed_over(run):
    raw = (
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    )

    async def scenario():
        async with MockEngine(Reply(raw=raw)) as engine:
            response = await upstream_of(engine).send("GET", "/")
            assert (response.status, await response.read()) == (200, b"ok")
            assert response.headers == [(b"content-length", b"2")]

    run(scenario())


def test_bytes_that_nobody_asked_for_end_the_connection(run):
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n"

    async def scenario():
        async with MockEngine(Reply(raw=raw)) as engine:
            upstream = upstream_of(engine)
            assert await body_of(upstream) == b"ok"
            assert upstream.num_idle == 0

    run(scenario())


def test_an_engine_is_not_read_faster_than_the_reader_takes(run):
    pieces = (b"x" * 65536,) * 400

    async def scenario():
        async with MockEngine(Reply(pieces=pieces, headers=SSE)) as engine:
            async with await upstream_of(engine).send("GET", "/") as response:
                connection = response._connection
                while connection._transport.is_reading():
                    await asyncio.sleep(0.001)
                limit = upstream_connection.MAX_UNREAD_BYTES
                assert limit < response._unread < 4 * limit
                total = 0
                async for piece in response:
                    total += len(piece)
            assert total == sum(map(len, pieces))

    run(scenario())


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n"])
def test_line_breaks_do_not_make_headers(run, line_break):
    async def scenario():
        upstream = Upstream(Address("127.0.0.1", 1))
        for path, value in (("/" + line_break, ""), ("/", f"a{line_break}b: c")):
            with pytest.raises(ValueError, match="line break"):
                await upstream.send("GET", path, [(b"x", value.encode())])

    run(scenario())


def test_a_large_body_reaches_the_engine_whole(run):
    body = bytes(range(256)) * 16384

    async def scenario():
        async with MockEngine(OK) as engine:
            await upstream_of(engine).send("POST", "/", [], body)
            assert engine.requests[0].body == body

    run(scenario())


def test_every_error_is_an_upstream_error():
    for error in (ConnectFailed, CutOff, FirstByteLate, IdleTooLong, Malformed, TotalTooLong):
        assert issubclass(error, UpstreamError)


def test_an_answer_without_a_body(run):
    async def scenario():
        async with MockEngine(Reply(status=204, framing="none", headers=JSON)) as engine:
            upstream = upstream_of(engine)
            assert await body_of(upstream) == b""
            assert upstream.num_idle == 1

    run(scenario())


def test_an_answer_that_is_complete_cannot_be_stopped_at_another_s_expense(run):
    async def scenario():
        async with MockEngine([OK, json_reply({"n": 2}, head_delay=SHORT)]) as engine:
            upstream = upstream_of(engine)
            whole = await upstream.send("POST", "/v1/x", body=b"{}")
            another = asyncio.create_task(body_of(upstream))
            await engine.until(lambda: len(engine.requests) == 2)
            whole.fail(Stopped("its key was revoked"))
            assert await another == b'{"n":2}'
            assert await whole.read() == b'{"ok":true}'
            assert engine.num_connections == 1

    run(scenario())
