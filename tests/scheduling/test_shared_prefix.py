"""A block is shared once it is written, with those who may see it, and computed once."""

import pytest

from carpool.scheduling.scheduler import BatchingPolicy

PREFIX = list(range(12))


@pytest.mark.parametrize("defer", [True, False])
def test_a_block_is_found_only_after_the_step_that_wrote_it(make_world, make_request, defer):
    """Two equal prompts of three blocks in one step: the second takes nothing unwritten."""
    world = make_world(defer_shared_prefixes=defer)
    first = world.add(make_request(prompt=PREFIX))
    second = world.add(make_request(prompt=PREFIX))
    output = world.begin()
    if defer:
        assert [item.request for item in output.scheduled] == [first]
        assert second.waiting_reason == "shared_prefix"
    else:
        assert [item.start for item in output.scheduled] == [0, 0]
        assert not set(first.block_table) & set(second.block_table)
    world.finish()
    third = world.add(make_request(prompt=PREFIX))
    world.step()
    assert third.num_cached_tokens == 8, "two blocks: never the one with the last token"
    assert second.num_cached_tokens == (8 if defer else 0)
    world.drain()


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 7, 8, 9, 12, 13])
def test_the_last_token_is_always_computed(make_world, make_request, num_tokens):
    world = make_world()
    for _ in range(3):
        request = world.add(make_request(prompt=PREFIX[:4] * 4, max_tokens=1))
        request = world.add(make_request(prompt=range(num_tokens), max_tokens=1))
        world.drain()
    assert request.num_cached_tokens == (num_tokens - 1) // 4 * 4


def test_namespaces_never_share(make_world, make_request):
    world = make_world()
    requests = [
        world.add(make_request(prompt=PREFIX, namespace=namespace))
        for namespace in ("", "lora", "", "lora")
    ]
    world.drain()
    assert [request.num_cached_tokens for request in requests] == [0, 0, 8, 8]
    assert world.add(make_request(prompt=PREFIX, namespace="other")).num_cached_tokens == 0
    world.drain()


def test_output_is_shared_too(make_world, make_request):
    """The next turn of a chat finds the answer to the last."""
    world = make_world()
    first = world.add(make_request(prompt=PREFIX, max_tokens=10))
    world.drain()
    second = world.add(make_request(prompt=[*first.all_token_ids, 7, 8, 9]))
    world.drain()
    assert second.num_cached_tokens == 20, "the 21 tokens computed fill five blocks"


def test_a_fleet_with_one_long_prefix_computes_it_once(make_world, make_requests):
    """The followers wait while the first computes it in chunks, then share it."""
    world = make_world(max_num_batched_tokens=16)
    prefix = list(range(48))
    fleet = [world.add(r) for r in make_requests(8, num_tokens=50, prefix=prefix, max_tokens=3)]
    num_computed, num_steps = 0, 0
    while (output := world.begin()) is not None:
        num_computed += output.num_scheduled_tokens
        num_steps += 1
        world.finish()
    assert num_computed == 48 + 8 * 2 + 8 * 2
    assert num_steps <= 8
    assert [request.num_cached_tokens for request in fleet] == [0] + [48] * 7


def test_a_follower_waits_only_for_what_it_shares(make_world, make_request):
    world = make_world(max_num_seqs=2, max_num_batched_tokens=8)
    leader = world.add(make_request(40, prefix=PREFIX[:8]))
    follower = world.add(make_request(12, prefix=PREFIX[:8]))
    world.step()
    world.step()
    assert leader.num_computed_tokens == 16
    assert follower.waiting_reason == "token_budget", "its prefix is there: no reason to wait"
    world.drain()
    assert follower.num_cached_tokens == 8


@pytest.mark.parametrize("end", ["abort", "abort in flight", "crash", "failed"])
def test_a_follower_goes_on_alone_when_its_leader_ends(make_world, make_request, end):
    world = make_world(max_num_batched_tokens=16, long_prefill_token_threshold=8)
    leader = world.add(make_request(prompt=range(24)))
    follower = world.add(make_request(prompt=range(24)))
    world.begin()
    assert follower.waiting_reason == "shared_prefix"
    match end:
        case "abort in flight":
            world.abort(leader)
            world.finish()
        case "abort":
            world.finish()
            world.abort(leader)
        case "crash":
            world.crash()
        case "failed":
            world.finish(failed=[leader.request_id])
    output = world.begin()
    assert [item.request for item in output.scheduled] == [follower]
    assert follower.num_cached_tokens == (16 if "abort" in end else 0)
    world.finish()
    world.drain()


def test_others_pass_a_deferred_follower(make_world, make_request):
    world = make_world()
    world.add(make_request(prompt=PREFIX))
    follower = world.add(make_request(prompt=PREFIX))
    other = world.add(make_request())
    world.step()
    assert (follower.status, other.status) == ("waiting", "running")
    world.drain()


def test_one_that_skips_the_cache_computes_everything_but_leads_others(make_world, make_request):
    world = make_world()
    world.add(make_request(prompt=PREFIX))
    world.drain()
    skipping = world.add(make_request(prompt=PREFIX, skip_prefix_cache=True))
    other = world.add(make_request(prompt=[*PREFIX, 99]))
    assert [item.num_tokens for item in world.begin().scheduled] == [12, 1]
    world.finish()
    world.drain()
    assert (skipping.num_cached_tokens, other.num_cached_tokens) == (0, 12)


def test_aborts_among_sharers_leave_the_others_whole(make_world, make_requests):
    """Four share a prefix, two are aborted in mid-prefill, and come again."""
    world = make_world(max_num_batched_tokens=8, num_blocks=24, defer_shared_prefixes=False)
    settings = {"num_tokens": 16, "prefix": PREFIX, "max_tokens": 6}
    sharers = [world.add(request) for request in make_requests(4, **settings)]
    for _ in range(3):
        world.step()
    world.begin()
    world.abort(sharers[0])
    world.abort(sharers[2])
    world.finish()
    again = [world.add(request) for request in make_requests(2, **settings)]
    world.drain()
    assert all(request.num_output_tokens == 6 for request in [sharers[1], sharers[3], *again])
    assert again[0].num_cached_tokens == 12


def test_nothing_is_found_after_a_step_that_failed(make_world, make_request):
    world = make_world()
    world.add(make_request(prompt=PREFIX))
    world.begin()
    world.crash()
    again = world.add(make_request(prompt=PREFIX))
    world.drain()
    assert again.num_cached_tokens == 0


def test_without_the_cache_nothing_is_shared(make_world, make_requests):
    world = make_world(enable_prefix_cache=False)
    requests = [world.add(r) for r in make_requests(4, num_tokens=16, prefix=PREFIX)]
    assert len(world.begin().scheduled) == 4
    world.finish()
    world.drain()
    stats = world.scheduler.stats()
    assert all(request.num_cached_tokens == 0 for request in requests)
    assert (stats.prefix_cache_queries, stats.num_cached_blocks) == (0, 0)


def test_static_batches_do_not_wait_for_a_prefix(make_world, make_requests):
    world = make_world(batching_policy=BatchingPolicy.STATIC)
    for request in make_requests(4, num_tokens=16, prefix=PREFIX):
        world.add(request)
    assert len(world.begin().scheduled) == 4
    world.finish()
    world.drain()
