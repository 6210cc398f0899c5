"""Quantiles stay within the stated error, and sketches add up."""

import math

from hypothesis import given
from hypothesis import strategies as st

from carpool.watch.sketch import RELATIVE_ERROR, bin_of, merge, observe, quantile, value_of

VALUES = st.lists(st.floats(1e-5, 1e9), min_size=1, max_size=60)


def sketch_of(values):
    sketch = {}
    for value in values:
        observe(sketch, value)
    return sketch


@given(VALUES, st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_the_relative_error(values, share):
    exact = sorted(values)[math.floor(share * (len(values) - 1))]
    assert abs(quantile(sketch_of(values), share) - exact) <= RELATIVE_ERROR * exact * (1 + 1e-9)


@given(VALUES, VALUES)
def test_merging_is_as_if_one_had_seen_both(one, other):
    merged = sketch_of(one)
    merge(merged, sketch_of(other))
    assert merged == sketch_of(one + other)


def test_nothing_has_no_quantile():
    assert quantile({}, 0.5) is None


def test_odd_values_are_kept_in_range():
    assert value_of(bin_of(0.0)) == value_of(bin_of(-3.0)) == value_of(bin_of(math.nan)) == 0.0
    assert math.isfinite(value_of(bin_of(math.inf)))
