"""Tokens from logits: each row by its own settings, like a slow and obvious sampler's."""

import dataclasses
import math
from collections import Counter
from itertools import pairwise
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.engine.sampler import sample
from carpool.engine.sampling_params import SamplingParams
from carpool.engine.sampling_state import SamplingState
from carpool.scheduling.request import Request

NUM_DRAWS = 200


def state(prompt=(1,), output=(), seed=0, eos=frozenset(), **fields):
    params = SamplingParams(max_tokens=100, seed=seed, **fields)
    request = Request("r", prompt, max_tokens=100)
    request.all_token_ids += output
    return SamplingState(request, params, seed, eos)


class Fixed(SamplingState):
    """Draws at a given place of the distribution."""

    __slots__ = ("place",)

    def uniform(self) -> float:
        return self.place


def drawn(row, **fields):
    """Token counts of draws at NUM_DRAWS places spread evenly over [0, 1)."""
    states = []
    for number in range(NUM_DRAWS):
        fixed = Fixed(Request("r", (1,), max_tokens=9), SamplingParams(max_tokens=9, **fields), 0)
        fixed.place = (number + 0.5) / NUM_DRAWS
        states.append(fixed)
    logits = np.tile(np.asarray(row, np.float32), (NUM_DRAWS, 1))
    output = sample(logits, states)
    assert not output.errors
    return Counter(output.token_ids)


def kept_sets(row, *, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """All sets of tokens that the filters may leave: more than one where tokens are equally
    good at the border, told by their numbers and their probabilities."""
    scaled = np.asarray(row, np.float64) / max(temperature, 1e-6)
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    ranked = np.sort(probabilities)[::-1]
    ranked = ranked[ranked > 0]
    edge = 1e-5
    counts = set()
    for slack in (-edge, 0.0, edge):
        left = ranked[ranked >= ranked[0] * min(1.0, min_p * (1 + slack))]
        if top_k:
            left = left[:top_k]
        if top_p < 1.0:
            mass = left.cumsum() / left.sum()
            left = left[: int(np.count_nonzero(mass < top_p + slack)) + 1]
        counts.add(len(left))
    return probabilities, ranked, range(min(counts), max(counts) + 1)


def rows():
    """Logits: spread, flat, peaked, with ties, with forbidden tokens."""
    spread = st.floats(-20, 20, width=32)
    tied = st.sampled_from([0.0, 1.0, 2.0])
    peaked = st.sampled_from([0.0, 30.0])
    some = st.one_of(spread, st.just(-math.inf))
    return st.one_of(
        st.lists(kind, min_size=1, max_size=40) for kind in (spread, tied, peaked, some)
    ).filter(lambda row: max(row) > -math.inf)


filters = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.3, 1.0, 1.7])},
    optional={
        "top_k": st.integers(1, 45),
        "top_p": st.floats(0.01, 1.0),
        "min_p": st.floats(0.0, 1.0),
    },
)


@settings(max_examples=80)
@given(row=rows(), fields=filters)
def test_the_tokens_kept_and_their_shares_are_those_of_a_whole_sort(row, fields):
    counts = drawn(row, **fields)
    probabilities, ranked, sizes = kept_sets(row, **fields)
    least = ranked[sizes[-1] - 1]
    assert all(probabilities[token] >= least * (1 - 1e-4) for token in counts)
    assert len(counts) <= sizes[-1]
    shares = [ranked[:size].sum() for size in sizes]
    for token, count in counts.items():
        expected = [probabilities[token] / share for share in shares]
        slack = 2.0 / NUM_DRAWS
        assert min(expected) - slack <= count / NUM_DRAWS <= max(expected) + slack
    seen = sorted((probabilities[token] for token in counts), reverse=True)
    visible = [p for p in ranked[: sizes[0]] if p / shares[-1] > 2.0 / NUM_DRAWS]
    assert len(seen) >= len(visible)
    assert seen[: len(visible)] == pytest.approx(visible, rel=1e-3)


@pytest.mark.parametrize("fields", [{"top_k": 4000}, {"min_p": 1e-5}, {"top_k": 500}, {}])
def test_top_p_counts_the_mass_that_the_other_filters_leave_of_a_long_tail(fields):
    row = np.log([*(0.5**n for n in range(10)), *(5e-4 for _ in range(4000))])
    fields = {"temperature": 1.0, "top_p": 0.4, **fields}
    _, _, sizes = kept_sets(row, **fields)
    counts = drawn(row, **fields)
    assert len(counts) == sizes[0] == sizes[-1]


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000, 49152])
@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9999}, {"top_k": 100_000}])
def test_every_token_of_a_flat_row_can_be_drawn_at_any_vocabulary_size(size, fields):
    counts = drawn(np.zeros(size), temperature=1.0, **fields)
    assert len(counts) == min(size, NUM_DRAWS)
    assert max(counts.values()) <= math.ceil(NUM_DRAWS / size)
    assert max(counts) >= size * (1 - 2 / NUM_DRAWS) - 1


