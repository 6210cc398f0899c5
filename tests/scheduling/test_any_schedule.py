"""Whatever comes, stops and fails: each request says what it would have said alone."""

import random
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from carpool.scheduling.request import FinishReason
from carpool.scheduling.scheduler import (
    BatchingPolicy,
    MemoryPolicy,
    QueuePolicy,
    RequestRejected,
    SchedulerConfig,
)

POLICIES = [
    (batching, memory, queue, enable_prefix_cache)
    for batching in BatchingPolicy
    for memory in MemoryPolicy
    for queue in QueuePolicy
    for enable_prefix_cache in (True, False)
]


def draw_config(rng, batching, memory, queue, enable_prefix_cache):
    max_num_seqs = rng.randint(1, 6)
    return SchedulerConfig(
        num_blocks=rng.randint(3, 16),
        block_size=rng.randint(1, 5),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice([0, 1, 3, 8, 40]),
        max_model_len=rng.choice([24, 60]),
        long_prefill_token_threshold=rng.choice([0, 0, 1, 4]),
        enable_prefix_cache=enable_prefix_cache,
        defer_shared_prefixes=rng.random() < 0.7,
        max_skip_ahead=rng.choice([0, 1, 4]),
        batching_policy=batching,
        memory_policy=memory,
        queue_policy=queue,
        max_running_per_person=rng.choice([None, None, 1, 2]),
        max_blocks_per_person=rng.choice([None, None, 3, 6]),
        person_weights={"ann": 2.0},
    )


def draw_request(rng, make_request, config):
    """Prompts share prefixes, in namespaces; sizes reach over what fits, now and then."""
    capacity = min(config.kv_tokens + 1, config.max_model_len)
    prompt_len = rng.randint(1, max(1, min(30, capacity - 1)))
    shared = [rng.randint(0, 1)] * rng.randint(0, prompt_len)
    prompt = shared + [rng.randint(0, 49) for _ in range(prompt_len - len(shared))]
    max_tokens = rng.randint(1, max(1, min(14, capacity - prompt_len + 1)))
    return make_request(
        prompt=prompt,
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, min(3, max_tokens)]),
        stop_token_ids=frozenset(rng.sample(range(50), rng.choice([0, 0, 2, 10]))),
        person_id=rng.choice(["ann", "bob", "cy"]),
        namespace=rng.choice(["", "", "lora"]),
        skip_prefix_cache=rng.random() < 0.1,
    )


def act(rng, world, make_request):
    """One random event."""
    live = [request for request in world.requests if not request.is_finished]
    draw = rng.random()
    if draw < 0.05:
        world.scheduler.shared_prompt_tokens = rng.choice([None, 1, 3, 9])
        world.scheduler.min_held_decodes = rng.choice([None, 1, 2])
    elif draw < 0.3:
        with suppress(RequestRejected):
            world.add(draw_request(rng, make_request, world.config))
    elif draw < 0.36 and live:
        reason = rng.choice([FinishReason.ABORT, FinishReason.STOP])
        assert world.abort(rng.choice(live), reason) is not None
    elif world.output is None:
        world.begin()
    elif draw < 0.4:
        world.crash()
    elif draw < 0.45:
        world.finish(failed=[rng.choice(world.output.scheduled).request.request_id])
    else:
        world.finish()


@pytest.mark.parametrize("policies", POLICIES, ids=lambda policies: "-".join(map(str, policies)))
def test_output_equals_the_run_alone_output_over_random_schedules(make_request, world_of, policies):
    num_slots_read = 0
    for seed in range(120):
        rng = random.Random(f"{policies} {seed}")
        world = world_of(draw_config(rng, *policies))
        for _ in range(rng.randint(10, 60)):
            act(rng, world, make_request)
        if world.output is not None:
            world.finish()
        world.drain()
        assert set(world.ended) == set(world.requests)
        num_slots_read += world.runner.num_slots_read
    assert num_slots_read > 10_000


def test_no_sequence_of_events_breaks_an_invariant(make_request, world_of):
    """The same world, driven by hypothesis, which shrinks what it finds."""

    class SchedulerMachine(RuleBasedStateMachine):
        @initialize(rng=st.randoms(use_true_random=False), policies=st.sampled_from(POLICIES))
        def start(self, rng, policies):
            self.world = world_of(draw_config(rng, *policies))

        @rule(number=st.sampled_from([None, 1, 3, 9]), held=st.sampled_from([None, 1, 2]))
        def bound_shared_steps(self, number, held):
            self.world.scheduler.shared_prompt_tokens = number
            self.world.scheduler.min_held_decodes = held

        @rule(rng=st.randoms(use_true_random=False))
        def add(self, rng):
            try:
                self.world.add(draw_request(rng, make_request, self.world.config))
            except RequestRejected:
                self.world.check()

        @precondition(lambda self: self.world.requests)
        @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
        def abort(self, data, reason):
            request = data.draw(st.sampled_from(self.world.requests))
            was_finished = request.is_finished
            assert (self.world.abort(request, reason) is None) == was_finished

        @precondition(lambda self: self.world.output is None)
        @rule()
        def schedule(self):
            self.world.begin()

        @precondition(lambda self: self.world.output is None)
        @rule()
        def step(self):
            self.world.step()

        @precondition(lambda self: self.world.output is not None)
        @rule()
        def update(self):
            self.world.finish()

        @precondition(lambda self: self.world.output is not None)
        @rule(data=st.data())
        def update_with_one_failed(self, data):
            item = data.draw(st.sampled_from(self.world.output.scheduled))
            self.world.finish(failed=[item.request.request_id])

        @precondition(lambda self: self.world.output is not None)
        @rule()
        def fail(self):
            self.world.crash()

        def teardown(self):
            if self.world.output is not None:
                self.world.finish()
            self.world.drain()

    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=100,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
