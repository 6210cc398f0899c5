"""An engine whose answers and faults a test writes down: no HTTP library, every byte as scripted.

    async with MockEngine(Reply(pieces=(b"data: ", b"1\n\n"), headers=SSE, cut_after=1)) as engine:
        engine.address, engine.requests, engine.closes, await engine.has_closed()

`serving` runs one in a thread of its own, for tests of other processes. As a program it serves
`answer`, and so stands in for an engine of no cost: python mock_engine.py [--port N | --uds PATH].
"""

import argparse
import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

JSON = (("content-type", "application/json"),)
SSE = (("content-type", "text/event-stream; charset=utf-8"),)
DONE = b"data: [DONE]\n\n"
MODEL = "mock/model-1b"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer. Delays in seconds.

    `pieces` are written one by one (`piece_delay` apart), framed as "chunked", by "length" or
    ended by "close". `cut_after`: the connection is aborted after so many pieces. `stall_after`:
    then nothing more comes, or not before `released` is set, from whatever thread. `raw` replaces
    everything, head and all, and ends the connection.
    """

    status: int = 200
    headers: Sequence[tuple[str, str]] = JSON
    pieces: Sequence[bytes] = ()
    framing: str = "chunked"
    head_delay: float = 0.0
    first_byte_delay: float = 0.0
    piece_delay: float = 0.0
    cut_after: int | None = None
    stall_after: int | None = None
    released: threading.Event | None = None
    is_kept_alive: bool = True
    raw: bytes | None = None


@dataclass(frozen=True)
class SeenRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    at: float = field(default_factory=time.monotonic)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class SeenClose:
    """The peer closed a connection; `num_pieces`: written of the reply it left, None if idle."""

    connection: int
    num_pieces: int | None
    at: float = field(default_factory=time.monotonic)


Script = Reply | Callable[[SeenRequest], Reply] | list[Reply]


class MockEngine:
    """`script`: one reply for all, one a request (the last is kept), or what makes them."""

    def __init__(self, script: Script | None = None, *, uds: str | None = None, port: int = 0):
        self.script: Script = answer if script is None else script
        self.requests: list[SeenRequest] = []
        self.closes: list[SeenClose] = []
        self.num_connections = 0
        self.num_replying = 0
        self.most_posts = 0  # that were being answered at once
        self.uds = uds
        self.port = port
        self._num_posts = 0
        self._server: asyncio.AbstractServer | None = None
        self._open: set[_Connection] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"unix://{self.uds}" if self.uds else f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "MockEngine":
        loop = asyncio.get_running_loop()
        if self.uds:
            self._server = await loop.create_unix_server(lambda: _Connection(self), self.uds)
        else:
            self._server = await loop.create_server(
                lambda: _Connection(self), "127.0.0.1", self.port
            )
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.drop_connections()
        await self.until(lambda: not self._open)

    def drop_connections(self) -> None:
        """Closes every connection, as an engine that is killed does."""
        for connection in list(self._open):
            connection.abort()

    async def until(self, is_so: Callable[[], bool], within: float = 5.0) -> None:
        """Waits for a request or a close after which `is_so()`."""
        async with asyncio.timeout(within):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def has_closed(self, count: int = 1, within: float = 5.0) -> SeenClose:
        """Waits until the peer has closed `count` connections; the last of these."""
        await self.until(lambda: len(self.closes) >= count, within)
        return self.closes[count - 1]

    def reply_to(self, request: SeenRequest) -> Reply:
        self.requests.append(request)
        self.changed()
        return reply_of(self.script, request)

    @contextlib.contextmanager
    def replying(self, request: SeenRequest) -> Iterator[None]:
        is_post = request.method == "POST"
        self.num_replying += 1
        self._num_posts += is_post
        self.most_posts = max(self.most_posts, self._num_posts)
        try:
            yield
        finally:
            self.num_replying -= 1
            self._num_posts -= is_post

    def changed(self) -> None:
        self._changed.set()


def reply_of(script: Script, request: SeenRequest) -> Reply:
    if isinstance(script, Reply):
        return script
    if isinstance(script, list):
        return script.pop(0) if len(script) > 1 else script[0]
    return script(request)


class _Connection(asyncio.Protocol):
    def __init__(self, engine: MockEngine):
        self._engine = engine
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None
        self._num_pieces: int | None = None
        self._has_aborted = False
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._engine.num_connections += 1
        self._number = self._engine.num_connections
        self._engine._open.add(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine._open.discard(self)
        if self._task is not None:
            self._task.cancel()
        if not self._has_aborted:
            self._engine.closes.append(SeenClose(self._number, self._num_pieces))
        self._engine.changed()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def abort(self) -> None:
        self._has_aborted = True
        self._transport.abort()

    def _next(self) -> None:
        if self._task is not None:
            return
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        request = SeenRequest(method, path, headers, rest[:length], self._number)
        self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: SeenRequest) -> None:
        with self._engine.replying(request):
            reply = self._engine.reply_to(request)
            self._num_pieces = 0
            await self._write(reply)
        self._num_pieces = None
        self._task = None
        if reply.framing == "close" or not reply.is_kept_alive or reply.raw is not None:
            self._has_aborted = True
            self._transport.close()
        else:
            self._next()

    async def _write(self, reply: Reply) -> None:
        if reply.head_delay:
            await asyncio.sleep(reply.head_delay)
        if reply.raw is not None:
            self._transport.write(reply.raw)
            return
        head = _head(reply)
        if reply.first_byte_delay:
            self._transport.write(head)
            head = b""
            await asyncio.sleep(reply.first_byte_delay)
        is_at_once = not reply.piece_delay and reply.cut_after is reply.stall_after is None
        if is_at_once and sum(map(len, reply.pieces)) < 65536 and reply.framing == "length":
            self._transport.write(head + b"".join(reply.pieces))
            return
        if head:
            self._transport.write(head)
        for number, piece in enumerate(reply.pieces):
            await self._fault(reply, number)
            if number and reply.piece_delay:
                await asyncio.sleep(reply.piece_delay)
            elif number and reply.framing != "length":
                await asyncio.sleep(0)
            await self._can_write.wait()
            framed = b"%x\r\n%s\r\n" % (len(piece), piece)
            self._transport.write(framed if reply.framing == "chunked" else piece)
            self._num_pieces = number + 1
        await self._fault(reply, len(reply.pieces))
        if reply.framing == "chunked":
            self._transport.write(b"0\r\n\r\n")

    async def _fault(self, reply: Reply, number: int) -> None:
        if reply.stall_after == number:
            while reply.released is None or not reply.released.is_set():
                await asyncio.sleep(0.002)
        if reply.cut_after == number:
            self._has_aborted = True
            self._transport.close()  # what was written still arrives
            await asyncio.Event().wait()


def _head(reply: Reply) -> bytes:
    headers = list(reply.headers)
    if reply.framing == "length":
        headers.append(("content-length", str(sum(map(len, reply.pieces)))))
    elif reply.framing == "chunked":
        headers.append(("transfer-encoding", "chunked"))
    if reply.framing == "close" or not reply.is_kept_alive:
        headers.append(("connection", "close"))
    lines = [f"HTTP/1.1 {reply.status} Status", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def json_reply(body: Any, status: int = 200, **changes: Any) -> Reply:
    changes.setdefault("framing", "length")
    return Reply(status=status, pieces=(dumps(body),), **changes)


def sse_reply(events: Sequence[bytes], **changes: Any) -> Reply:
    return Reply(headers=SSE, pieces=tuple(events), **changes)


def dumps(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def event(body: Any, name: str | None = None) -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + dumps(body) + b"\n\n"


def usage(prompt: int, output: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_body(text: str, *, model: str = MODEL, prompt: int = 7, output: int = 5) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": usage(prompt, output),
    }


def chat_events(
    words: Sequence[str], *, model: str = MODEL, prompt: int = 7, has_usage: bool = True
) -> list[bytes]:
    """A chat stream: the role, a chunk a word, the finish, the usage if asked, [DONE]."""
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({**head, "choices": [choice]})

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": word}) for word in words]
    events.append(chunk({}, "stop"))
    if has_usage:
        events.append(event({**head, "choices": [], "usage": usage(prompt, len(words))}))
    return [*events, DONE]


def answer(request: SeenRequest) -> Reply:
    """What a healthy engine says: `max_tokens` words, of the kind that was asked for."""
    if request.method == "GET":
        if request.path == "/v1/models":
            return json_reply({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        return json_reply({"status": "ok"})
    body = request.json
    count = body.get("max_tokens") or body.get("max_completion_tokens") or 5
    if request.path == "/v1/embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
        counts = {"prompt_tokens": 3, "total_tokens": 3}
        return json_reply({"object": "list", "data": data, "model": body["model"], "usage": counts})
    if not body.get("stream"):
        text = " ".join(["word"] * count)
        return json_reply(chat_body(text, model=body["model"], output=count))
    options = body.get("stream_options") or {}
    events = chat_events(
        ["word "] * count, model=body["model"], has_usage=bool(options.get("include_usage"))
    )
    return sse_reply(events, piece_delay=float(body.get("mock_piece_delay", 0.0)))


@contextlib.contextmanager
def serving(script: Script | None = None, **options: Any) -> Iterator[MockEngine]:
    """A MockEngine in a thread. Read its lists; do not await its methods from elsewhere."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    engine = MockEngine(script, **options)
    try:
        run(engine.__aenter__())
        try:
            yield engine
        finally:
            run(engine.__aexit__())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--uds")
    arguments = parser.parse_args()

    async def serve() -> None:
        async with MockEngine(uds=arguments.uds, port=arguments.port) as engine:
            print(engine.url, flush=True)
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    main()
