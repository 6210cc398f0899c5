"""The scheduler under the fair queue: equal shares, caps, and no credit for absence."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.scheduling.scheduler import MemoryPolicy, QueuePolicy, SchedulerConfig

FAIR = {"queue_policy": QueuePolicy.FAIR}


class Service:
    """Weighted service by person, counted from the steps that ran and not from the queue."""

    def __init__(self):
        self.by_person = {}
        self.num_prompt_tokens = {}

    def count(self, output):
        for request, start, num_tokens, is_sampling in output.scheduled:
            seen = self.num_prompt_tokens.get(request, start)
            new = max(0, min(start + num_tokens, request.num_prompt_tokens) - seen)
            self.num_prompt_tokens[request] = seen + new
            self.by_person.setdefault(request.person_id, 0)
            self.by_person[request.person_id] += new + 2 * is_sampling

    def __getitem__(self, person_id):
        return self.by_person.get(person_id, 0)


def keep_waiting(world, make_request, person_id, draw_sizes, count=2):
    while sum(request.person_id == person_id for request in world.waiting()) < count:
        prompt, output = draw_sizes()
        world.add(make_request(prompt, max_tokens=output, person_id=person_id))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=2, max_size=12),
    max_num_seqs=st.integers(1, 6),
    budget=st.integers(6, 40),
    num_blocks=st.integers(8, 16),
    threshold=st.sampled_from([0, 4]),
    max_skip_ahead=st.sampled_from([0, 1, 16]),
)
def test_two_busy_persons_get_the_same_within_the_bound(
    world_of, request_maker, sizes, max_num_seqs, budget, num_blocks, threshold, max_skip_ahead
):
    """One has the large requests and one the small; both have more waiting than there are seats,
    so that a step never empties a queue. Skipping ahead adds the lead it may give."""
    world = world_of(
        SchedulerConfig(
            num_blocks=num_blocks,
            block_size=4,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=64,
            long_prefill_token_threshold=threshold,
            max_skip_ahead=max_skip_ahead,
            memory_policy=MemoryPolicy.RESERVE_MAX,
            **FAIR,
        )
    )
    make_request, service, gaps = request_maker(), Service(), [0]
    ordered = sorted(sizes)
    shelves = {"ann": ordered[len(ordered) // 2 :], "bob": ordered[: len(ordered) // 2]}
    turns = dict.fromkeys(shelves, 0)

    def draw(person_id):
        turns[person_id] += 1
        return shelves[person_id][turns[person_id] % len(shelves[person_id])]

    for _ in range(60):
        for person_id in shelves:
            size = partial(draw, person_id)
            keep_waiting(world, make_request, person_id, size, max_num_seqs + 1)
        service.count(world.begin())
        world.finish()
        gaps.append(service["ann"] - service["bob"])
    longest = max(prompt for prompt, _ in sizes)
    bound = max(longest, 2 * world.config.kv_tokens)
    lead = 2 * min(world.config.kv_tokens, 64) if max_skip_ahead else 0
    assert max(gaps) - min(gaps) <= 2 * (bound + lead)


def test_a_flood_of_one_person_does_not_hold_up_another(make_world, make_requests, make_request):
    world = make_world(max_num_seqs=2, **FAIR)
    for request in make_requests(50, person_id="ann"):
        world.add(request)
    for _ in range(10):
        world.step()
    late = world.add(make_request(person_id="bob"))
    while not late.is_finished:
        world.step()
    assert world.now < 22
    assert len(world.waiting()) > 35


def test_who_was_away_gets_half_and_not_all(make_world, make_request):
    """Bob is away for long and then floods: from then on, both get the same."""
    world, service = make_world(max_num_seqs=2, num_blocks=8, **FAIR), Service()
    world.add(make_request(person_id="bob"))
    for _ in range(500):
        keep_waiting(world, make_request, "ann", lambda: (8, 4), 3)
        world.step()
    for _ in range(300):
        for person_id in ("ann", "bob"):
            keep_waiting(world, make_request, person_id, lambda: (8, 4), 3)
        service.count(world.begin())
        world.finish()
        assert abs(service["ann"] - service["bob"]) <= 2 * max(8, 2 * world.config.kv_tokens)
    assert service["bob"] == pytest.approx(service["ann"], rel=0.1)


def test_what_the_cache_gives_costs_nothing(make_world, make_request):
    world = make_world(max_num_seqs=1, **FAIR)
    prompt = list(range(33))
    world.add(make_request(prompt=prompt, max_tokens=1, person_id="ann"))
    world.drain()
    world.add(make_request(prompt=prompt, max_tokens=1, person_id="ann"))
    world.add(make_request(prompt=prompt, max_tokens=1, person_id="bob"))
    queue = world.scheduler._waiting
    before = queue.service("ann")
    world.drain()
    assert queue.service("ann") - before == 1 + 2


def test_recomputed_tokens_are_not_charged_again(make_world, make_requests):
    world = make_world(num_blocks=8, enable_prefix_cache=False, **FAIR)
    requests = make_requests(3, num_tokens=7, max_tokens=8, person_id="ann")
    for request in requests:
        world.add(request)
    world.drain()
    assert world.scheduler.stats().num_preemptions > 0
    assert world.scheduler._waiting.service("ann") == 3 * (7 + 2 * 8)


def test_a_person_at_the_running_cap_is_skipped_and_blocks_nobody(
    make_world, make_requests, make_request
):
    world = make_world(max_running_per_person=2)
    mine = [world.add(request) for request in make_requests(5, person_id="ann")]
    other = world.add(make_request(person_id="bob"))
    world.step()
    assert [request.status for request in mine] == ["running"] * 2 + ["waiting"] * 3
    assert other.status == "running"
    assert mine[2].waiting_reason == "person_running_cap"
    assert world.scheduler.stats().waiting_reasons == {"person_running_cap": 1, "queued": 2}
    while not all(request.is_finished for request in mine):
        world.step()
        assert sum(request.status == "running" for request in mine) <= 2


def test_a_person_at_the_block_cap_is_skipped_and_blocks_nobody(
    make_world, make_requests, make_request
):
    world = make_world(max_blocks_per_person=5)
    mine = [world.add(request) for request in make_requests(2, num_tokens=12, person_id="ann")]
    other = world.add(make_request(12, person_id="bob"))
    world.step()
    assert (mine[0].status, mine[1].status, other.status) == ("running", "waiting", "running")
    assert mine[1].waiting_reason == "person_block_cap"
    world.drain()
    assert all(request.finish_reason == "length" for request in mine)


def test_an_aborted_request_gives_its_place_under_the_cap_back(make_world, make_requests):
    world = make_world(max_running_per_person=1)
    first, second = [world.add(request) for request in make_requests(2, person_id="ann")]
    world.begin()
    world.abort(first)
    world.finish()
    world.step()
    assert second.status == "running"


def test_steps_are_short_while_several_people_are_here(make_world, make_request):
    world = make_world(
        max_num_batched_tokens=64,
        long_prefill_token_threshold=32,
        num_blocks=99,
        max_model_len=300,
        **FAIR,
    )
    world.scheduler.shared_prompt_tokens = 16
    first = world.add(make_request(1, person_id="ann", max_tokens=99))
    world.step()
    flood = world.add(make_request(200, person_id="ann", max_tokens=1))
    plan = {item.request: item.num_tokens for item in world.begin().scheduled}
    assert plan == {first: 1, flood: 63}, "ann is alone"
    late = world.add(make_request(10, person_id="bob", max_tokens=20))
    world.finish()
    plan = {item.request: item.num_tokens for item in world.begin().scheduled}
    assert plan == {first: 1, flood: 6, late: 10}, "bob has had less, and goes before ann's"
    world.finish()
    plan = {item.request: item.num_tokens for item in world.begin().scheduled}
    assert plan == {first: 1, late: 1, flood: 16}, "a decode is no token of a prompt"
    world.abort(late)
    world.finish()
    plan = {item.request: item.num_tokens for item in world.begin().scheduled}
    assert plan == {first: 1, flood: 63}, "ann is alone again"
    world.finish()
    world.drain()


def test_who_comes_in_gets_a_step_without_the_decodes_of_others(make_world, make_request):
    world = make_world(
        max_num_batched_tokens=128, num_blocks=199, max_num_seqs=11, max_model_len=300, **FAIR
    )
    scheduler = world.scheduler
    scheduler.shared_prompt_tokens = 16
    scheduler.min_held_decodes = 3
    flood = [world.add(make_request(20, person_id="ann", max_tokens=99)) for _ in range(6)]
    world.step()
    assert len(scheduler.running) == 6

    def planned():
        return {item.request: item.num_tokens for item in world.begin().scheduled}

    early = world.add(make_request(2, person_id="bob", max_tokens=99))
    assert planned() == {flood[0]: 1, early: 2}, "ann's decodes wait, but for the oldest"
    late = world.add(make_request(2, person_id="bob", max_tokens=99))
    world.finish()
    assert planned() == {**dict.fromkeys(flood, 1), early: 1, late: 2}, "never two in a row"
    last = world.add(make_request(2, person_id="bob", max_tokens=99))
    world.finish()
    assert planned() == {flood[0]: 1, early: 1, late: 1, last: 2}, "his own go on"
    for request in flood[3:]:
        world.abort(request)
    world.finish()
    world.step()
    third = world.add(make_request(2, person_id="bob", max_tokens=99))
    assert planned() == {**dict.fromkeys(flood[:3], 1), early: 1, late: 1, last: 1, third: 2}, (
        "he has had more"
    )
    world.finish()
    world.drain()


def test_the_more_served_hold_nobody(make_world, make_request):
    world = make_world(
        max_num_batched_tokens=64, num_blocks=99, max_num_seqs=9, max_model_len=300, **FAIR
    )
    world.scheduler.shared_prompt_tokens = 16
    world.scheduler.min_held_decodes = 1
    world.add(make_request(40, person_id="ann", max_tokens=1))
    world.step()
    small = world.add(make_request(2, person_id="bob", max_tokens=99))
    ann = [world.add(make_request(30, person_id="ann", max_tokens=9)) for _ in range(2)]
    world.step()
    world.step()
    more = world.add(make_request(3, person_id="ann", max_tokens=9))
    plan = {item.request for item in world.begin().scheduled}
    assert small in plan
    world.finish()
    world.drain()
    assert all(request.finish_reason == "length" for request in (*ann, small, more))
