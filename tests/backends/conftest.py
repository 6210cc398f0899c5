"""A scripted engine in a process of its own, and answers of engines as they were recorded."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from carpool.backends.backend import Command

ENGINE = r"""
import http.server, json, os, signal, subprocess, sys, time

class Engine(http.server.ThreadingHTTPServer):
    address_family = __import__("socket").AF_UNIX
    def server_bind(self):
        self.socket.bind(self.server_address)
    def get_request(self):
        request, _ = super().get_request()
        return request, ("", 0)

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_GET(self):
        word = state.read_text().strip() if state.exists() else "ready"
        if word == "silent": time.sleep(60)
        models = {"data": [{"id": "m", "max_model_len": 4096}]}
        body = json.dumps({"status": word, **models}).encode()
        self.send_response(200 if word == "ready" else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

import pathlib
socket, state = sys.argv[1], pathlib.Path(sys.argv[2])
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" in sys.argv:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
pathlib.Path(socket).unlink(missing_ok=True)
server = Engine(socket, Handler)
facts = {"model": "m", "max_num_seqs": 8, "kv_tokens": 1024, "max_model_len": 512}
print(json.dumps(facts), flush=True)
server.serve_forever()
"""


@pytest.fixture
def engine_command(tmp_path: Path) -> Callable[..., Command]:
    """Makes the command of an engine on `tmp_path/engine.sock` that says of itself what the
    file `tmp_path/state` says. Options: "stubborn" ignores SIGTERM, "child" has a child."""

    def make(*options: str) -> Command:
        script = tmp_path / "engine.py"
        script.write_text(ENGINE)
        arguments = (str(tmp_path / "engine.sock"), str(tmp_path / "state"), *options)
        return Command((sys.executable, "-S", str(script), *arguments))

    return make


@pytest.fixture
def answering() -> Callable[..., object]:
    """An HTTP server on a free port: `async with answering({path: (status, body)}) as port`.
    The paths that were asked for are in `answering.asked`."""

    @asynccontextmanager
    async def serve(replies: dict[str, tuple[int, str]]) -> AsyncIterator[int]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            serve.asked.append(path)
            serve.heads.append(head)
            status, text = replies.get(path, (404, "{}"))
            body = text.encode()
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    serve.asked = []
    serve.heads = []
    return serve


@pytest.fixture
def within() -> Callable[[Awaitable[object]], object]:
    """Run a coroutine in a loop of its own, for at most 20 s, until all that it began ended."""

    def run(work):
        async def limited():
            async with asyncio.timeout(20):
                try:
                    return await work
                finally:
                    if others := asyncio.all_tasks() - {asyncio.current_task()}:
                        await asyncio.wait(others)

        return asyncio.run(limited())

    return run
