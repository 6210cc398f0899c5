"""An engine with known timings, which writes down when it wrote what: a process of its own.

    python benchmarks/truth_server.py --ttft-ms 80 --gap-ms 50 [--stall-at-s 5 --stall-s 2]

It prints its port, answers POST /v1/chat/completions and /v1/completions with streams of
`max_tokens` chunks, and GET /truth with all it has done since the last such look: per request
when its last byte came, when each token was handed to the kernel (seconds of CLOCK_MONOTONIC,
which all processes of a machine share), and its `user`. No event loop and no HTTP library: the
time from a stamp to its write is a few microseconds.

A stall begins so many seconds after the first request: nothing is written for so long, and
whatever was due meanwhile comes that much later.
"""

import argparse
import gc
import heapq
import json
import math
import re
import select
import socket
import time
from itertools import count
from typing import Any

MODEL = "truth"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_clock = time.monotonic


def event(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    """One event in one HTTP chunk."""
    both = {"delta": delta, "text": (delta or {}).get("content", "")}
    choices = [] if delta is None else [{"index": 0, **both, "finish_reason": finish}]
    head = {"id": "chatcmpl-truth", "object": "chat.completion.chunk", "created": 1700000000}
    body = json.dumps({**head, "model": MODEL, "choices": choices, **more}, separators=(",", ":"))
    return framed(b"data: " + body.encode() + b"\n\n")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n" + event({"role": "assistant", "content": ""})
)
TOKEN = event({"content": " word"})
FINISH = event({}, "stop")
DONE = framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Stream:
    """One answer: `stamps` of its tokens so far."""

    __slots__ = ("name", "num_prompt", "num_tokens", "received", "sock", "stamps")

    def __init__(self, sock: socket.socket, received: float, num_tokens: int, num_prompt: int):
        self.sock = sock
        self.received = received
        self.num_tokens = num_tokens
        self.num_prompt = num_prompt
        self.name = ""
        self.stamps: list[float] = []

    def end(self) -> bytes:
        usage = {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_prompt + self.num_tokens,
        }
        return FINISH + event(None, usage=usage) + DONE


class TruthServer:
    def __init__(self, ttft_s: float, gap_s: float, stall_at_s: float, stall_s: float) -> None:
        self._ttft_s, self._gap_s = ttft_s, gap_s
        self._stall_at_s, self._stall_s = stall_at_s, stall_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._sockets: dict[int, socket.socket] = {}
        self._buffers: dict[int, bytes] = {}
        self._due: list[tuple[float, int, Stream]] = []
        self._order = count()
        self._done: list[Stream] = []
        self._shift = 0.0
        self._stall_begins = math.inf
        self.port = self._listener.getsockname()[1]

    def serve(self) -> None:
        while True:
            timeout = -1.0
            if self._due:
                timeout = max(0.0, self._due[0][0] + self._shift - _clock())
            for fd, _ in self._epoll.poll(timeout):
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._receive(fd)
            self._write_due()

    def _write_due(self) -> None:
        now = _clock()
        if now >= self._stall_begins:
            time.sleep(0.001)
            if now < self._stall_begins + self._stall_s:
                return
            self._shift += self._stall_s
            self._stall_begins = math.inf
        while self._due and self._due[0][0] + self._shift <= now:
            due, order, stream = heapq.heappop(self._due)
            if stream.sock.fileno() < 0:
                continue
            is_last = len(stream.stamps) + 1 == stream.num_tokens
            stream.stamps.append(_clock())
            self._send(stream.sock, TOKEN + stream.end() if is_last else TOKEN)
            if is_last:
                self._done.append(stream)
            else:
                heapq.heappush(self._due, (due + self._gap_s, order, stream))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self._sockets[sock.fileno()] = sock
            self._buffers[sock.fileno()] = b""
            self._epoll.register(sock, select.EPOLLIN)

    def _receive(self, fd: int) -> None:
        sock = self._sockets[fd]
        try:
            data = sock.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(sock)
            del self._sockets[fd], self._buffers[fd]
            sock.close()
            return
        self._buffers[fd] += data
        head, found, body = self._buffers[fd].partition(b"\r\n\r\n")
        length = int(match[1]) if (match := _LENGTH.search(head)) else 0
        if found and len(body) >= length:
            self._buffers[fd] = body[length:]
            self._begin(sock, head.split(b" ", 2)[1], body[:length])

    def _begin(self, sock: socket.socket, path: bytes, body: bytes) -> None:
        now = _clock()
        if path == b"/v1/models":
            self._send_json(sock, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif path == b"/truth":
            done, self._done = self._done, []
            self._send_json(sock, [[each.received, each.stamps, each.name] for each in done])
        elif path.endswith(b"completions"):
            if self._stall_at_s and self._stall_begins == math.inf and not self._shift:
                self._stall_begins = now + self._stall_at_s
            asked = json.loads(body)
            stream = Stream(sock, now, int(asked.get("max_tokens") or 16), len(body) // 5)
            stream.name = str(asked.get("user") or "")
            self._send(sock, HEAD)
            due = now + self._ttft_s - self._shift
            heapq.heappush(self._due, (due, next(self._order), stream))
        else:
            sock.send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def _send_json(self, sock: socket.socket, value: Any) -> None:
        content = json.dumps(value).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        sock.setblocking(True)
        sock.sendall(head % len(content) + content)
        sock.setblocking(False)

    def _send(self, sock: socket.socket, data: bytes) -> None:
        """A client that reads so slowly that the socket is full is left."""
        try:
            sock.send(data)
        except OSError:
            sock.shutdown(socket.SHUT_RDWR)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft-ms", type=float, default=80.0)
    parser.add_argument("--gap-ms", type=float, default=50.0)
    parser.add_argument("--stall-at-s", type=float, default=0.0)
    parser.add_argument("--stall-s", type=float, default=0.0)
    args = parser.parse_args()
    server = TruthServer(args.ttft_ms / 1000, args.gap_ms / 1000, args.stall_at_s, args.stall_s)
    print(server.port, flush=True)
    gc.collect()
    gc.freeze()
    gc.disable()
    server.serve()


if __name__ == "__main__":
    main()
