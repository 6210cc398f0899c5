"""The scripted server as a process, and what it says it did."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SERVER = Path(__file__).with_name("truth_server.py")


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds to the first token and between tokens; a stall, in seconds, if any."""

    ttft_ms: float
    gap_ms: float
    stall_at_s: float = 0.0
    stall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Truth:
    """Of requests in the order they came: when, when their tokens were written (seconds of
    CLOCK_MONOTONIC), and the `user` in them."""

    received: Sequence[float]
    written: Sequence[Sequence[float]]
    users: Sequence[str]

    def of(self, users: Iterable[str]) -> "Truth":
        """Those of the users, in their order. Raises KeyError."""
        places = {user: place for place, user in enumerate(self.users)}
        return self._at([places[user] for user in users])

    def last(self, count: int) -> "Truth":
        return self._at(range(len(self.users))[-count:])

    def _at(self, places: Iterable[int]) -> "Truth":
        chosen = list(places)
        return Truth(
            [self.received[place] for place in chosen],
            [self.written[place] for place in chosen],
            [self.users[place] for place in chosen],
        )

    def ttft_ms(self, due: Sequence[float] | None = None) -> "np.ndarray":
        """Since they came, or since they were `due`."""
        begin = np.asarray(self.received if due is None else due)
        return np.asarray(1e3 * (np.asarray([each[0] for each in self.written]) - begin))

    def tpot_ms(self) -> "np.ndarray":
        spans = [(each[-1] - each[0]) / (len(each) - 1) for each in self.written if len(each) > 1]
        return 1e3 * np.asarray(spans)

    def itl_ms(self) -> "np.ndarray":
        return 1e3 * np.concatenate([np.diff(each) for each in self.written])

    def tokens_per_s(self, begin: float, end: float) -> float:
        moments = np.concatenate([np.asarray(each) for each in self.written])
        return float(((moments >= begin) & (moments <= end)).sum() / (end - begin))


class TruthServer:
    """A running one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def truth(self) -> Truth:
        """What it has done since the last such look, as far as it is done."""
        with urllib.request.urlopen(f"{self.url}/truth", timeout=30) as answer:
            done = sorted(json.load(answer))
        received, written, users = zip(*done, strict=True) if done else ((), (), ())
        return Truth(received, written, users)


@contextmanager
def truth_server(timing: Timing) -> Iterator[TruthServer]:
    options = {
        "--ttft-ms": timing.ttft_ms,
        "--gap-ms": timing.gap_ms,
        "--stall-at-s": timing.stall_at_s,
        "--stall-s": timing.stall_s,
    }
    command = [sys.executable, str(SERVER)]
    command += [str(part) for option in options.items() for part in option]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield TruthServer(int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
