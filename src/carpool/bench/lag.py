"""How late the load generator itself is: what it measures is late by as much."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from carpool.bench.distribution import Distribution

INTERVAL_S = 0.005
_clock = time.monotonic


@dataclass(frozen=True, slots=True)
class ClientLag:
    """Milliseconds. A sample is how late the event loop came to what was due, and then to a
    socket that had become readable. `cpu_share`: of one core, used by the event loop's thread."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_share: float
    num_samples: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "max_ms": self.max_ms,
            "cpu_share": self.cpu_share,
            "num_samples": self.num_samples,
        }


class LagMeter:
    """Every 5 ms a byte is sent through a socket of its own; it is read when all sockets that
    were readable with it have had their turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._samples: list[float] = []
        self._due = 0.0
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._cpu_began = 0.0

    def start(self) -> None:
        self._loop.add_reader(self._far.fileno(), self._arrive)
        self._schedule()
        self.reset()

    def reset(self) -> None:
        self._samples.clear()
        self._began, self._cpu_began = _clock(), time.thread_time()

    def result(self) -> ClientLag:
        lags = Distribution(self._samples)
        took = max(1e-9, _clock() - self._began)
        return ClientLag(
            1e3 * (lags.p50.value or 0.0),
            1e3 * (lags.p99.value or 0.0),
            1e3 * (lags.max or 0.0),
            (time.thread_time() - self._cpu_began) / took,
            lags.count,
        )

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._far.fileno())
        self._near.close()
        self._far.close()

    def _schedule(self) -> None:
        self._due = _clock() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._send)

    def _send(self) -> None:
        try:
            self._near.send(b".")
        except BlockingIOError:  # nobody read for so long that the socket is full
            self._schedule()

    def _arrive(self) -> None:
        try:
            self._far.recv(4096)
        except BlockingIOError:
            return
        # Timers of an event loop are a millisecond coarse: so much is no lag. A long lag stands
        # for the samples, too, that would have been taken meanwhile.
        lag = _clock() - self._due - 0.001
        self._samples.append(max(0.0, lag))
        while (lag := lag - INTERVAL_S) > 0:
            self._samples.append(lag)
        self._schedule()


@contextmanager
def lag_measured() -> Iterator[LagMeter]:
    meter = LagMeter()
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()
