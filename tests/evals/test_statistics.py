"""Intervals and tests, against published examples and against each other."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.evals.statistics import (
    Counts,
    ExactTest,
    more_than_before,
    newcombe,
    sign_p,
    significant,
    wilson,
)


def test_wilson_as_published() -> None:
    """Newcombe (1998a), table I, method 3."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=1e-4)


def test_newcombe_as_published() -> None:
    """Newcombe (1998b), table II, method 10: 56/70 - 48/80, 9/10 - 3/10, 10/10 - 0/10."""
    assert newcombe(Counts(48, 80, 56, 70)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert newcombe(Counts(3, 10, 9, 10)) == pytest.approx((0.1705, 0.8090), abs=1e-4)
    assert newcombe(Counts(0, 10, 10, 10)) == pytest.approx((0.6075, 1.0), abs=1e-4)


def test_of_one_case_it_is_fisher_s_test() -> None:
    """Fisher's tea: 3 of 4 right against 1 of 4, one-sided 17/70."""
    assert more_than_before([Counts(1, 4, 3, 4)]).p == pytest.approx(17 / 70)
    assert more_than_before([Counts(0, 5, 5, 5)]).p == pytest.approx(1 / math.comb(10, 5))


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 5))
def test_of_one_repeat_it_is_mcnemar_s_test(num_up: int, num_down: int, num_same: int) -> None:
    cases = [Counts(0, 1, 1, 1)] * num_up + [Counts(1, 1, 0, 1)] * num_down
    cases += [Counts(1, 1, 1, 1)] * num_same
    total = num_up + num_down
    tail = sum(math.comb(total, k) for k in range(num_up, total + 1)) / 2**total
    assert more_than_before(cases).p == pytest.approx(tail)
    assert more_than_before(cases).least_p == pytest.approx(0.5**total)


counts = st.builds(
    lambda n, m, old, new: Counts(old % (n + 1), n, new % (m + 1), m), *[st.integers(0, 6)] * 4
)


@given(st.lists(counts, max_size=8))
def test_a_p_is_a_probability_and_no_less_than_there_is_room_for(cases: list[Counts]) -> None:
    test = more_than_before(cases)
    assert 0 <= test.least_p <= test.p + 1e-12
    assert test.p <= 1


@given(st.lists(counts, max_size=8), counts)
def test_cases_where_all_agree_say_nothing(cases: list[Counts], other: Counts) -> None:
    agreed = Counts(other.num_old, other.num_old, other.num_new, other.num_new)
    assert more_than_before([*cases, agreed]) == more_than_before(cases)


def test_the_sign_test() -> None:
    assert sign_p(0, 0) == 1.0
    assert sign_p(5, 5) == 1.0
    assert sign_p(10, 0) == pytest.approx(2 / 1024)


def test_tests_that_could_never_come_out_significant_cost_nothing() -> None:
    able = ExactTest(0.009, 0.001)
    unable = ExactTest(0.5, 0.5)
    assert significant([able, *[unable] * 100], 0.01) == [True, *[False] * 100]
    assert significant([able, ExactTest(0.9, 0.001)], 0.01) == [False, False]
    assert significant([], 0.01) == []
