"""A server in this process: it stops when told, and not in the middle of an answer."""

import asyncio
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack

import pytest

from carpool.serving import http_server as module
from carpool.serving.http_server import TlsError, http_server, run, unless_set
from carpool.serving.listen import Address, listening


class App:
    """Answers b"hello", in two pieces with `pause` between them; `scopes` are what came."""

    def __init__(self):
        self.scopes = []
        self.has_begun = asyncio.Event()
        self.pause = asyncio.Event()
        self.is_done = False

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"he", "more_body": True})
        self.has_begun.set()
        await self.pause.wait()
        await send({"type": "http.response.body", "body": b"llo", "more_body": False})
        self.is_done = True


async def ask(port, *headers):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [b"GET /path HTTP/1.1", b"host: x", b"connection: close", *headers, b"", b""]
    writer.write(b"\r\n".join(lines))
    try:
        return await reader.read()
    finally:
        writer.close()


def scenario(main):
    """Runs `main(app, port, stack)` on a loop of its own; the server is `stack`'s."""

    async def with_server():
        app = App()
        with listening(Address(port=0)) as listener:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(http_server(app, listener))
                await main(app, listener.getsockname()[1], stack)

    run(asyncio.wait_for(with_server(), 20))


def test_it_answers_and_does_not_say_what_it_is():
    async def main(app, port, stack):
        app.pause.set()
        answer = await ask(port)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"llo" in answer
        assert b"server:" not in answer.lower()

    scenario(main)


def test_who_asks_is_who_connects_whatever_the_headers_say():
    async def main(app, port, stack):
        app.pause.set()
        await ask(port, b"x-forwarded-for: 10.1.2.3", b"x-forwarded-proto: https")
        assert app.scopes[0]["client"][0] == "127.0.0.1"
        assert app.scopes[0]["scheme"] == "http"

    scenario(main)


def test_an_answer_under_way_is_finished_when_the_server_leaves():
    async def main(app, port, stack):
        answer = asyncio.create_task(ask(port))
        await app.has_begun.wait()
        leaving = asyncio.create_task(stack.aclose())
        await asyncio.sleep(0)
        app.pause.set()
        await leaving
        assert app.is_done
        assert (await answer).count(b"llo") == 1
        with pytest.raises(OSError):
            await ask(port)

    scenario(main)


def test_what_does_not_end_is_cut_off_after_the_last_bytes_had_their_time(monkeypatch):
    monkeypatch.setattr(module, "LAST_BYTES_S", 0.1)

    async def main(app, port, stack):
        answer = asyncio.create_task(ask(port))
        await app.has_begun.wait()
        await stack.aclose()
        assert not app.is_done
        assert b"llo" not in await answer

    scenario(main)


def test_an_idle_connection_does_not_keep_the_server():
    async def main(app, port, stack):
        with socket.create_connection(("127.0.0.1", port)):
            await stack.aclose()

    scenario(main)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_used_is_told_of_before_anything_is_served(tmp_path, content):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if content is not None:
        cert.write_text(content)
        key.write_text(content)

    async def main():
        with listening(Address(port=0)) as listener:
            async with http_server(App(), listener, tls_cert=cert, tls_key=key):
                pytest.fail("served")

    with pytest.raises(TlsError, match=r"certificate .*cert\.pem with the key .*key\.pem: \S"):
        run(main())


SIGNALLED = """
import asyncio, os, sys
from carpool.serving.http_server import http_server, run, stop_signals
from carpool.serving.listen import Address, listening

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello", "more_body": False})

async def main():
    stop = stop_signals()
    with listening(Address(port=0)) as listener:
        async with http_server(app, listener):
            for _ in range(2):
                os.kill(os.getpid(), int(sys.argv[1]))
                await stop.wait()
                stop.clear()
                port = listener.getsockname()[1]
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n")
                print(b"hello" in await reader.read())
                writer.close()

run(asyncio.wait_for(main(), 20))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_noticed_and_so_is_the_next_while_the_server_goes_on(number):
    """In a process of its own: a signal is for all of a process, whatever else runs in it."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr


def test_work_ends_when_it_is_told_to_stop():
    async def main():
        stop, has_begun, ends = asyncio.Event(), asyncio.Event(), []

        async def work(result, seconds):
            has_begun.set()
            try:
                await asyncio.sleep(seconds)
            finally:
                ends.append(result)
            return result

        assert await unless_set(stop, work("done", 0)) == "done"
        has_begun.clear()
        waiting = asyncio.create_task(unless_set(stop, work("cut", 60)))
        await has_begun.wait()
        stop.set()
        assert await waiting is None
        await asyncio.sleep(0)
        assert ends == ["done", "cut"]

    run(asyncio.wait_for(main(), 20))


def test_the_error_of_the_work_is_its_callers():
    async def fail():
        raise RuntimeError("no")

    async def main():
        with pytest.raises(RuntimeError, match="no"):
            await unless_set(asyncio.Event(), fail())

    run(main())
