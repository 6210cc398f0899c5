"""Made-up requests are the same for the same seed, have nothing in common, and fit their mix."""

from hypothesis import given
from hypothesis import strategies as st

from carpool.lab.workload import LONG_EVERY, Lengths, mixed_workload

LENGTHS = Lengths(short_prompt=(2, 5), short_output=(1, 3), long_prompt=(8, 9), long_output=(6, 7))
TOKENS = range(17, 117)


def test_a_seed_gives_the_same_requests_again_and_another_seed_others() -> None:
    assert mixed_workload(1, 12, TOKENS, LENGTHS) == mixed_workload(1, 12, TOKENS, LENGTHS)
    assert mixed_workload(1, 12, TOKENS, LENGTHS) != mixed_workload(2, 12, TOKENS, LENGTHS)


@given(seed=st.integers(), num_requests=st.integers(1, 50))
def test_no_two_prompts_share_a_prefix(seed: int, num_requests: int) -> None:
    requests = mixed_workload(seed, num_requests, TOKENS, LENGTHS)
    first_tokens = {request.prompt_token_ids[0] for request in requests}
    assert len(first_tokens) == len({request.request_id for request in requests}) == num_requests


@given(seed=st.integers())
def test_lengths_are_in_their_ranges_and_tokens_in_the_vocabulary(seed: int) -> None:
    for request in mixed_workload(seed, 8, TOKENS, LENGTHS):
        prompt = LENGTHS.short_prompt if request.is_short else LENGTHS.long_prompt
        output = LENGTHS.short_output if request.is_short else LENGTHS.long_output
        assert prompt[0] <= len(request.prompt_token_ids) <= prompt[1]
        assert output[0] <= request.num_output_tokens <= output[1]
        assert set(request.prompt_token_ids) <= set(TOKENS)


@given(seed=st.integers())
def test_one_request_of_each_few_is_a_long_one(seed: int) -> None:
    requests = mixed_workload(seed, 3 * LONG_EVERY, TOKENS, LENGTHS)
    for start in range(0, len(requests), LONG_EVERY):
        group = requests[start : start + LONG_EVERY]
        assert sum(not request.is_short for request in group) == 1


def test_requests_ask_for_what_they_need_unless_told_otherwise() -> None:
    exact = mixed_workload(0, 4, TOKENS, LENGTHS)
    assert all(request.max_tokens == request.num_output_tokens for request in exact)
    open_ended = mixed_workload(0, 4, TOKENS, LENGTHS, max_tokens=64)
    assert {request.max_tokens for request in open_ended} == {64}
    assert [r.prompt_token_ids for r in exact] == [r.prompt_token_ids for r in open_ended]