@pytest.mark.parametrize("place", [0, 255, 256, 700, 999])
@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
def test_a_token_that_outweighs_all_others_is_drawn_wherever_it_stands(place, fields):
    row = np.full(1000, -50.0)
    row[place] = 50.0
    assert set(drawn(row, temperature=1.0, **fields)) == {place}


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_k": 900}, {"min_p": 0.01}])
def test_a_forbidden_token_is_never_drawn(fields):
    row = np.zeros(1000)
    row[::2] = -math.inf
    assert all(token % 2 for token in drawn(row, temperature=5.0, **fields))


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.5}])
def test_at_hardly_any_temperature_the_best_token_is_drawn(fields):
    row = np.random.default_rng(3).normal(size=1000)
    for temperature in (1e-9, 1e-7, 1e-4):
        assert set(drawn(row, temperature=temperature, **fields)) == {int(row.argmax())}


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.99999}, {"top_k": 1000}])
def test_at_a_huge_temperature_all_tokens_are_alike(fields):
    row = np.random.default_rng(3).normal(size=100) * 10
    counts = drawn(row, temperature=1e9, **fields)
    assert len(counts) == 100
    assert set(counts.values()) == {2}


@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 6, "top_p": 0.7}]
)
def test_seeds_draw_by_the_probabilities(fields):
    row = np.array([2.0, 1.5, 1.0, 1.0, 0.0, -1.0, -2.0, -8.0], np.float32)
    num_draws = 4000
    states = [state(seed=seed, temperature=1.0, **fields) for seed in range(num_draws)]
    counts = Counter(sample(np.tile(row, (num_draws, 1)), states).token_ids)
    probabilities, _, sizes = kept_sets(row, temperature=1.0, **fields)
    kept = np.argsort(-row, kind="stable")[: sizes[0]]
    assert set(counts) <= set(map(int, kept))
    expected = probabilities[kept] / probabilities[kept].sum() * num_draws
    found = np.array([counts[int(token)] for token in kept])
    chi_square = float(((found - expected) ** 2 / expected).sum())
    # The 99.9th percentile for at most 7 degrees of freedom.
    assert chi_square < 24.3


def test_the_draws_of_one_seed_do_not_repeat():
    row = np.zeros(64, np.float32)
    states = [state(seed=5, output=[0] * length, temperature=1.0) for length in range(2000)]
    tokens = sample(np.tile(row, (2000, 1)), states).token_ids
    pairs = Counter(pairwise(tokens))
    assert len(set(tokens)) == 64
    assert max(pairs.values()) <= 6


def params():
    return st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.0, 0.5, 1.0, 1.5])},
        optional={
            "top_k": st.integers(1, 300),
            "top_p": st.floats(0.05, 1.0),
            "min_p": st.floats(0.0, 0.5),
            "repetition_penalty": st.floats(0.5, 2.0),
            "presence_penalty": st.floats(-2, 2),
            "frequency_penalty": st.floats(-2, 2),
            "logit_bias": st.lists(
                st.tuples(st.integers(0, 299), st.floats(-100, 100)),
                max_size=3,
                unique_by=itemgetter(0),
            ).map(tuple),
            "min_tokens": st.integers(0, 4),
            "stop_token_ids": st.frozensets(st.integers(0, 299), max_size=3),
            "logprobs": st.integers(0, 5),
        },
    )


tokens = st.lists(st.integers(0, 299), min_size=1, max_size=6)


@settings(max_examples=60)
@given(
    batch=st.lists(st.tuples(tokens, tokens, params()), min_size=2, max_size=8),
    seed=st.integers(0, 2**32),
    order=st.randoms(use_true_random=False),
)
def test_a_row_in_a_batch_gives_what_it_gives_alone(batch, seed, order):
    logits = np.random.default_rng(seed).normal(scale=4, size=(len(batch), 300))
    logits = logits.astype(np.float32)

    def states(rows):
        return [state(batch[row][0], batch[row][1], seed + row, **batch[row][2]) for row in rows]

    alone = [sample(logits[[row]], states([row])) for row in range(len(batch))]
    rows = list(range(len(batch)))
    order.shuffle(rows)
    together = sample(logits[rows], states(rows))
    assert together.token_ids == [alone[row].token_ids[0] for row in rows]
    assert together.logprobs == [alone[row].logprobs[0] for row in rows]
    assert together.errors == {}


