"""When blocks run out, the latest make room, come back, and nothing is lost or counted twice."""

from itertools import product

import pytest


def test_only_as_many_make_room_as_needed_and_the_latest_first(make_world, make_requests):
    world = make_world(num_blocks=8)
    requests = [world.add(request) for request in make_requests(3, num_tokens=8, max_tokens=6)]
    world.step()
    output = world.begin()
    assert output.preempted_request_ids == ("r2",)
    assert [item.request.request_id for item in output.scheduled] == ["r0", "r1"]
    assert requests[2].status == "preempted"
    assert requests[2].waiting_reason == "preemption"
    world.finish()
    world.drain()


@pytest.mark.parametrize("enable_prefix_cache", [True, False])
@pytest.mark.parametrize(
    ("num_output_tokens", "num_spare_blocks"),
    [(1, 1), *product(range(2, 11), (0, 1))],
)
def test_a_request_put_out_after_any_token_says_what_it_says_alone(
    make_world, make_request, num_output_tokens, num_spare_blocks, enable_prefix_cache
):
    """With a block for each token, the size of the pool says when it runs out."""
    world = make_world(
        num_blocks=2 * num_output_tokens + 2 + num_spare_blocks,
        block_size=1,
        enable_prefix_cache=enable_prefix_cache,
    )
    world.add(make_request(1, max_tokens=num_output_tokens + 2))
    request = world.add(make_request(3, max_tokens=min(2 * num_output_tokens, 14)))
    while request.num_preemptions == 0 and not request.is_finished:
        world.step()
    assert request.num_output_tokens == num_output_tokens
    world.drain()
    assert request.finish_reason == "length"


def test_a_resumed_request_is_fed_its_own_tokens_window_by_window(make_world, make_requests):
    world = make_world(
        num_blocks=9, max_num_seqs=3, max_num_batched_tokens=4, enable_prefix_cache=False
    )
    requests = [world.add(request) for request in make_requests(3, num_tokens=7, max_tokens=20)]
    fed = {request: [] for request in requests}
    while (output := world.begin()) is not None:
        for request_id in output.preempted_request_ids:
            fed[next(r for r in requests if r.request_id == request_id)].clear()
        for request, start, num_tokens, _ in output.scheduled:
            assert len(fed[request]) == start
            fed[request].extend(request.all_token_ids[start : start + num_tokens])
        world.finish()
    assert sum(request.num_preemptions for request in requests) > 0
    for request in requests:
        assert fed[request] == request.all_token_ids[:-1]


def test_cached_tokens_are_those_of_the_first_admission(make_world, make_requests):
    world = make_world(num_blocks=8)
    requests = [world.add(request) for request in make_requests(3, num_tokens=8, max_tokens=6)]
    world.drain()
    assert requests[2].num_preemptions > 0
    assert [request.num_cached_tokens for request in requests] == [0, 0, 0]
    stats = world.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (24, 0)


@pytest.mark.parametrize("enable_prefix_cache", [True, False])
def test_many_requests_in_a_pool_hardly_larger_than_one_all_finish(
    make_world, make_requests, enable_prefix_cache
):
    """12 blocks, 10 requests of 10 blocks each: each is put out a bounded number of times."""
    world = make_world(num_blocks=12, enable_prefix_cache=enable_prefix_cache)
    requests = [world.add(request) for request in make_requests(10, num_tokens=10, max_tokens=31)]
    assert world.drain(max_steps=350) <= 350
    assert all(request.num_output_tokens == 31 for request in requests)
    assert world.scheduler.stats().num_preemptions <= 20
    assert max(request.num_preemptions for request in requests) <= 5


def test_nobody_is_let_in_only_to_be_put_out_again(make_world, make_requests):
    """Seven of eight blocks are in use by two that will grow: the third waits, though its
    one block is free."""
    world = make_world(num_blocks=8)
    first = [world.add(request) for request in make_requests(2, num_tokens=8, max_tokens=9)]
    world.step()
    world.step()
    third = world.add(*make_requests(1, num_tokens=4, max_tokens=1))
    while not any(request.is_finished for request in first):
        world.step()
        if not third.is_finished and third.status == "waiting":
            assert third.waiting_reason == "kv_blocks"
    world.drain()
    assert third.num_preemptions == 0


def test_requests_of_more_than_half_the_pool_take_turns(make_world, make_requests):
    world = make_world(num_blocks=10)
    requests = [world.add(request) for request in make_requests(4, num_tokens=20, max_tokens=5)]
    world.drain()
    assert all(request.finish_reason == "length" for request in requests)
    assert world.scheduler.stats().num_preemptions == 0


def test_a_chunked_prompt_keeps_its_blocks_while_decodes_grow(make_world, make_request):
    world = make_world(num_blocks=16, max_num_seqs=2, max_num_batched_tokens=3)
    decode = world.add(make_request(2, max_tokens=30))
    world.step()
    chunked = world.add(make_request(24, max_tokens=2))
    world.step()
    assert len(chunked.block_table) == 6, "the whole prompt's blocks from the start"
    table = list(chunked.block_table)
    while chunked.num_computed_tokens < 24:
        world.step()
        assert chunked.block_table[:6] == table
    world.drain()
    assert (decode.num_preemptions, chunked.num_preemptions) == (0, 0)


def test_the_preempted_come_back_before_anybody_new(make_world, make_requests, make_request):
    world = make_world(num_blocks=8)
    requests = [world.add(request) for request in make_requests(3, num_tokens=8, max_tokens=6)]
    world.step()
    newcomer = world.add(make_request(1, max_tokens=1))
    world.step()
    assert requests[2].status == "preempted"
    while requests[2].status == "preempted":
        assert newcomer.status == "waiting"
        assert newcomer.waiting_reason == "preemption"
        world.step()
    world.drain()
    assert newcomer.is_finished
    assert requests[2].admission_seq == 2


def test_reserving_the_maximum_never_preempts(make_world, make_requests):
    world = make_world(num_blocks=12, memory_policy="reserve_max")
    requests = [world.add(request) for request in make_requests(10, num_tokens=10, max_tokens=13)]
    output = world.begin()
    assert len(output.scheduled) == 2, "six blocks each, though three would do for the prompt"
    world.finish()
    world.drain()
    assert world.scheduler.stats().num_preemptions == 0
    assert all(request.num_output_tokens == 13 for request in requests)
