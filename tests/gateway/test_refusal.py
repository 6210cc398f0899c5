"""Every way in which a request can end has a status, and a refusal says when to come back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.gateway.exchange import OUTCOMES
from carpool.gateway.outcome import HTTP_STATUS, Outcome
from carpool.gateway.refusal import Refusal
from carpool.gateway.upstream_errors import How

BUSY = [outcome for outcome in Outcome if HTTP_STATUS[outcome] in (429, 503)]


def test_every_outcome_has_a_status_and_every_end_of_an_answer_an_outcome():
    assert HTTP_STATUS.keys() == set(Outcome)
    assert OUTCOMES.keys() == set(How)
    assert all(200 <= status <= 599 for status in HTTP_STATUS.values())


def test_the_statuses_that_were_promised():
    promised = {
        401: {Outcome.BAD_KEY, Outcome.KEY_REVOKED},
        403: {Outcome.MODEL_NOT_ALLOWED},
        413: {Outcome.TOO_LARGE},
        429: {
            Outcome.REQUESTS_PER_MINUTE,
            Outcome.TOKENS_PER_MINUTE,
            Outcome.TOKEN_BUDGET,
            Outcome.QUEUE_SHARE,
        },
        503: {
            Outcome.QUEUE_FULL,
            Outcome.QUEUE_TIMEOUT,
            Outcome.LOADING,
            Outcome.BACKEND_DOWN,
            Outcome.DRAINING,
        },
        504: {Outcome.FIRST_BYTE_LATE, Outcome.UPSTREAM_TIMEOUT},
    }
    for status, outcomes in promised.items():
        assert {each for each in Outcome if HTTP_STATUS[each] == status} == outcomes


@pytest.mark.parametrize("outcome", BUSY)
@given(wait_s=st.none() | st.floats(0, 1e8))
def test_every_429_and_503_says_in_whole_seconds_when_to_come_back(outcome, wait_s):
    refusal = Refusal(outcome, "busy", retry_after_s=wait_s)
    (value,) = [value for name, value in refusal.headers() if name == b"retry-after"]
    assert int(value) >= max(1, wait_s or 0)
    assert int(value) <= max(1, wait_s or 0) + 1


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - set(BUSY)))
def test_no_other_answer_does(outcome):
    refusal = Refusal(outcome, "no", retry_after_s=9)
    assert b"retry-after" not in dict(refusal.headers())


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_body_is_an_openai_error(outcome):
    refusal = Refusal(outcome, 'no "such" model\n', limit="model")
    error = json.loads(refusal.body())["error"]
    assert error["message"] == 'no "such" model\n'
    assert (error["code"], error["param"]) == (outcome.value, "model")
    assert error["type"].endswith("_error")
