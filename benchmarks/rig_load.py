"""The two loads that a gateway is measured with: whole answers, and many streams at once."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.rig_connection import Connect, Connection, connect_to, post
from benchmarks.rig_engine import CHUNKS_PER_S, STAMP
from benchmarks.rig_figures import Spread, spread

CHAT = "/v1/chat/completions"
NUM_CONNECTIONS = 16
NUM_STREAMS = 256
STREAM_S = 5.0
WARM_UP_S = 2.0
LATE_S = 5.0
"""Without an answer for so long at the end of a run, a request has failed."""
_RECONNECT_S = 0.05
_CHOICES = re.compile(rb'"choices"')
_QUESTION = [
    {"role": "system", "content": "You are a helpful assistant of a small team."},
    {"role": "user", "content": "Write a few words about sharing one machine among many people."},
]


@dataclass(frozen=True, slots=True)
class RequestFigures:
    per_s: float
    latency_ms: Spread
    num_failed: int


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """`delay_ms`: from a chunk's stamp to its arrival. `num_cut`: streams that were refused or
    ended before their end."""

    chunks_per_s: float
    delay_ms: Spread
    num_cut: int


NO_STREAMS = StreamFigures(0.0, Spread(None, None), 0)


# ------------------------------------------------------------------ whole answers


class _Asker:
    """One connection that asks again and again: at once, or every `interval_s`.

    A request that is due while the one before it is under way is timed from when it was due.
    """

    def __init__(self, connect: Connect, request: bytes, interval_s: float = 0.0) -> None:
        self.latencies_ms: list[float] = []
        self.num_failed = 0
        self._connect = connect
        self._request = request
        self._interval_s = interval_s
        self._connection: Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._is_asking = False
        self._has_choices = False
        self._began = 0.0
        self._due = 0.0

    async def start(self, wait_s: float) -> None:
        self._connection = await self._connect(self)
        self._due = time.perf_counter() + wait_s
        self._loop.call_later(wait_s, self._ask)

    def reset(self) -> None:
        self.latencies_ms, self.num_failed = [], 0

    def stop(self) -> None:
        self._is_stopped = True
        if self._is_asking and time.perf_counter() - self._began > LATE_S:
            self.num_failed += 1
        if self._connection is not None:
            self._connection.close()

    def piece(self, data: bytes) -> None:
        self._has_choices = self._has_choices or _CHOICES.search(data) is not None

    def ended(self, status: int) -> None:
        now = time.perf_counter()
        self._is_asking = False
        if status == 200 and self._has_choices:
            self.latencies_ms.append(1e3 * (now - self._began))
        else:
            self.num_failed += 1
        self._schedule(now)

    def lost(self) -> None:
        self.num_failed += self._is_asking
        self._is_asking = False
        self._connection = None
        task = self._loop.create_task(self._reconnect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reconnect(self) -> None:
        while not self._is_stopped:
            await asyncio.sleep(_RECONNECT_S)
            try:
                self._connection = await self._connect(self)
            except OSError:
                self.num_failed += 1
            else:
                self._ask()
                return

    def _schedule(self, now: float) -> None:
        if not self._interval_s:
            self._ask()
            return
        self._due += self._interval_s
        if self._due <= now:
            self._ask(self._due)
        else:
            self._loop.call_later(self._due - now, self._ask)

    def _ask(self, began: float | None = None) -> None:
        if self._is_stopped or self._connection is None:
            return
        self._is_asking, self._has_choices = True, False
        self._began = time.perf_counter() if began is None else began
        self._connection.ask(self._request)


async def run_requests(
    port: int, model: str, key: str, seconds: float, *, per_s: float | None = None
) -> RequestFigures:
    """Whole answers on 16 connections after a warm-up: as many as they can, each of them with
    one request under way at any time, or `per_s` of them, evenly."""
    request = post(CHAT, key, {"model": model, "messages": _QUESTION, "max_tokens": 64})
    interval_s = NUM_CONNECTIONS / per_s if per_s else 0.0
    askers = [_Asker(connect_to(port), request, interval_s) for _ in range(NUM_CONNECTIONS)]
    for number, asker in enumerate(askers):
        await asker.start(interval_s * number / NUM_CONNECTIONS)
    await asyncio.sleep(WARM_UP_S)
    for asker in askers:
        asker.reset()
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    latencies = [each for asker in askers for each in asker.latencies_ms]
    for asker in askers:
        asker.stop()
    return RequestFigures(
        len(latencies) / took, spread(latencies), sum(asker.num_failed for asker in askers)
    )


# ------------------------------------------------------------------------ streams


class StampReader:
    """Finds the stamps in a stream, whichever way its bytes are cut."""

    def __init__(self) -> None:
        self._rest = b""

    def stamps(self, data: bytes) -> list[int]:
        """Those that `data` completes."""
        data = self._rest + data if self._rest else data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        return [int(stamp) for stamp in STAMP.findall(data, 0, end)]


class _Watcher:
    """One stream after the other on one connection; a refused or cut one is begun anew."""

    def __init__(self, connect: Connect, request: bytes, note: Callable[[int], None]) -> None:
        self.num_cut = 0
        self._connect = connect
        self._request = request
        self._note = note
        self._next: asyncio.Future[int]

    async def run(self, wait_s: float) -> None:
        """Until cancelled."""
        await asyncio.sleep(wait_s)
        connection: Connection | None = None
        try:
            while True:
                self._next = asyncio.get_running_loop().create_future()
                self._reader = StampReader()
                try:
                    connection = connection or await self._connect(self)
                except OSError:
                    self._next.set_result(0)
                else:
                    connection.ask(self._request)
                if (status := await self._next) != 200:
                    self.num_cut += 1
                    connection = None if status == 0 else connection
                    await asyncio.sleep(_RECONNECT_S)
        finally:
            if connection is not None:
                connection.close()

    def piece(self, data: bytes) -> None:
        for stamp in self._reader.stamps(data):
            self._note(stamp)

    def ended(self, status: int) -> None:
        if not self._next.done():
            self._next.set_result(status)

    def lost(self) -> None:
        self.ended(0)


async def run_streams(port: int, model: str, key: str, seconds: float) -> StreamFigures:
    """256 streams at once, spread evenly over their 5 s; chunks of the last `seconds` count."""
    body = {
        "model": model,
        "messages": _QUESTION,
        "stream": True,
        "max_tokens": int(STREAM_S * CHUNKS_PER_S),
    }
    request = post(CHAT, key, body)
    delays_ms: list[float] = []
    since = time.monotonic_ns() + round(1e9 * (STREAM_S + WARM_UP_S))

    def note(stamp: int) -> None:
        now = time.monotonic_ns()
        if now >= since:
            delays_ms.append((now - stamp) / 1e6)

    watchers = [_Watcher(connect_to(port), request, note) for _ in range(NUM_STREAMS)]
    tasks = [
        asyncio.create_task(watcher.run(STREAM_S * number / NUM_STREAMS))
        for number, watcher in enumerate(watchers)
    ]
    await asyncio.sleep(STREAM_S + WARM_UP_S + seconds)
    took = (time.monotonic_ns() - since) / 1e9
    await _cancelled(tasks)
    num_cut = sum(watcher.num_cut for watcher in watchers)
    return StreamFigures(len(delays_ms) / took, spread(delays_ms), num_cut)


async def _cancelled(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
