"""Percentiles and how much is known of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.bench.distribution import Distribution, interval_ranks


def test_values_between_samples_are_interpolated():
    figures = Distribution([30.0, 10.0, 20.0, 40.0])
    assert figures.p50.value == 25.0
    assert figures.quantile(1.0 / 3).value == pytest.approx(20.0)
    assert (figures.mean, figures.min, figures.max) == (25.0, 10.0, 40.0)


def test_of_nothing_nothing_is_known():
    figures = Distribution([])
    assert figures.p99.value is None
    assert not figures.p99.is_resolved
    assert figures.as_dict()["mean"] is None


def test_failures_cannot_better_a_percentile():
    figures = Distribution([1.0] * 97, num_missing=3)
    assert figures.p90.value == 1.0
    assert math.isinf(figures.p99.value)
    assert figures.as_dict()["p99"]["value"] == "never"


@pytest.mark.parametrize(
    ("n", "q", "ranks"),
    [
        # Of ten samples the second and the ninth bound the median with 97.9 %.
        (10, 0.5, (1, 8)),
        (6, 0.5, (0, 5)),
        (5, 0.5, (None, None)),
        (367, 0.99, (358, None)),
        (368, 0.99, (359, 367)),
    ],
)
def test_ranks_of_the_textbook(n, q, ranks):
    assert interval_ranks(n, q) == ranks


def test_a_p99_of_a_hundred_samples_has_no_upper_end():
    p99 = Distribution(range(100)).p99
    assert p99.low is not None
    assert p99.high is None
    assert not p99.is_resolved


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_holds_what_it_promises(n, q):
    """Against the binomial distribution, summed term by term."""
    terms = [math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]
    low, high = interval_ranks(n, q)
    if low is not None:
        assert math.fsum(terms[: low + 1]) <= 0.025 + 1e-9
    if low is None or low + 1 < n:
        assert math.fsum(terms[: (low if low is not None else -1) + 2]) > 0.025 - 1e-9
    if high is not None:
        assert math.fsum(terms[high + 1 :]) <= 0.025 + 1e-9
    else:
        assert math.fsum(terms[n:]) > 0.025 - 1e-9
