"""How many tokens a request is expected to take, and how long its answer may get."""

import pytest

from carpool.gateway.api_kind import ApiKind
from carpool.gateway.output_cap import clamped, has_output, output_cap
from carpool.gateway.token_estimate import FIRST_OUTPUT_TOKENS, BytesPerToken, ExpectedOutput

CHAT, COMPLETIONS = ApiKind.CHAT, ApiKind.COMPLETIONS


def test_a_prompt_is_estimated_by_what_the_engine_has_been_reporting():
    ratio = BytesPerToken()
    assert ratio.prompt_tokens(400) == 100
    for _ in range(200):
        ratio.learn(600, 300)
    assert ratio.prompt_tokens(400) == pytest.approx(200, abs=1)
    assert ratio.prompt_tokens(0) == 1


def test_one_odd_report_changes_little():
    ratio = BytesPerToken()
    for num_bytes, num_tokens in ((10**9, 1), (1, 10**9), (100, 0)):
        ratio.learn(num_bytes, num_tokens)
    assert 80 <= ratio.prompt_tokens(400) <= 130


def test_output_is_expected_by_the_persons_own_answers_and_within_the_cap():
    expected = ExpectedOutput()
    assert expected.tokens("ana", None) == FIRST_OUTPUT_TOKENS
    for _ in range(100):
        expected.learn("ana", 40)
    assert expected.tokens("ana", None) == 40
    assert expected.tokens("ana", 10) == 10
    assert expected.tokens("ben", None) == FIRST_OUTPUT_TOKENS


def test_only_so_many_people_are_remembered():
    expected = ExpectedOutput(max_people=2)
    for person in ("ana", "ben", "ana", "cem"):
        expected.learn(person, 7)
    known = [person for person in ("ana", "ben", "cem") if expected.tokens(person, None) == 7]
    assert known == ["ana", "cem"]


@pytest.mark.parametrize(
    ("kind", "fields", "cap"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 3}, 3),
        (CHAT, {"max_tokens": None, "max_completion_tokens": 3}, 3),
        (CHAT, {"max_tokens": "many"}, None),
        (CHAT, {"max_tokens": True}, None),
        (CHAT, {"max_tokens": -1}, None),
        (ApiKind.RESPONSES, {"max_output_tokens": 8, "max_tokens": 2}, 8),
        (ApiKind.EMBEDDINGS, {"max_tokens": 8}, None),
    ],
)
def test_the_cap_is_the_least_that_the_request_names(kind, fields, cap):
    assert output_cap(kind, fields) == cap


@pytest.mark.parametrize(
    ("kind", "fields", "changes"),
    [
        (CHAT, {"max_tokens": 50}, {}),
        (CHAT, {"max_tokens": 500}, {"max_tokens": 100}),
        (CHAT, {"max_completion_tokens": 500}, {"max_completion_tokens": 100}),
        (
            CHAT,
            {"max_tokens": 500, "max_completion_tokens": 101},
            {"max_tokens": 100, "max_completion_tokens": 100},
        ),
        (CHAT, {}, {"max_tokens": 100}),
        (CHAT, {"max_tokens": None}, {"max_tokens": 100}),
        (COMPLETIONS, {}, {"max_tokens": 100}),
        (ApiKind.RESPONSES, {}, {"max_output_tokens": 100}),
        (ApiKind.MESSAGES, {"max_tokens": 500}, {"max_tokens": 100}),
        (ApiKind.EMBEDDINGS, {}, {}),
    ],
)
def test_no_cap_by_any_name_exceeds_what_the_key_allows(kind, fields, changes):
    assert clamped(kind, fields, 100) == changes
    assert clamped(kind, fields, None) == {}


def test_embeddings_and_token_counts_have_no_output_to_reserve_for():
    assert {kind for kind in ApiKind if not has_output(kind)} == {
        ApiKind.EMBEDDINGS,
        ApiKind.OTHER,
    }
