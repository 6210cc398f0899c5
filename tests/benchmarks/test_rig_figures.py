"""Percentiles, and differences of what may not be there."""

import pytest

from benchmarks.rig_figures import Spread, above, spread


def test_percentiles_lie_between_neighbours():
    assert spread([4.0, 1.0, 2.0, 3.0]) == Spread(2.5, pytest.approx(3.97))


def test_one_value_is_all_its_percentiles():
    assert spread([7.0]) == Spread(7.0, 7.0)


def test_nothing_has_no_percentiles_and_no_difference():
    nothing = spread([])
    assert nothing == Spread(None, None)
    assert above(nothing.p50, 1.0) is None
    assert above(1.0, nothing.p50) is None
    assert above(3.0, 1.0) == 2.0
