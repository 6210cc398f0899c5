"""Phases of the fairness benchmark, over an engine of no cost."""

import asyncio

import pytest

from benchmarks import fairness
from benchmarks.fairness import Team, run_phase
from benchmarks.rig_connection import connect_to
from benchmarks.rig_engine import MODEL, RigEngine


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(fairness, "NUM_IN_FLIGHT", 6)
    monkeypatch.setattr(fairness, "FLOOD_OUTPUT", 8)
    monkeypatch.setattr(fairness, "INTERVAL_S", 0.02)


def phase(**people):
    async def run():
        async with RigEngine(chunks_per_s=500) as engine:
            team = Team(connect_to(engine.port), MODEL, ["", "", ""], seed=0)
            return await run_phase(team, 0.4, 6, **people)

    return asyncio.run(run())


def test_the_light_one_alone_has_no_flood():
    found = phase(num_floods=0, is_light=True)
    assert found.floods == ()
    assert found.light_ttft_ms.p50 > 0
    assert found.tok_s == found.light.tok_s > 0


def test_flood_and_light_one_together_are_counted_apart():
    found = phase(num_floods=1, is_light=True)
    assert found.light_ttft_ms.p50 > 0
    assert found.light.tok_s > 0
    assert found.tok_s == found.light.tok_s + found.floods[0].tok_s
    assert found.mean_prompt == 24  # what the engine reports of every prompt


def test_two_floods_of_one_kind_get_as_much_where_there_is_enough_for_both():
    found = phase(num_floods=2, is_light=False)
    one, other = found.floods
    assert one.service == pytest.approx(other.service, rel=0.3)
    assert found.light_ttft_ms.p50 is None
