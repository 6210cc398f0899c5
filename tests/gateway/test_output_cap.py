"""How long answers may get, how many there are, and under which name an engine is told."""

import pytest

from carpool.gateway.api_kind import ApiKind
from carpool.gateway.output_cap import clamped, num_sequences, output_cap, under_one_name
from carpool.gateway.refusal import Refusal

CHAT, COMPLETIONS, RESPONSES = ApiKind.CHAT, ApiKind.COMPLETIONS, ApiKind.RESPONSES


@pytest.mark.parametrize(
    ("kind", "fields", "number"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 3}, 3),
        (CHAT, {"n": None}, 1),
        (CHAT, {"n": 4.0}, 4),
        (CHAT, {"n": 10**4000}, 1 << 20),
        (CHAT, {"n": -1}, 1),
        (CHAT, {"n": True}, 1),
        (COMPLETIONS, {"prompt": "a", "n": 2, "best_of": 5}, 5),
        (COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2}, 6),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (COMPLETIONS, {"prompt": []}, 1),
        (RESPONSES, {"n": 4}, 1),
        (ApiKind.EMBEDDINGS, {"n": 4}, 1),
    ],
)
def test_answers_that_are_written_at_once(kind, fields, number):
    assert num_sequences(kind, fields) == number


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"max_tokens": 100}),
        ({"max_tokens": None}, {"max_tokens": 100}),
        ({"max_tokens": 50}, {}),
        ({"max_completion_tokens": 500}, {"max_completion_tokens": 100}),
        ({"max_tokens": 500, "max_completion_tokens": 7}, {"max_tokens": 100}),
        ({"max_tokens": 500.0}, {"max_tokens": 100}),
        ({"max_tokens": -1}, {"max_tokens": 100}),
        ({"max_tokens": 50, "n_predict": -1}, {"n_predict": 100}),
        ({"n_predict": 500}, {"max_tokens": 100, "n_predict": 100}),
    ],
)
def test_a_limit_clamps_what_was_sent_and_caps_what_has_no_cap(fields, expected):
    assert clamped(CHAT, fields, 100) == expected
    assert clamped(CHAT, fields, None) == {}


@pytest.mark.parametrize("value", ["500", "many", 1.5, True, [500], float("inf")])
def test_what_an_engine_might_take_for_a_number_is_refused_where_it_would_count(value):
    with pytest.raises(Refusal, match=r"max_tokens is .*, but must be a whole number"):
        clamped(CHAT, {"max_tokens": value}, 100)
    if value is not True:
        with pytest.raises(Refusal, match=r"n is .*, but must be a whole number"):
            num_sequences(CHAT, {"n": value})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 9}, ({}, ())),
        ({"max_completion_tokens": 9}, ({"max_tokens": 9}, ("max_completion_tokens",))),
        (
            {"max_tokens": 5, "max_completion_tokens": 9},
            ({"max_tokens": 5}, ("max_completion_tokens",)),
        ),
        ({"max_completion_tokens": None}, ({}, ("max_completion_tokens",))),
    ],
)
def test_a_cap_goes_by_the_one_name_that_an_engine_knows(fields, expected):
    assert under_one_name(CHAT, fields, "max_tokens") == expected


def test_the_least_cap_holds():
    assert output_cap(CHAT, {"max_tokens": 5, "max_completion_tokens": 9}) == 5
    assert output_cap(CHAT, {"max_tokens": 0}) is None
