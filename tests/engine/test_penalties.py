"""Tokens that are there already become less likely, or more, by OpenAI's and CTRL's formulas."""

import math
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.engine.penalties import apply_biases, apply_penalties
from carpool.engine.sampling_params import SamplingParams
from carpool.engine.sampling_state import SamplingState
from carpool.scheduling.request import Request

VOCABULARY = 12


def state(prompt, output=(), eos=frozenset(), matcher=None, **fields):
    request = Request("r", prompt, max_tokens=100)
    request.all_token_ids += output
    return SamplingState(request, SamplingParams(max_tokens=100, **fields), 0, eos, matcher)


def penalized(row, *states):
    logits = np.tile(np.asarray(row, np.float32), (len(states), 1))
    apply_biases(logits, states)
    apply_penalties(logits, states)
    return logits


def one_by_one(row, prompt, output, params):
    """The same, token by token."""
    result = list(row)
    for token, value in params.get("logit_bias", ()):
        result[token] += value
    for token, value in enumerate(result):
        factor = params.get("repetition_penalty", 1.0)
        if token in prompt or token in output:
            value = value / factor if value > 0 else value * factor
        if token in output:
            value -= params.get("presence_penalty", 0.0)
            value -= params.get("frequency_penalty", 0.0) * output.count(token)
        result[token] = value
    return result


def test_repetition_looks_at_prompt_and_output():
    [row] = penalized([2.0, 2.0, 2.0, -2.0], state([0, 3], [1], repetition_penalty=2.0))
    assert row.tolist() == [1.0, 1.0, 2.0, -4.0]


def test_presence_and_frequency_look_at_the_output_alone():
    row = [1.0, 1.0, 1.0, 1.0]
    [present] = penalized(row, state([0, 0], [1, 1, 2], presence_penalty=0.5))
    assert present.tolist() == [1.0, 0.5, 0.5, 1.0]
    [frequent] = penalized(row, state([0, 0], [1, 1, 2], frequency_penalty=0.25))
    assert frequent.tolist() == [1.0, 0.5, 0.75, 1.0]


def test_a_token_that_the_prompt_repeats_is_penalized_once():
    once, twice = penalized(
        [3.0] * 4, state([1], repetition_penalty=1.5), state([1, 1, 1], repetition_penalty=1.5)
    )
    assert once.tolist() == twice.tolist() == [3.0, 2.0, 3.0, 3.0]


def test_a_negative_penalty_favours_what_is_there():
    [row] = penalized([0.0, 0.0], state([1], [0], presence_penalty=-2.0, frequency_penalty=-1.0))
    assert row.tolist() == [3.0, 0.0]


def test_a_forbidden_token_stays_forbidden():
    fields = {"repetition_penalty": 0.5, "presence_penalty": -2.0, "logit_bias": ((0, 100.0),)}
    [row] = penalized([-math.inf, 0.0], state([0], [0], **fields))
    assert row[0] == -math.inf


def test_bias_is_added_before_repetition_is_looked_at():
    [row] = penalized([1.0, 1.0], state([0], logit_bias=((0, 3.0),), repetition_penalty=2.0))
    assert row.tolist() == [2.0, 1.0]


token_ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)
params = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.floats(0.1, 10),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.lists(
            st.tuples(st.integers(0, VOCABULARY - 1), st.floats(-100, 100)), unique_by=itemgetter(0)
        ).map(tuple),
    },
)
logit_rows = st.lists(st.floats(-30, 30, width=32), min_size=VOCABULARY, max_size=VOCABULARY)


@given(row=logit_rows, batch=st.lists(st.tuples(token_ids, token_ids, params), min_size=1))
def test_each_row_of_a_batch_is_penalized_by_its_own_tokens(row, batch):
    found = penalized(row, *(state(prompt, output, **fields) for prompt, output, fields in batch))
    for values, (prompt, output, fields) in zip(found, batch, strict=True):
        expected = one_by_one(row, prompt, output, fields)
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(row=logit_rows, prompt=token_ids, output=token_ids, fields=params)
def test_a_state_that_grows_with_its_output_penalizes_like_a_new_one(row, prompt, output, fields):
    grown = state(prompt, **fields)
    for length in range(len(output) + 1):
        fresh = state(prompt, output[:length], **fields)
        one, other = penalized(row, grown, fresh)
        assert one.tolist() == other.tolist()
        # A preemption forgets what is computed, not what was said.
        grown.request.num_computed_tokens = 0
        grown.request.all_token_ids = [*prompt, *output[: length + 1]]


def test_what_ends_a_text_is_masked_until_min_tokens_are_there():
    fields = {"min_tokens": 2, "stop_token_ids": frozenset({3})}
    rows = penalized(
        [0.0] * 5,
        *(state([1, 1, 1], [0] * length, eos=frozenset({4}), **fields) for length in range(4)),
    )
    assert [np.isneginf(row).nonzero()[0].tolist() for row in rows] == [[3, 4], [3, 4], [], []]


def test_what_a_grammar_has_to_end_ends_before_min_tokens():
    nothing_else = [-np.inf, -np.inf, 0.0, -np.inf]
    fields = {"min_tokens": 2, "eos": frozenset({2})}
    [free, guided] = penalized(
        nothing_else, state([1], **fields), state([1], matcher=Unfinished(), **fields)
    )
    assert np.isneginf(free).all()
    assert guided.tolist() == nothing_else


class Unfinished:
    """A grammar that has not been told of an end yet."""

    is_terminated = False
