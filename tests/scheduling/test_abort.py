"""A request can end in every state, within one step, and gives everything back."""

import pytest

from carpool.scheduling.request import FinishReason


def used_blocks(world):
    return world.scheduler.stats().num_used_blocks


def run_to(world, request, state):
    """Bring `request` into `state`; a step is in flight afterwards if the name says so."""
    match state:
        case "waiting":
            return
        case "prefilling":
            world.step()
            assert 0 < request.num_computed_tokens < request.num_prompt_tokens
        case "prefill in flight":
            world.begin()
        case "decoding":
            while request.num_output_tokens < 2:
                world.step()
        case "decode in flight":
            while request.num_output_tokens < 2:
                world.step()
            world.begin()
        case "last token in flight":
            while request.num_output_tokens < request.max_tokens - 1:
                world.step()
            world.begin()


STATES = [
    "waiting",
    "prefilling",
    "prefill in flight",
    "decoding",
    "decode in flight",
    "last token in flight",
]


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.STOP])
@pytest.mark.parametrize("state", STATES)
def test_an_abort_gives_everything_back_within_one_step(make_world, make_request, state, reason):
    world = make_world(max_num_batched_tokens=8)
    request = world.add(make_request(12, max_tokens=5))
    run_to(world, request, state)
    num_received = request.num_output_tokens
    output = world.abort(request, reason)
    assert output.finish_reason is reason
    assert output.new_token_ids == ()
    assert request.finish_reason is reason
    if "in flight" in state:
        assert used_blocks(world) > 0, "the step still reads and writes them"
        assert world.finish() == []
    assert used_blocks(world) == 0
    assert not world.scheduler.has_unfinished
    assert request.num_output_tokens == num_received
    assert world.begin() is None


@pytest.mark.parametrize("state", STATES)
def test_neighbours_of_an_aborted_request_go_on(make_world, make_request, state):
    world = make_world(max_num_batched_tokens=8, num_blocks=10)
    request = world.add(make_request(12, max_tokens=5))
    neighbours = [world.add(make_request(6, max_tokens=6)) for _ in range(3)]
    run_to(world, request, state)
    world.abort(request)
    if world.output is not None:
        world.finish()
    world.drain()
    assert all(neighbour.num_output_tokens == 6 for neighbour in neighbours)


def test_a_preempted_request_can_be_aborted(make_world, make_requests):
    world = make_world(num_blocks=8)
    requests = [world.add(request) for request in make_requests(3, num_tokens=8, max_tokens=6)]
    world.step()
    world.step()
    assert requests[2].status == "preempted"
    assert world.abort(requests[2]).finish_reason == "abort"
    world.drain()


def test_a_second_abort_and_an_unknown_id_do_nothing(make_world, make_request):
    world = make_world()
    request = world.add(make_request())
    assert world.abort(request) is not None
    assert world.abort(request) is None
    assert world.scheduler.abort("nobody") is None


def test_one_that_runs_but_is_not_in_the_step_gives_its_blocks_back_at_once(
    make_world, make_request
):
    world = make_world(max_num_seqs=3, max_num_batched_tokens=3, batching_policy="static")
    first, second = world.add(make_request(6)), world.add(make_request(6))
    world.begin()
    assert not world.is_in_flight(second)
    before = used_blocks(world)
    world.abort(second)
    assert used_blocks(world) == before - 2
    world.finish()
    world.drain()
    assert first.num_output_tokens == 4


def test_a_token_sampled_after_the_abort_is_not_delivered_nor_needed(make_world, make_request):
    world = make_world()
    request, neighbour = world.add(make_request()), world.add(make_request())
    world.begin()
    world.abort(request)
    assert [output.request for output in world.finish()] == [neighbour]
    world.drain()
