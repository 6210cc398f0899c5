"""What goes into a step, how requests end, and that a step is booked once."""

import pytest

from carpool.scheduling.outputs import ModelRunnerOutput


def plan_of(output):
    return [(item.request.request_id, item.start, item.num_tokens) for item in output.scheduled]


def test_a_decode_is_in_every_step_while_a_long_prompt_is_computed(make_world, make_request):
    world = make_world(num_blocks=300, max_model_len=1200, max_num_batched_tokens=32)
    decode = world.add(make_request(4, max_tokens=60))
    world.step()
    long = world.add(make_request(1000, max_tokens=2))
    while long.num_output_tokens == 0:
        before = decode.num_output_tokens
        output = world.begin()
        assert plan_of(output)[0][0] == "r0"
        assert output.num_scheduled_tokens <= 32
        world.finish()
        assert decode.num_output_tokens == before + 1
    world.drain()


def test_decodes_stand_before_prefills_and_the_oldest_first(make_world, make_requests):
    world = make_world(max_num_batched_tokens=16)
    for request in make_requests(2, num_tokens=4):
        world.add(request)
    world.step()
    for request in make_requests(2, num_tokens=20):
        world.add(request)
    assert plan_of(world.begin()) == [("r0", 4, 1), ("r1", 4, 1), ("r2", 0, 14)]
    world.finish()
    assert plan_of(world.begin()) == [("r0", 5, 1), ("r1", 5, 1), ("r2", 14, 6), ("r3", 0, 8)]
    world.finish()
    world.drain()


def test_one_long_prompt_leaves_room_for_others_and_takes_what_they_leave(make_world, make_request):
    world = make_world(max_num_batched_tokens=32, long_prefill_token_threshold=8)
    world.add(make_request(100, max_tokens=1))
    assert plan_of(world.begin()) == [("r0", 0, 32)], "nobody else: the whole step"
    world.finish()
    world.add(make_request(6, max_tokens=1))
    world.add(make_request(20, max_tokens=1))
    assert plan_of(world.begin()) == [("r0", 32, 18), ("r1", 0, 6), ("r2", 0, 8)]
    world.finish()
    world.drain()


def test_only_the_chunk_that_reaches_the_last_token_samples(make_world, make_request):
    world = make_world(max_num_batched_tokens=8)
    world.add(make_request(20, max_tokens=1))
    sampling = []
    while (output := world.begin()) is not None:
        sampling.append(output.scheduled[0].is_sampling)
        assert len(world.finish()) == output.scheduled[0].is_sampling
    assert sampling == [False, False, True]


def test_a_stop_token_ends_the_request_and_is_part_of_the_output(
    make_world, make_request, reference
):
    probe = make_request(max_tokens=9)
    expected = reference(probe)
    stop = expected[4]
    first = expected.index(stop)
    world = make_world()
    request = world.add(
        make_request(prompt=probe.all_token_ids, max_tokens=9, stop_token_ids=frozenset([stop]))
    )
    world.drain()
    end = world.ended[request]
    assert (end.finish_reason, end.stop_reason) == ("stop", stop)
    assert request.output_token_ids == expected[: first + 1]
    assert end.new_token_ids == (stop,)
    assert request.status == "finished_stopped"


@pytest.mark.parametrize("min_tokens", range(1, 10))
def test_a_stop_token_counts_only_from_min_tokens_on(
    make_world, make_request, reference, min_tokens
):
    every_token = frozenset(range(50))
    world = make_world()
    request = world.add(
        make_request(max_tokens=9, min_tokens=min_tokens, stop_token_ids=every_token)
    )
    world.drain()
    assert request.num_output_tokens == min_tokens
    assert request.finish_reason == "stop"


def test_times_are_those_the_caller_gave(make_world, make_request):
    world = make_world(max_num_batched_tokens=8)
    world.now = 5.0
    request = world.add(make_request(16, max_tokens=3))
    early = world.add(make_request(arrival_time=1.5))
    world.drain()
    assert request.arrival_time == 5.0
    assert request.first_scheduled_time == 6.0
    assert request.first_token_time == 7.0
    assert request.finished_time == 9.0
    assert early.arrival_time == 1.5


def test_one_failed_request_ends_alone(make_world, make_requests):
    world = make_world()
    bad, good = [world.add(request) for request in make_requests(2)]
    world.begin()
    outputs = world.finish(failed=[bad.request_id])
    assert [(o.request, o.finish_reason, o.error) for o in outputs] == [
        (bad, "error", "grammar"),
        (good, None, None),
    ]
    world.drain()
    assert good.num_output_tokens == 4


def test_a_request_whose_token_is_missing_ends_with_an_error(make_world, make_requests):
    world = make_world()
    bad, good = [world.add(request) for request in make_requests(2)]
    output = world.begin()
    sampled = world.runner.run(output)
    del sampled[bad.request_id]
    world.output = None
    world.receive(world.scheduler.update(output, ModelRunnerOutput(sampled), 2.0))
    assert "no token" in world.ended[bad].error
    world.drain()
    assert good.num_output_tokens == 4


def test_a_step_that_fails_ends_its_requests_and_no_others(make_world, make_requests):
    world = make_world(max_num_seqs=2)
    requests = [world.add(request) for request in make_requests(4)]
    world.step()
    world.begin()
    outputs = world.crash()
    assert [(o.request, o.finish_reason, o.error) for o in outputs] == [
        (requests[0], "error", "out of memory"),
        (requests[1], "error", "out of memory"),
    ]
    assert world.scheduler.stats().num_used_blocks == 0
    world.drain()
    assert [request.finish_reason for request in requests[2:]] == ["length", "length"]


def test_one_step_is_in_flight_at_a_time_and_is_booked_once(make_world, make_request):
    world = make_world()
    scheduler = world.scheduler
    assert not scheduler.has_schedulable_work
    world.add(make_request())
    assert scheduler.has_schedulable_work
    output = world.begin()
    assert not scheduler.has_schedulable_work
    assert scheduler.has_unfinished
    with pytest.raises(RuntimeError, match="step 0 is in flight"):
        scheduler.schedule(2.0)
    world.finish()
    with pytest.raises(ValueError, match="step 0 is not the step in flight"):
        scheduler.update(output, ModelRunnerOutput({}), 2.0)
    with pytest.raises(ValueError, match="step 0 is not the step in flight"):
        scheduler.fail(output, 2.0, "late")
    world.drain()


def test_a_static_batch_runs_until_its_last_request_is_done(make_world, make_request):
    world = make_world(batching_policy="static", max_num_seqs=2, max_num_batched_tokens=8)
    short, long = world.add(make_request(6, max_tokens=2)), world.add(make_request(6, max_tokens=9))
    third = world.add(make_request(6, max_tokens=1))
    world.step()
    assert long.status == "running", "a batch is formed whole, whatever the token budget"
    assert third.waiting_reason == "seats"
    while not long.is_finished:
        assert third.status == "waiting"
        world.step()
    assert short.finished_time < long.finished_time
    assert third.waiting_reason == "batch"
    world.drain()
    assert third.first_scheduled_time > long.finished_time
