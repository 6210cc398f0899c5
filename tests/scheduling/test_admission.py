"""Who is let in, who waits and why; a big request neither freezes the queue nor starves."""

import pytest

from carpool.scheduling.scheduler import QueuePolicy

BOTH_QUEUES = pytest.mark.parametrize("queue_policy", list(QueuePolicy))


def test_an_idle_scheduler_with_somebody_waiting_always_admits(make_world, make_request):
    world = make_world(num_blocks=4)
    for num_tokens in (1, 4, 8, 15, 16):
        world.add(make_request(num_tokens, max_tokens=1))
        assert world.begin() is not None
        world.finish()
        world.drain()


@BOTH_QUEUES
def test_small_requests_pass_a_big_one_that_does_not_fit(
    make_world, make_request, make_requests, queue_policy
):
    world = make_world(num_blocks=10, queue_policy=queue_policy)
    world.add(make_request(8, max_tokens=5))
    world.step()
    big = world.add(make_request(36, max_tokens=1))
    small = [world.add(request) for request in make_requests(3, num_tokens=4, max_tokens=1)]
    world.step()
    assert big.waiting_reason == "kv_blocks"
    assert all(request.is_finished for request in small)
    world.drain()
    assert big.num_output_tokens == 1


@BOTH_QUEUES
@pytest.mark.parametrize("max_skip_ahead", [0, 1, 7])
def test_a_big_request_is_passed_a_bounded_number_of_times(
    make_world, make_request, queue_policy, max_skip_ahead
):
    """It needs 90 % of the pool, and small ones never cease to come."""
    world = make_world(num_blocks=10, queue_policy=queue_policy, max_skip_ahead=max_skip_ahead)
    for _ in range(2):
        world.add(make_request(4, max_tokens=4, person_id="bob"))
    world.step()
    big = world.add(make_request(36, max_tokens=1, person_id="ann"))
    small = []
    while big.status == "waiting":
        small.append(world.add(make_request(4, max_tokens=4, person_id="bob")))
        world.step()
        assert len(small) < 60, "the big request starves"
    passed = [request for request in small if 0 <= request.admission_seq < big.admission_seq]
    assert len(passed) <= max_skip_ahead
    world.drain()


def test_in_the_fair_queue_nobody_far_ahead_passes_who_has_had_less(make_world, make_request):
    """Ann's requests never fit beside Bob's; without a bound he would pass each of them."""
    world = make_world(
        num_blocks=10, max_num_seqs=4, max_model_len=40, queue_policy=QueuePolicy.FAIR
    )
    service = {"ann": 0, "bob": 0}
    for _ in range(400):
        for person_id, num_tokens, max_tokens in (("ann", 30, 8), ("bob", 8, 16)):
            while sum(r.person_id == person_id for r in world.waiting()) < 5:
                request = make_request(num_tokens, max_tokens=max_tokens, person_id=person_id)
                world.add(request)
        for request, start, num_tokens, is_sampling in world.begin().scheduled:
            prompt = min(start + num_tokens, request.num_prompt_tokens) - start
            service[request.person_id] += max(0, prompt) + 2 * is_sampling
        world.finish()
    assert service["ann"] == pytest.approx(service["bob"], rel=0.25)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"max_num_seqs": 1}, "seats"),
        ({"max_num_batched_tokens": 8}, "token_budget"),
        ({"num_blocks": 4}, "kv_blocks"),
        ({"max_running_per_person": 1}, "person_running_cap"),
        ({"max_blocks_per_person": 3}, "person_block_cap"),
    ],
)
def test_each_waiting_request_has_one_reason(make_world, make_requests, overrides, reason):
    world = make_world(**overrides)
    first, second, third = [world.add(r) for r in make_requests(3, num_tokens=8)]
    assert first.waiting_reason == "queued"
    world.step()
    assert first.waiting_reason is None
    assert second.waiting_reason == reason
    reasons = world.scheduler.stats().waiting_reasons
    assert sum(reasons.values()) == 2
    assert reasons[second.waiting_reason] == (2 if reason == "kv_blocks" else 1)
    world.drain()
    assert third.waiting_reason is None


def test_a_long_queue_that_cannot_move_is_not_read_to_its_end(make_world, make_requests):
    world = make_world(num_blocks=6, max_skip_ahead=4)
    world.add(*make_requests(1, num_tokens=20))
    world.step()
    waiting = [world.add(request) for request in make_requests(50, num_tokens=20)]
    world.step()
    assert sum(request.waiting_reason == "kv_blocks" for request in waiting) <= 5
    world.drain()


def test_blocks_of_all_kinds_add_up(make_world, make_request):
    world = make_world(num_blocks=10)
    world.add(make_request(10, max_tokens=1))
    world.add(make_request(4, max_tokens=5))
    world.step()
    stats = world.scheduler.stats()
    assert (stats.num_used_blocks, stats.num_cached_blocks, stats.num_free_blocks) == (1, 2, 7)
    assert (stats.num_running, stats.num_waiting) == (1, 0)
    world.drain()
