"""20,000 requests, of which 30 % are abandoned, leave the gateway as it was before them.

    python -m benchmarks.abandon
    python -m benchmarks.abandon --requests 2000

The real gateway over the rig's mock engine, in turn by the keys of 1,000 people. Requests are
streams or not, some with bodies of 1 MB; they are abandoned while they are sent, while they wait
for a seat, before their answer begins, or within a stream. After a tenth as many for warm-up,
and again at the end, the gateway is left alone, the engine closes idle connections, and what
the gateway's process holds is counted (needs /proc). Exits with 1 if anything is left behind,
memory grew by 20 MiB, or a request that was not abandoned failed. The last line is one JSON
object.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rig_carpool import carpool_gateway, make_keys, run_rig
from benchmarks.rig_connection import Connect, connect_to, post
from benchmarks.rig_engine import RigEngine
from benchmarks.rig_probe import Held, read_probe
from carpool.store.limits import Limits

NUM_PEOPLE = 1000
NUM_AT_ONCE = 64
SEATS = 32
ABANDONED = 0.3
MAX_GROWTH = 20 * 2**20
CHUNKS_PER_S = 500
MAX_DELAY_S = 0.04
BIG_EVERY = 100
BIG_BYTES = 1_000_000
SETTLE_S = 6
_LIMITS = Limits(rpm=10**9, tpm=10**12, max_in_flight=2, monthly_tokens=10**15)
_CHAT = "/v1/chat/completions"
console = Console(stderr=True, highlight=False)


class Plan:
    """Requests one after the other, and how much of each its client waits for."""

    def __init__(self, keys: Sequence[str], seed: int) -> None:
        self._keys = keys
        self._random = random.Random(seed)
        self._big = " ".join(["word"] * (BIG_BYTES // 5))

    def requests(self, number: int) -> Iterator[tuple[bytes, str]]:
        """`number` of them: bytes, and "whole" or the point at which they are abandoned."""
        for index in range(number):
            is_stream = self._random.random() < 0.5
            text = self._big if index % BIG_EVERY == 0 else f"Question {index}."
            body: dict[str, Any] = {
                "model": "team",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": self._random.randint(2, 20),
            }
            if is_stream:
                body["stream"] = True
            request = post(_CHAT, self._keys[index % len(self._keys)], body)
            is_left = self._random.random() < ABANDONED
            points = ("sending", "waiting", "in a stream" if is_stream else "waiting")
            yield request, self._random.choice(points) if is_left else "whole"

    def patience_s(self) -> float:
        """How long somebody waits who then leaves: for no seat yet, or for half an answer."""
        return self._random.uniform(0, 1.5 * MAX_DELAY_S)

    def num_pieces(self) -> int:
        return self._random.randint(1, 5)

    def part(self, request: bytes) -> bytes:
        return request[: self._random.randint(1, len(request) - 1)]


class _Answer:
    """Listens to one answer; `enough` is set by its end, or after some pieces of it."""

    def __init__(self, num_pieces: int | None) -> None:
        self.status: int | None = None
        self.enough = asyncio.Event()
        self._num_left = num_pieces

    def piece(self, data: bytes) -> None:
        if self._num_left is not None:
            self._num_left -= 1
            if self._num_left == 0:
                self.enough.set()

    def ended(self, status: int) -> None:
        self.status = status
        self.enough.set()

    def lost(self) -> None:
        self.enough.set()


async def send_all(connect: Connect, plan: Plan, number: int) -> Counter[str]:
    """How they ended: "whole", the point at which they were abandoned, or what failed."""
    ends: Counter[str] = Counter()
    requests = plan.requests(number)

    async def work() -> None:
        for request, point in requests:
            ends[await _send(connect, plan, request, point)] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(NUM_AT_ONCE):
            tasks.create_task(work())
    return ends


async def _send(connect: Connect, plan: Plan, request: bytes, point: str) -> str:
    answer = _Answer(plan.num_pieces() if point == "in a stream" else None)
    connection = await connect(answer)
    try:
        connection.ask(plan.part(request) if point == "sending" else request)
        patience_s = plan.patience_s() if point in ("sending", "waiting") else 60.0
        try:
            await asyncio.wait_for(answer.enough.wait(), patience_s)
        except TimeoutError:
            return point if point != "whole" else "failed: no answer in 60 s"
        if point == "whole" and answer.status != 200:
            return f"failed: {answer.status or 'connection lost'}"
        return point
    finally:
        connection.close()


# ---------------------------------------------------------------------- measuring


async def at_rest(engine: RigEngine, probe: Path) -> Held:
    """What is held while nobody asks: the least of some seconds, since the ledger and the key
    watch come and go."""
    counts = []
    for _ in range(SETTLE_S):
        engine.drop_connections()
        await asyncio.sleep(1)
        counts.append(asdict(await asyncio.to_thread(read_probe, probe)))
    return Held(**{name: min(count[name] for count in counts) for name in counts[0]})


def left_behind(before: Held, after: Held) -> dict[str, int]:
    """What there is more of than before, and how much."""
    old, new = asdict(before), asdict(after)
    return {name: new[name] - old[name] for name in old if new[name] > old[name]}


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no VmRSS for process {pid}")


async def measure(num_requests: int, home: Path) -> dict[str, Any]:
    database, probe = home / "carpool.db", home / "probe"
    console.print(f"making {NUM_PEOPLE:,} keys ...")
    keys = make_keys(database, (f"person-{i}" for i in range(NUM_PEOPLE)), _LIMITS)
    plan = Plan(keys, seed=0)
    python = ("-m", "benchmarks.rig_probe", str(probe))
    async with RigEngine(seats=SEATS, chunks_per_s=CHUNKS_PER_S, max_delay_s=MAX_DELAY_S) as engine:
        url = f"sglang+http://127.0.0.1:{engine.port}"
        async with carpool_gateway("team", url, database, python=python) as gateway:
            connect = connect_to(gateway.port)
            console.print("warm-up ...")
            await send_all(connect, plan, max(2 * NUM_PEOPLE, num_requests // 10))
            before = await at_rest(engine, probe)
            memory = resident_bytes(gateway.pid)
            console.print(f"{num_requests:,} requests ...")
            began = time.perf_counter()
            ends = await send_all(connect, plan, num_requests)
            took = time.perf_counter() - began
            after = await at_rest(engine, probe)
            growth = resident_bytes(gateway.pid) - memory
    num_left = sum(ends[point] for point in ("sending", "waiting", "in a stream"))
    return {
        "requests": num_requests,
        "abandoned": num_left,
        "failed": sum(count for end, count in ends.items() if end.startswith("failed")),
        "most_at_engine": engine.most_at_once,
        "requests_per_s": num_requests / took,
        "ends": dict(ends),
        "before": asdict(before),
        "after": asdict(after),
        "left_behind": left_behind(before, after),
        "rss_growth_mib": growth / 2**20,
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether the gateway is as it was."""
    return (
        not result["left_behind"]
        and not result["failed"]
        and result["most_at_engine"] <= SEATS
        and result["rss_growth_mib"] * 2**20 < MAX_GROWTH
    )


# ------------------------------------------------------------------------ the run


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=20_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="carpool-bench-") as home:
        result = run_rig(measure(options.requests, Path(home)))
    result["holds"] = holds(result)
    _report(result)
    return 0 if result["holds"] else 1


def _report(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['requests']:,} requests, {result['abandoned']:,} abandoned")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right")
    for name, before in result["before"].items():
        table.add_row(name.replace("_", " "), f"{before:,}", f"{result['after'][name]:,}")
    output = Console(width=100)
    output.print(table)
    ends = ", ".join(f"{count:,} {end}" for end, count in sorted(result["ends"].items()))
    output.print(f"{ends}; memory grew by {result['rss_growth_mib']:.1f} MiB")
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
