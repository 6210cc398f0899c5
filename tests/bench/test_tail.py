"""Bounds of a p99 by counting."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.bench.tail import quantile, requests_needed, sure_above, sure_below


def test_known_sizes_of_samples() -> None:
    # 0.99 ** 299 is just below 5 %, 0.99 ** 161 just below 20 %.
    assert requests_needed(0.95) == 299
    assert requests_needed(0.8) == 161
    # The next two are in tables of tolerance limits.
    assert requests_needed(0.95, num_over=1) == 473
    assert requests_needed(0.95, num_over=2) == 628


def test_a_sample_is_read_both_ways() -> None:
    assert sure_below(299, 0) == pytest.approx(0.9505, abs=1e-3)
    assert sure_above(40, 4) > 0.999
    assert sure_above(40, 0) == 0.0
    assert sure_below(40, 40) == 0.0


@given(st.integers(1, 5000), st.data())
def test_one_is_never_sure_of_both(num: int, data: st.DataObject) -> None:
    over = data.draw(st.integers(0, num))
    below, above = sure_below(num, over), sure_above(num, over)
    assert 0 <= below <= 1
    assert 0 <= above <= 1
    assert below + above <= 1 + 1e-9
    if over < num:
        assert sure_below(num, over + 1) <= below + 1e-12
        assert sure_above(num, over + 1) >= above - 1e-12


def test_quantiles() -> None:
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.75) == 1.75
    assert quantile([1.0, inf], 0.99) == inf
    assert quantile([1.0, 2.0, inf], 0.5) == 2.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.99)
