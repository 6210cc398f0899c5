"""The probe beside a real gateway sees what runs, and that it is over."""

import asyncio
import time
from pathlib import Path

import pytest

from benchmarks.abandon import left_behind
from benchmarks.rig_carpool import carpool_gateway, make_keys
from benchmarks.rig_connection import connect_to
from benchmarks.rig_engine import RigEngine
from benchmarks.rig_people import Person, Prompts
from benchmarks.rig_probe import read_probe
from carpool.store.limits import Limits

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


def wait_until(probe, is_so):
    deadline = time.monotonic() + 10
    while not is_so(held := read_probe(probe)):
        assert time.monotonic() < deadline, held
        time.sleep(0.01)
    return held


async def held_until(probe, is_so):
    return await asyncio.to_thread(wait_until, probe, is_so)


def is_full(held):
    """The last of three seats is kept for people who have nothing in flight."""
    return (held.seats, held.tickets_waiting, held.exchanges, held.reservations) == (2, 3, 5, 5)


def is_over(before, held):
    return not held.exchanges and not left_behind(before, held)


async def flood_and_leave(home):
    probe, database = home / "probe", home / "carpool.db"
    key = make_keys(database, ["ada"], Limits(tpm=10**9))[0]
    python = ("-m", "benchmarks.rig_probe", str(probe))
    async with RigEngine(seats=3) as engine:
        url = f"sglang+http://127.0.0.1:{engine.port}"
        async with carpool_gateway("team", url, database, python=python) as gateway:
            before = await held_until(probe, lambda held: True)
            ada = Person(connect_to(gateway.port), key, "team", Prompts(3, 0), 100_000)
            flood = asyncio.create_task(ada.flood(5))
            during = await held_until(probe, is_full)
            flood.cancel()
            await asyncio.wait([flood])
            engine.drop_connections()
            after = await held_until(probe, lambda held: is_over(before, held))
    return before, during, after


def test_what_runs_is_counted_until_it_is_over(tmp_path):
    before, during, after = asyncio.run(flood_and_leave(tmp_path))
    assert during.replica_loads == 2
    assert during.tasks >= before.tasks + 5
    assert during.descriptors > before.descriptors  # a probe may have been open before
    assert during.seat_tokens > 0
    for held in (before, after):
        assert held.reservations == held.tickets_waiting == held.seat_tokens == 0
