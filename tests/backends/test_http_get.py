import asyncio

import pytest

from carpool.backends.address import Address
from carpool.backends.backend import BackendUnreachable
from carpool.backends.http_get import http_get


async def ask(raw: bytes, timeout_s: float = 5.0, *, stays_open: bool = False):
    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        if stays_open:
            await reader.read()
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await http_get(Address("127.0.0.1", port), "/x", timeout_s=timeout_s)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ],
)
def test_a_body_is_read_whole_however_it_is_framed(within, raw):
    answer = within(ask(raw))
    assert (answer.status, answer.body) == (200, b"hello")


def test_it_does_not_wait_for_the_connection_to_end(within):
    raw = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nRetry-After: 7\r\n\r\n"
    answer = within(ask(raw, stays_open=True))
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "cut its answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "cut its answer"),
        (b"SSH-2.0-OpenSSH\r\n", "no HTTP"),
    ],
)
def test_what_is_no_whole_answer_is_refused(within, raw, words):
    with pytest.raises(BackendUnreachable, match=words):
        within(ask(raw))


def test_silence_is_an_error_after_the_time_given(within):
    with pytest.raises(BackendUnreachable, match=r"within 0\.05 s"):
        within(ask(b"", timeout_s=0.05, stays_open=True))


def test_nobody_there_is_an_error(within, tmp_path):
    with pytest.raises(BackendUnreachable, match="cannot connect"):
        within(http_get(Address(uds=tmp_path / "none"), "/x", timeout_s=1))
