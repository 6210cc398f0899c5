"""When requests of an open loop are due."""

from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from carpool.bench.arrivals import constant, gamma, poisson, recorded
from carpool.bench.errors import BenchError


def gaps(load) -> list[float]:
    return [after - before for before, after in pairwise(load.offsets)]


def test_constant_arrivals_are_evenly_spread():
    assert list(constant(4, 1).offsets) == [0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_have_the_rate_and_its_irregularity():
    found = gaps(poisson(50, 400, seed=1))
    assert fmean(found) == pytest.approx(1 / 50, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(1, rel=0.05)


def test_gamma_arrivals_come_in_bursts():
    found = gaps(gamma(50, 0.25, 400, seed=1))
    assert fmean(found) == pytest.approx(1 / 50, rel=0.1)
    assert pstdev(found) / fmean(found) == pytest.approx(2, rel=0.1)


def test_a_seed_gives_the_same_arrivals_again():
    assert poisson(5, 20, seed=3) == poisson(5, 20, seed=3)
    assert poisson(5, 20, seed=3) != poisson(5, 20, seed=4)


def test_a_recording_is_replayed_faster():
    assert list(recorded([100.0, 101.0, 104.0], speed=2).offsets) == [0, 0.5, 2]


@pytest.mark.parametrize(
    "load",
    [
        lambda: constant(0, 1),
        lambda: poisson(float("nan"), 1),
        lambda: poisson(1, float("inf")),
        lambda: constant(1e6, 60),
        lambda: gamma(1, 0, 1),
        lambda: recorded([1.0], speed=0),
        lambda: recorded([]),
    ],
)
def test_loads_that_are_none(load):
    with pytest.raises(BenchError, match=r"give|no requests"):
        load()
