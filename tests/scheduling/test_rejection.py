"""What can never run is refused when it comes; all else is served."""

import pytest

from carpool.scheduling.scheduler import RejectReason, RequestRejected


def rejection(scheduler, request):
    with pytest.raises(RequestRejected) as caught:
        scheduler.add(request, 0.0)
    assert not scheduler.has_unfinished
    assert request.status == "rejected"
    return caught.value


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 15, 16])
def test_the_context_may_be_filled_to_its_last_token(make_world, make_request, num_tokens):
    world = make_world(max_model_len=17)
    world.add(make_request(num_tokens, max_tokens=17 - num_tokens))
    world.drain()
    error = rejection(world.scheduler, make_request(num_tokens, max_tokens=18 - num_tokens))
    assert error.reason is RejectReason.EXCEEDS_MAX_MODEL_LEN
    assert "18 tokens" in error.message
    assert "17 (max_model_len)" in error.message
    assert f"max_tokens to at most {17 - num_tokens}" in error.message


def test_a_prompt_that_fills_the_context_is_told_to_shrink(make_scheduler, make_request):
    error = rejection(make_scheduler(max_model_len=8), make_request(8, max_tokens=1))
    assert "fewer than 8 tokens" in error.message


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 7, 8])
def test_the_pool_may_be_filled_to_its_last_slot(make_world, make_request, num_tokens):
    """The last token sampled needs no slot: prompt + max_tokens - 1 = 8 fits in 2 x 4."""
    world = make_world(num_blocks=2, block_size=4)
    request = world.add(make_request(num_tokens, max_tokens=9 - num_tokens))
    world.drain()
    assert request.num_output_tokens == 9 - num_tokens
    error = rejection(world.scheduler, make_request(num_tokens, max_tokens=10 - num_tokens))
    assert error.reason is RejectReason.EXCEEDS_KV_CACHE
    assert "needs 9 KV slots" in error.message
    assert "has 8" in error.message


def test_a_prompt_longer_than_the_pool_is_refused(make_scheduler, make_request):
    error = rejection(make_scheduler(num_blocks=2), make_request(12, max_tokens=1))
    assert error.reason is RejectReason.EXCEEDS_KV_CACHE


def test_an_empty_prompt_is_refused_and_the_neighbours_go_on(make_world, make_request):
    world = make_world()
    neighbour = world.add(make_request())
    with pytest.raises(RequestRejected) as caught:
        world.scheduler.add(make_request(prompt=[]), 0.0)
    assert caught.value.reason is RejectReason.EMPTY_PROMPT
    world.drain()
    assert neighbour.finish_reason == "length"


@pytest.mark.parametrize("limits", [(0, 0), (-1, 0), (2, 3), (2, -1)])
def test_limits_that_contradict_each_other_are_refused(make_scheduler, make_request, limits):
    max_tokens, min_tokens = limits
    request = make_request(max_tokens=max_tokens, min_tokens=min_tokens)
    error = rejection(make_scheduler(), request)
    assert error.reason is RejectReason.INVALID_LIMITS
    assert str(max_tokens) in error.message


def test_a_request_over_its_persons_block_cap_is_refused(make_world, make_request):
    world = make_world(max_blocks_per_person=2)
    world.add(make_request(5, max_tokens=4))
    world.drain()
    error = rejection(world.scheduler, make_request(5, max_tokens=5))
    assert error.reason is RejectReason.EXCEEDS_PERSON_CAP
    assert "needs 9 KV slots" in error.message
    assert "8 (2 blocks of 4)" in error.message


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_an_id_in_use_is_refused_and_may_be_used_again_afterwards(
    make_world, make_request, num_steps
):
    world = make_world()
    first = world.add(make_request(request_id="same"))
    for _ in range(num_steps):
        world.step()
    with pytest.raises(RequestRejected, match="'same' is in use") as caught:
        world.scheduler.add(make_request(request_id="same"), 0.0)
    assert caught.value.reason is RejectReason.DUPLICATE_ID
    world.drain()
    assert first.num_output_tokens == 4
    world.add(make_request(request_id="same"))
    world.drain()


def test_an_id_may_be_used_again_while_its_aborted_first_user_is_in_flight(
    make_world, make_request
):
    world = make_world()
    first = world.add(make_request(request_id="same"))
    world.begin()
    world.abort(first)
    second = world.add(make_request(request_id="same"))
    world.finish()
    assert second.status == "waiting"
    world.drain()
    assert second.num_output_tokens == 4
