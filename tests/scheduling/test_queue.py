"""Who goes next, and that nobody takes all the seats."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling.queue import FairShareQueue, FCFSQueue
from carpool.scheduling.request import Request


def request_of(person_id, request_id):
    return Request(request_id, [1], max_tokens=1, person_id=person_id)


def push(queue, *names):
    """push(queue, "a1", "b1"): requests of persons a and b."""
    for name in names:
        queue.push(request_of(name[0], name))


def order(queue, skipped_people=()):
    return [item.request_id for item in queue.candidates(skipped_people)]


def take(queue):
    item = next(queue.candidates())
    queue.remove(item)
    return item.request_id


def test_first_come_first_served():
    queue = FCFSQueue()
    push(queue, "a1", "b1", "a2", "c1", "b2")
    assert order(queue) == ["a1", "b1", "a2", "c1", "b2"]
    assert order(queue, {"a"}) == ["b1", "c1", "b2"]


@pytest.mark.parametrize("make_queue", [FCFSQueue, FairShareQueue])
def test_any_request_can_leave(make_queue):
    queue = make_queue()
    items = [request_of(person, f"{person}{n}") for person in "ab" for n in range(3)]
    for item in items:
        queue.push(item)
    for item in items[1::2]:
        queue.remove(item)
    assert len(queue) == 3
    assert sorted(order(queue)) == ["a0", "a2", "b1"] == sorted(i.request_id for i in queue)


@pytest.mark.parametrize("make_queue", [FCFSQueue, FairShareQueue])
def test_an_id_can_wait_only_once(make_queue):
    queue = make_queue()
    push(queue, "a1")
    with pytest.raises(ValueError, match="'a1' is in the queue already"):
        push(queue, "a1")
    assert len(queue) == 1


def test_a_person_can_be_left_out_half_way():
    queue = FCFSQueue()
    push(queue, "a1", "a2", "b1", "a3", "b2")
    skipped = set()
    candidates = queue.candidates(skipped)
    assert next(candidates).request_id == "a1"
    skipped.add("a")
    assert [item.request_id for item in candidates] == ["b1", "b2"]


def test_the_person_with_least_service_goes_first():
    queue = FairShareQueue()
    push(queue, "a1", "a2", "b1", "b2")
    queue.charge("a", num_prompt_tokens=10)
    queue.charge("b", num_output_tokens=4)
    assert order(queue) == ["b1", "b2", "a1", "a2"]
    queue.charge("b", num_output_tokens=2)
    assert order(queue) == ["a1", "a2", "b1", "b2"]


def test_charging_between_two_candidates_ranks_the_person_anew():
    queue = FairShareQueue()
    push(queue, "a1", "a2", "b1", "b2")
    seen = []
    for item in queue.candidates():
        seen.append(item.request_id)
        queue.charge(item.person_id, num_prompt_tokens=1)
    assert seen == ["a1", "b1", "a2", "b2"]


def test_a_weight_buys_that_many_times_the_service():
    queue = FairShareQueue(person_weights={"a": 3.0})
    served = []
    push(queue, *(f"{person}{n}" for n in range(40) for person in "ab"))
    for _ in range(40):
        served.append(take(queue)[0])
        queue.charge(served[-1], num_prompt_tokens=3)
    assert served.count("a") == 30


def test_who_returns_has_saved_up_nothing():
    queue = FairShareQueue()
    push(queue, *(f"a{n}" for n in range(5)))
    queue.charge("a", num_prompt_tokens=1000)
    push(queue, "b1")
    assert queue.service("b") == queue.service("a") == 1000


def test_who_returns_keeps_what_they_owe():
    queue = FairShareQueue()
    push(queue, "a1", "b1")
    queue.charge("b", num_prompt_tokens=500)
    assert take(queue) == "a1"
    assert take(queue) == "b1"
    push(queue, "a2")
    assert queue.service("a") == 500, "lifted to the last who left"
    queue.charge("b", num_prompt_tokens=100)
    push(queue, "b2")
    assert order(queue) == ["a2", "b2"]


def test_counters_of_long_gone_people_are_dropped_without_a_difference():
    queue, hoarder = FairShareQueue(max_idle_counters=3), FairShareQueue(max_idle_counters=10**6)
    for n in range(200):
        person = chr(100 + n)
        for each in (queue, hoarder):
            push(each, f"{person}{n}", f"{chr(100 + n // 3)}again{n}")
            for item in islice(each.candidates(), 2):
                each.charge(item.person_id, num_prompt_tokens=n % 7)
            assert take(each)
        assert order(queue) == order(hoarder)
    assert len(queue._counters) <= len(queue._lines) + 5


service_units = st.integers(0, 30)


@given(
    arrivals=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=2, max_size=40),
    weights=st.fixed_dictionaries({"a": st.sampled_from([1.0, 2.0]), "b": st.just(1.0)}),
    capacity=st.integers(50, 120),
)
def test_service_of_two_busy_persons_differs_by_no_more_than_the_bound(arrivals, weights, capacity):
    """Persons a and b always wait. Requests are (prompt, output) sizes; a batch holds at
    most `capacity` tokens, and each running request gets one output token a step."""
    queue = FairShareQueue(person_weights=weights)
    bound = 2 * max(1.0 * max(prompt for prompt, _ in arrivals), 2.0 * capacity)
    sizes, running, service, gaps = {}, {}, {"a": 0.0, "b": 0.0}, []
    num_made = 0

    def refill():
        nonlocal num_made
        for person in "ab":
            while sum(item.person_id == person for item in queue) < 2:
                item = request_of(person, f"{person}{num_made}")
                sizes[item.request_id] = arrivals[num_made % len(arrivals)]
                num_made += 1
                queue.push(item)

    for _ in range(60):
        refill()
        while True:
            item = next(queue.candidates())
            prompt, output = sizes[item.request_id]
            if sum(sum(sizes[name]) for name in running) + prompt + output > capacity:
                break
            queue.remove(item)
            refill()
            queue.charge(item.person_id, num_prompt_tokens=prompt)
            service[item.person_id] += prompt / weights[item.person_id]
            running[item.request_id] = output
        for name in list(running):
            queue.charge(name[0], num_output_tokens=1)
            service[name[0]] += 2.0 / weights[name[0]]
            running[name] -= 1
            if running[name] == 0:
                del running[name]
        gaps.append(service["a"] - service["b"])
    assert max(gaps) - min(gaps) <= bound
