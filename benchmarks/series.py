"""How much room a month of series takes, how quickly it is read, and what recording costs.

    python -m benchmarks.series [--days 30] [--rate 1.0] [--people 100] [--database FILE]

Writes the month that so many requests a second would leave, at every resolution, as the recorder
packs it; reads it back as the dashboard does; and times what recording adds to a request. Fails
where the month takes 200 MiB or more, or a read 100 ms or more.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from carpool.store.database import Database
from carpool.store.lane import Lane
from carpool.store.series_store import SeriesChunk, SeriesStore
from carpool.store.usage_row import UsageRow
from carpool.watch.accumulator import NO_MODEL, Accumulators
from carpool.watch.open_chunks import OpenChunks
from carpool.watch.point import Point
from carpool.watch.resolution import ALL, DAY_S
from carpool.watch.series_names import GAUGES, OF_HOST
from carpool.watch.series_reader import SeriesReader
from carpool.watch.watching import Watching

MOST_BYTES = 200 * 2**20
MOST_READ_S = 0.1
UNTIL = 1_800_057_600
MODEL = "m"
CURVES = (
    *("ttft.p50", "ttft.p99", "tpot.p50", "queue_wait.p90"),
    *("waiting.mean", "waiting.max", "in_flight.mean", "seats.mean"),
    *("tokens_per_second", "kv_usage.mean", "requests", "prefix_hit_rate"),
)


def some_row(rng: random.Random, num_people: int) -> UsageRow:
    person = rng.randrange(num_people)
    prompt, output = int(rng.lognormvariate(6.5, 1)), int(rng.lognormvariate(5, 0.7))
    ttft = 1e3 * rng.lognormvariate(-1, 0.6)
    tpot = 1e3 * rng.lognormvariate(-3.5, 0.3)
    return UsageRow(
        request_id="",
        started_at=float(UNTIL),
        person_id=f"person{person:06d}",
        key_id=f"key{person:09d}",
        model=MODEL,
        backend=MODEL,
        api="chat",
        lane=Lane.INTERACTIVE,
        prompt_tokens=prompt,
        cached_tokens=prompt // 3,
        output_tokens=output,
        usage_source="reported",
        queue_ms=1e3 * rng.lognormvariate(-6, 2),
        ttft_ms=ttft,
        tpot_ms=tpot,
        total_ms=ttft + tpot * output,
        outcome="completed" if rng.random() < 0.97 else "client_cancelled",
        status=200,
        is_stream=True,
        is_fallback=False,
    )


def some_points(rng: random.Random, rate: float, num_people: int) -> dict[str, Point]:
    """What ten seconds leave."""
    sums = Accumulators(has_think=False)
    for _ in range(int(10 * rate + rng.random())):
        sums.ended(MODEL, some_row(rng, num_people))
    points = sums.take()
    model, host = points.setdefault(MODEL, Point()), points.setdefault(NO_MODEL, Point())
    for name in GAUGES:
        for _ in range(5):
            (host if name in OF_HOST else model).sample(name, rng.randrange(1000))
    return points


def write_days(database: Database, days: int, rate: float, num_people: int) -> None:
    """One day is made and packed; the others are that day again, moved."""
    rng, chunks = random.Random(1), OpenChunks(lambda: "benchmark")
    packed: dict[tuple[int, int, str, str], SeriesChunk] = {}
    start = UNTIL - DAY_S
    for moment in range(start, UNTIL, 10):
        chunks.add(moment + 5, some_points(rng, rate, num_people))
        if (moment + 10) % 600 == 0:
            for chunk in (due := chunks.due(moment, all_of_them=moment + 10 == UNTIL)):
                packed[chunk.resolution, chunk.start, chunk.model, chunk.kind] = chunk
            chunks.written(due)
    store = SeriesStore(database)
    for day in range(days):
        store.put(_moved(packed.values(), -day * DAY_S))


def _moved(chunks: Iterable[SeriesChunk], seconds: int) -> list[SeriesChunk]:
    return [replace(each, start=each.start + seconds) for each in chunks]


def queries(reader: SeriesReader) -> dict[str, Callable[[], object]]:
    now = float(UNTIL)

    def curves(seconds: float, resolution: int) -> Callable[[], object]:
        return lambda: reader.read_series(CURVES, now - seconds, now, resolution, MODEL)

    def callers(seconds: float, resolution: int) -> Callable[[], object]:
        return lambda: reader.read_callers(now - seconds, now, resolution, MODEL)

    return {
        "curves, 1 hour at 10 s": curves(3600, 10),
        "curves, 1 day at 1 min": curves(DAY_S, 60),
        "curves, 7 days at 1 h": curves(7 * DAY_S, 3600),
        "curves, 30 days at 1 h": curves(30 * DAY_S, 3600),
        "who, 1 hour at 1 min": callers(3600, 60),
        "who, 1 day at 1 h": callers(DAY_S, 3600),
        "who, 30 days at 1 h": callers(30 * DAY_S, 3600),
    }


def timed(query: Callable[[], object], times: int = 7) -> float:
    """The median."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        query()
        found.append(time.perf_counter() - began)
    return sorted(found)[times // 2]


def recording_seconds(num_people: int, number: int = 20_000) -> float:
    """What recording adds to a request that ends."""
    rng = random.Random(2)
    rows = [some_row(rng, num_people) for _ in range(2000)]
    sums = Accumulators()
    began = time.process_time()
    for count in range(number):
        sums.ended(MODEL, rows[count % 2000])
    return (time.process_time() - began) / number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second")
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument("--database", type=Path, help="where to leave it (default: nowhere)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.database or Path(folder) / "series.db"
        database = Database(f"sqlite:///{path.absolute()}")
        database.migrate()
        empty = path.stat().st_size
        write_days(database, arguments.days, arguments.rate, arguments.people)
        with database.read() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        size = path.stat().st_size - empty
        by_resolution = _sizes(database)
        reader = SeriesReader(database)
        times = {name: timed(query) for name, query in queries(reader).items()}
        look = timed(lambda: Watching(database, clock=lambda: float(UNTIL)).look(), 3)
    added = recording_seconds(arguments.people)
    print(f"{arguments.days} days at {arguments.rate:g} requests/s of {arguments.people} people")
    print(f"size       {size / 2**20:6.1f} MiB, {size / arguments.days / 2**20:.2f} MiB a day")
    for each in ALL:
        part = by_resolution.get(each.seconds, 0) / arguments.days / 2**20
        print(f"           {part:6.2f} MiB a day at {each.seconds} s")
    for name, seconds in times.items():
        print(f"{1e3 * seconds:8.1f} ms  {name}")
    print(f"{1e3 * look:8.1f} ms  all signals of a model, with two weeks of history")
    print(f"{1e6 * added:8.2f} us  a request, to record it")
    is_ok = size < MOST_BYTES * arguments.days / 30 and max(times.values()) < MOST_READ_S
    figures = {
        "bytes": size,
        "bytes_per_day": size / arguments.days,
        "slowest_read_ms": 1e3 * max(times.values()),
        "look_ms": 1e3 * look,
        "recording_us": 1e6 * added,
        "ok": is_ok,
    }
    print(json.dumps(figures))
    return 0 if is_ok else 1


def _sizes(database: Database) -> dict[int, int]:
    query = "SELECT resolution, SUM(LENGTH(chunk)) FROM series GROUP BY resolution"
    with database.read() as connection:
        return {int(row[0]): int(row[1]) for row in connection.exec_driver_sql(query)}


if __name__ == "__main__":
    sys.exit(main())