def test_a_draw_depends_on_the_seed_and_the_number_of_tokens_alone():
    row = np.zeros(1000, np.float32)

    def token(seed, prompt, output):
        return sample(row[None].copy(), [state(prompt, output, seed, temperature=1.0)]).token_ids

    assert token(7, [1], [5, 6]) == token(7, [3, 4, 9], [8, 8])
    assert token(7, [1], [5, 6]) != token(7, [1], [5])
    assert token(7, [1], [5]) != token(8, [1], [5])
    assert token(-1, [1], []) == token(2**64 - 1, [1], [])


def test_equal_logits_go_to_the_lower_id_without_a_temperature():
    row = np.array([[1.0, 3.0, 0.0, 3.0]], np.float32)
    assert sample(row, [state(temperature=0.0)]).token_ids == [1]


def test_logit_bias_moves_a_token_up_or_out():
    row = np.array([0.0, 1.0, 2.0], np.float32)

    def token(**fields):
        return sample(row[None].copy(), [state(temperature=0.0, **fields)]).token_ids[0]

    assert token() == 2
    assert token(logit_bias=((0, 2.5),)) == 0
    assert token(logit_bias=((2, -100.0),)) == 1
    counts = Counter(
        sample(row[None].copy(), [state(seed=n, logit_bias=((1, 100.0),))]).token_ids[0]
        for n in range(50)
    )
    assert set(counts) == {1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_would_end_a_text_is_not_drawn_before_min_tokens(temperature):
    row = np.array([9.0, 8.0, 0.0, 0.0], np.float32)
    fields = {"temperature": temperature, "min_tokens": 2, "stop_token_ids": frozenset({1})}
    for output, allowed in (((), {2, 3}), ((2,), {2, 3}), ((2, 3), {0, 1})):
        states = [state(output=output, seed=n, eos=frozenset({0}), **fields) for n in range(40)]
        assert set(sample(np.tile(row, (40, 1)), states).token_ids) <= allowed


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("top", [0, 1, 5, 50])
def test_logprobs_are_of_the_models_own_distribution(temperature, top):
    logits = np.random.default_rng(5).normal(scale=3, size=(4, 50)).astype(np.float32)
    fields = {"temperature": temperature, "top_k": 3, "repetition_penalty": 1.7, "logprobs": top}
    states = [state((1, 2), (3,), seed, logit_bias=((4, 90.0),), **fields) for seed in range(3)] + [
        state(temperature=1.0)
    ]
    output = sample(logits.copy(), states)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    assert output.logprobs[3] is None
    for row, entry in enumerate(output.logprobs[:3]):
        assert entry.token_id == output.token_ids[row]
        assert entry.logprob == pytest.approx(exact[row, entry.token_id], abs=1e-5)
        best = np.argsort(-exact[row], kind="stable")[:top]
        assert [token for token, _ in entry.top] == best.tolist()
        assert [value for _, value in entry.top] == pytest.approx(exact[row, best], abs=1e-5)


@given(row=rows(), top=st.integers(1, 10))
def test_the_best_alternatives_come_in_order_the_lower_id_first_among_equals(row, top):
    array = np.asarray(row, np.float32)
    output = sample(array[None].copy(), [state(temperature=0.0, logprobs=min(top, len(row)))])
    best = np.argsort(-array, kind="stable")[: min(top, len(row))]
    assert [token for token, _ in output.logprobs[0].top] == best.tolist()


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 2, "min_p": 0.1},
        {"temperature": 0.5, "repetition_penalty": 1.2, "logprobs": 3},
    ],
)
def test_a_row_that_is_no_distribution_fails_alone(bad, fields):
    logits = np.random.default_rng(1).normal(size=(5, 300)).astype(np.float32)
    logits[1] = bad
    logits[3, 7] = math.nan
    states = [state(seed=n, **fields) for n in range(5)]
    output = sample(logits.copy(), states)
    assert set(output.errors) == {1, 3}
    assert "finite" in output.errors[1]
    for row in (0, 2, 4):
        alone = sample(logits[[row]], [states[row]])
        assert output.token_ids[row] == alone.token_ids[0]
        assert output.logprobs[row] == alone.logprobs[0]


def test_settings_of_one_row_do_not_leak_into_the_next():
    logits = np.zeros((3, 10), np.float32)
    fields = {"temperature": 1.0, "top_k": 1, "logit_bias": ((4, 50.0),)}
    plain = SamplingParams(max_tokens=9)
    states = [state(seed=1, **fields), state(seed=1), state(seed=1, **fields)]
    output = sample(logits, states)
    assert output.token_ids[0] == output.token_ids[2] == 4
    assert dataclasses.replace(plain, seed=1).is_greedy is False
    assert output.token_ids[1] == sample(np.zeros((1, 10), np.float32), [states[1]]).token_ids[0]
