"""Trends and differences: what is known of them, against a slow but plain reckoning."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.watch.statistics import (
    blocks,
    change_point,
    mann_kendall,
    middle,
    rank_test,
    theil_sen,
)

NUMBERS = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), max_size=30)


@given(NUMBERS, NUMBERS)
def test_nothing_is_ever_nan(one, other):
    a, b = np.array(one, float), np.array(other, float)
    found = [mann_kendall(a), theil_sen(a), rank_test(a, b), middle(a), change_point(a, 0.5)]
    assert all(math.isfinite(value) for value in found)


@given(st.lists(st.integers(-50, 50), min_size=5, max_size=20))
def test_the_slope_is_the_median_of_all_slopes(values):
    slopes = [(values[j] - values[i]) / (j - i) for i, j in combinations(range(len(values)), 2)]
    assert theil_sen(np.array(values, float)) == pytest.approx(float(np.median(slopes)))


def test_a_rise_is_told_from_noise():
    noise = np.random.default_rng(1).normal(0, 1, 40)
    assert abs(mann_kendall(noise)) < 3
    assert mann_kendall(noise + 0.2 * np.arange(40)) > 4
    assert mann_kendall(np.ones(40)) == 0


def test_higher_values_are_told_from_others():
    rng = np.random.default_rng(2)
    one, other = rng.normal(0, 1, 30), rng.normal(1.5, 1, 30)
    assert rank_test(one, other) > 3
    assert rank_test(one, other) == pytest.approx(-rank_test(other, one))
    assert rank_test(one, one) == 0


def test_a_change_is_found_where_it_is():
    values = np.concatenate([np.zeros(20), np.ones(10)])
    assert change_point(values, 0.5) == 20


def test_blocks_are_medians_of_what_is_known():
    values = np.array([9.0, 1, 2, 3, math.nan, 5, 7, math.nan, math.nan, 1])
    assert blocks(values, 3)[:2].tolist() == [2.0, 6.0]
    assert math.isnan(blocks(values, 3)[2])
    assert len(blocks(np.zeros(2), 3)) == 0
