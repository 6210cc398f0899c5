"""Who goes to the backend: seats, memory, fair shares, lanes, and an honest refusal."""

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from carpool.gateway.admission import FIRST_SERVICE_S, Admission
from carpool.gateway.in_flight import InFlightCounts
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.gateway.ticket import Ticket
from carpool.gateway.waiting_room import COMMON_PART, QueueLimits
from carpool.scheduling.capacity import Capacity, Provenance
from carpool.store.lane import Lane

INTERACTIVE, BATCH = Lane.INTERACTIVE, Lane.BATCH


def make_admission(seats=4, kv_tokens=10_000, counts=None, **limits):
    capacity = Capacity(seats, kv_tokens, kv_tokens, Provenance.REPORTED)
    return Admission(capacity, QueueLimits(**{"newcomer_seats": 0, **limits}), counts)


class Tickets:
    """Makes tickets with ids a0, a1, ... of person a, whose one key is a's."""

    def __init__(self):
        self.counts = Counter()

    def __call__(self, person="a", prompt=10, output=10, **fields):
        number = self.counts[person]
        self.counts[person] += 1
        fields = {"key_id": f"{person}-key", **fields}
        return Ticket(
            request_id=f"{person}{number}",
            person_id=person,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            **fields,
        )


@pytest.fixture
def ticket():
    return Tickets()


def enter(admission, *tickets, now=0.0):
    for each in tickets:
        admission.enter(each, now)
    return list(tickets)


def grant(admission, now=0.0):
    return [each.request_id for each in admission.grant(now)]


def refusal_of(admission, ticket, now=0.0):
    with pytest.raises(Refusal) as caught:
        admission.enter(ticket, now)
    assert ticket not in admission.waiting
    return caught.value


# --------------------------------------------------------------- seats and memory


def test_as_many_go_as_there_are_seats_and_the_rest_when_seats_come_back(ticket):
    admission = make_admission(seats=2)
    tickets = enter(admission, *(ticket() for _ in range(4)))
    assert grant(admission) == ["a0", "a1"]
    assert grant(admission) == []
    admission.leave(tickets[1], 1.0, 10, 10)
    assert grant(admission) == ["a2"]


def test_who_does_not_fit_into_the_memory_is_waited_for(ticket):
    admission = make_admission(seats=9, kv_tokens=100)
    first, _, _ = enter(admission, ticket(output=70), ticket("b", output=60), ticket("c"))
    assert grant(admission) == ["a0"]
    admission.leave(first, 1.0)
    assert grant(admission) == ["b0", "c0"]


def test_a_request_beyond_the_whole_memory_is_too_large(ticket):
    refusal = refusal_of(make_admission(kv_tokens=100), ticket(prompt=90, output=11))
    assert (refusal.outcome, refusal.status) == (Outcome.TOO_LARGE, 413)
    assert "101 tokens" in refusal.message
    assert "has 100" in refusal.message


def test_who_is_larger_than_what_is_left_of_a_backend_goes_alone(ticket):
    admission = make_admission(kv_tokens=100)
    enter(admission, ticket(prompt=60), ticket("b", prompt=60))
    admission.capacity = replace(admission.capacity, kv_tokens=50)
    assert grant(admission) == ["a0"]
    assert grant(admission) == []


def test_a_paused_backend_gets_nobody_and_then_those_who_waited(ticket):
    admission = make_admission()
    admission.is_paused = True
    enter(admission, ticket(), ticket("b"))
    assert grant(admission) == []
    admission.is_paused = False
    assert grant(admission) == ["a0", "b0"]


def test_fewer_seats_than_are_taken_let_nobody_in_until_enough_are_free(ticket):
    admission = make_admission(seats=3)
    tickets = enter(admission, *(ticket() for _ in range(4)))
    admission.grant(0.0)
    admission.capacity = replace(admission.capacity, max_num_seqs=1)
    for each in tickets[:2]:
        admission.leave(each, 1.0)
        assert grant(admission) == []
    admission.leave(tickets[2], 1.0)
    assert grant(admission) == ["a3"]


def test_a_request_for_several_answers_takes_several_seats(ticket):
    admission = make_admission(seats=4)
    first, second, _ = enter(admission, ticket(num_seqs=3), ticket("b", num_seqs=2), ticket("c"))
    assert grant(admission) == ["a0"], "b is waited for, so that single ones do not starve it"
    admission.leave(first, 1.0)
    assert grant(admission) == ["b0", "c0"]
    assert admission.in_flight_seqs == 3
    admission.leave(second, 1.0)
    assert admission.in_flight_seqs == 1


def test_a_request_for_more_answers_than_there_are_seats_goes_alone(ticket):
    admission = make_admission(seats=4, newcomer_seats=1)
    first, second, _ = enter(admission, ticket(), ticket("b", num_seqs=9), ticket("c"))
    assert grant(admission) == ["a0"]
    admission.leave(first, 1.0)
    assert grant(admission) == ["b0"]
    admission.leave(second, 1.0)
    assert grant(admission) == ["c0"]


def test_a_part_of_the_memory_is_kept_for_newcomers(ticket):
    admission = make_admission(seats=8, kv_tokens=800, newcomer_seats=2)
    enter(admission, *(ticket(prompt=140) for _ in range(9)))
    assert grant(admission) == ["a0", "a1", "a2", "a3"], "a fifth would leave less than 200"
    enter(admission, ticket("b", prompt=170), ticket("c"))
    assert grant(admission) == ["b0", "c0"]


def test_newcomers_do_not_starve_someone_who_needs_all_of_the_memory(ticket):
    admission = make_admission(seats=8, kv_tokens=400, newcomer_seats=1)
    small, _ = enter(admission, ticket("b"), ticket(prompt=380))
    assert grant(admission) == ["b0"]
    enter(admission, *(ticket(name) for name in "cdefgh"))
    assert grant(admission) == []
    admission.leave(small, 1.0)
    assert grant(admission) == ["a0"]


# ---------------------------------------------------------------- fair shares


def test_a_newcomer_starts_at_once_beside_a_flood(ticket):
    admission = make_admission(seats=4, newcomer_seats=1)
    enter(admission, *(ticket() for _ in range(20)))
    assert grant(admission) == ["a0", "a1", "a2"], "one seat is kept"
    enter(admission, ticket("b"))
    assert grant(admission) == ["b0"]
    enter(admission, ticket("b"), ticket("c"))
    assert grant(admission) == [], "b has one in flight, and c's seat is b's by now"


def test_a_light_person_starts_at_once_time_and_again(ticket):
    admission = make_admission(seats=4, newcomer_seats=1)
    enter(admission, *(ticket(output=100) for _ in range(20)))
    admission.grant(0.0)
    for number in range(10):
        (light,) = enter(admission, ticket("b"))
        assert grant(admission) == [f"b{number}"]
        admission.leave(light, 0.0, 10, 10)


def test_the_last_seat_of_one_is_not_kept(ticket):
    admission = make_admission(seats=1, newcomer_seats=1)
    enter(admission, ticket(), ticket())
    assert grant(admission) == ["a0"]


def test_a_kept_seat_does_not_buy_more_than_the_fair_share(ticket):
    """b asks for much more per request than a; one at a time in the kept seat, still no more."""
    admission = make_admission(seats=2, kv_tokens=100, newcomer_seats=1)
    service, running = Counter(), []
    for now in range(400):
        while admission.waiting.num_of("a") < 2:
            enter(admission, ticket("a", prompt=1, output=1))
        while admission.waiting.num_of("b") < 2:
            enter(admission, ticket("b", prompt=50, output=1))
        for each in admission.grant(now):
            service[each.person_id] += each.num_prompt_tokens + 2 * each.num_output_tokens
            running.append(each)
        ended = running.pop(0)
        admission.leave(ended, now, ended.num_prompt_tokens, ended.num_output_tokens)
        assert abs(service["a"] - service["b"]) <= 2 * 2 * 100


def test_weights_buy_seats(ticket):
    admission = make_admission(seats=1)
    for _ in range(60):
        enter(admission, ticket("a", weight=3.0), ticket("b"))
    served = Counter()
    for now in range(60):
        (each,) = admission.grant(now)
        served[each.person_id] += 1
        admission.leave(each, now, 10, 10)
    assert served == {"a": 45, "b": 15}


def test_what_was_expected_is_corrected_by_what_was_taken(ticket):
    """a's requests are expected to be as long as b's and turn out a tenth of that."""
    admission = make_admission(seats=1)
    for _ in range(100):
        enter(admission, ticket("a", 10, 100), ticket("b", 10, 100))
    service = Counter()
    for now in range(100):
        (each,) = admission.grant(now)
        taken = 10 if each.person_id == "a" else 100
        service[each.person_id] += 10 + 2 * taken
        admission.leave(each, now, 10, taken)
    assert service["a"] == pytest.approx(service["b"], abs=2 * 210)


def test_who_was_not_served_is_charged_nothing(ticket):
    admission = make_admission(seats=1)
    (failed,) = enter(admission, ticket())
    enter(admission, ticket(), ticket("b"))
    admission.grant(0.0)
    admission.leave(failed, 0.0)
    assert grant(admission) == ["a1"]


@pytest.mark.parametrize("newcomer_seats", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_two_equal_floods_get_equal_token_service(newcomer_seats, seed, ticket):
    """Within 5 %, over a long run: each floods with requests of their own sizes, expectations
    are wrong, and requests take the longer the more they say."""
    rng = random.Random(seed)
    admission = make_admission(seats=8, kv_tokens=3000, newcomer_seats=newcomer_seats)
    sizes = {"a": (20, 120), "b": (150, 30)}
    service, running = Counter(), []
    for now in range(4000):
        for person, (prompt, output) in sizes.items():
            while admission.waiting.num_of(person) < 10:
                expected = max(1, round(output * rng.uniform(0.3, 2.0)))
                enter(admission, ticket(person, rng.randint(1, 2 * prompt), expected), now=now)
        for each in admission.grant(now):
            really = rng.randint(1, 2 * sizes[each.person_id][1])
            running.append([really, really, each])
        for entry in running:
            entry[0] -= 10
        for _, really, each in [entry for entry in running if entry[0] <= 0]:
            admission.leave(each, now, each.num_prompt_tokens, really)
            service[each.person_id] += each.num_prompt_tokens + 2 * really
        running = [entry for entry in running if entry[0] > 0]
    assert min(service.values()) > 50_000
    assert service["a"] == pytest.approx(service["b"], rel=0.05)


sizes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=8)


@given(
    mine=sizes,
    others=sizes,
    seats=st.integers(1, 6),
    kv_tokens=st.integers(70, 300),
    newcomer_seats=st.integers(0, 2),
    weight=st.sampled_from([1.0, 2.0]),
    order=st.randoms(use_true_random=False),
)
def test_service_of_two_who_always_wait_differs_by_no_more_than_the_bound(
    mine, others, seats, kv_tokens, newcomer_seats, weight, order
):
    """2 * max(w_p * L_input, w_q * M), whichever request ends next, kept seats or not."""
    admission = make_admission(seats, kv_tokens, newcomer_seats=newcomer_seats)
    make_ticket, shelves, turns = Tickets(), {"a": mine, "b": others}, Counter()
    service, gaps, running = Counter(), [], []
    for now in range(80):
        for person, shelf in shelves.items():
            while admission.waiting.num_of(person) < seats + 1:
                prompt, output = shelf[turns[person] % len(shelf)]
                turns[person] += 1
                person_weight = weight if person == "a" else 1.0
                enter(admission, make_ticket(person, prompt, output, weight=person_weight))
        for each in admission.grant(now):
            size = each.num_prompt_tokens + 2 * each.num_output_tokens
            service[each.person_id] += size / each.weight
            running.append(each)
        ended = running.pop(order.randrange(len(running)))
        admission.leave(ended, now, ended.num_prompt_tokens, ended.num_output_tokens)
        gaps.append(service["a"] - service["b"])
    longest = max(prompt for prompt, _ in [*mine, *others])
    assert max(gaps) - min(gaps) <= 2 * max(longest, 2 * kv_tokens)


# ------------------------------------------------------------- limits of a key, lanes


def test_a_key_at_its_limit_waits_and_blocks_nobody(ticket):
    admission = make_admission(seats=4)
    first, *_ = enter(admission, *(ticket(max_in_flight=1) for _ in range(3)))
    enter(admission, ticket("b"))
    assert grant(admission) == ["a0", "b0"]
    admission.leave(first, 1.0)
    assert grant(admission) == ["a1"]


def test_another_key_of_the_same_person_is_not_held_up(ticket):
    admission = make_admission(seats=4)
    enter(admission, ticket(max_in_flight=1), ticket(max_in_flight=1), ticket(key_id="other"))
    assert grant(admission) == ["a0", "a2"]


def test_batch_goes_only_when_nobody_interactive_waits_for_a_seat(ticket):
    admission = make_admission(seats=2)
    enter(admission, ticket("b", lane=BATCH), ticket("b", lane=BATCH))
    tickets = enter(admission, *(ticket() for _ in range(3)))
    assert grant(admission) == ["a0", "a1"]
    admission.leave(tickets[0], 1.0)
    admission.leave(tickets[1], 1.0)
    assert grant(admission) == ["a2", "b0"]


def test_batch_uses_what_someone_at_their_own_limit_leaves_idle(ticket):
    admission = make_admission(seats=3)
    enter(admission, ticket(max_in_flight=1), ticket(max_in_flight=1), ticket("b", lane=BATCH))
    assert grant(admission) == ["a0", "b0"]


def test_a_person_s_cap_holds_over_keys_and_a_model_s_over_one_model(ticket):
    counts = InFlightCounts()
    here, there = make_admission(seats=9, counts=counts), make_admission(seats=9, counts=counts)
    enter(here, *(ticket(key_id=key, person_max_in_flight=3) for key in "xyxy"), ticket("b"))
    assert grant(here) == ["a0", "b0", "a1", "a2"]
    enter(there, ticket(person_max_in_flight=3), ticket("b", person_max_in_flight=2))
    assert grant(there) == ["b1"]
    enter(there, *(ticket("c", model_max_in_flight=1) for _ in range(2)))
    enter(here, *(ticket("c", model_max_in_flight=1) for _ in range(2)))
    assert grant(there) == ["c0"]
    assert grant(here) == ["c2"]


def test_who_is_at_a_cap_does_not_keep_others_from_going(ticket):
    admission = make_admission(seats=9)
    enter(admission, *(ticket(person_max_in_flight=1) for _ in range(5)), ticket("b"))
    assert grant(admission) == ["a0", "b0"]


def test_a_cap_that_is_raised_lets_those_go_who_wait(ticket):
    admission = make_admission(seats=9)
    enter(admission, *(ticket(person_max_in_flight=1) for _ in range(3)))
    assert grant(admission) == ["a0"]
    admission.renew(lambda each: setattr(each, "person_max_in_flight", 2))
    assert grant(admission) == ["a1"]
    admission.renew(lambda each: setattr(each, "person_max_in_flight", None))
    assert grant(admission) == ["a2"]


def test_a_weight_that_is_changed_counts_for_those_who_wait(ticket):
    admission = make_admission(seats=1)
    tickets = enter(admission, *(ticket() for _ in range(4)), *(ticket("b") for _ in range(4)))
    admission.renew(lambda each: setattr(each, "weight", 3.0 if each.person_id == "b" else 1.0))
    order = []
    for now in range(8):
        (each,) = admission.grant(float(now))
        order.append(each.person_id)
        admission.leave(each, float(now), each.num_prompt_tokens, each.num_output_tokens)
    assert order[:5].count("b") == 3
    assert len(tickets) == 8


def test_batch_does_not_pass_someone_who_waits_for_memory(ticket):
    admission = make_admission(seats=3, kv_tokens=100)
    enter(admission, ticket(prompt=70), ticket(prompt=70), ticket("b", lane=BATCH))
    assert grant(admission) == ["a0"]
    assert grant(admission) == []


def test_batch_never_takes_a_kept_seat(ticket):
    admission = make_admission(seats=2, newcomer_seats=1)
    enter(admission, ticket("b", lane=BATCH), ticket("c", lane=BATCH))
    assert grant(admission) == ["b0"]
    enter(admission, ticket())
    assert grant(admission) == ["a0"]


# ------------------------------------------------------------ the queue and its bounds


def test_one_person_may_have_half_of_the_queue(ticket):
    admission = make_admission(max_requests=8)
    enter(admission, *(ticket() for _ in range(4)))
    refusal = refusal_of(admission, ticket())
    assert (refusal.outcome, refusal.status) == (Outcome.QUEUE_SHARE, 429)
    assert "4 requests waiting" in refusal.message
    assert "4 of 8" in refusal.message


def test_the_queue_is_full_for_newcomers_only_when_it_is_full(ticket):
    admission = make_admission(max_requests=4)
    enter(admission, *(ticket(person) for person in "abcd"))
    refusal = refusal_of(admission, ticket("e"))
    assert (refusal.outcome, refusal.status) == (Outcome.QUEUE_FULL, 503)
    assert "4 requests are waiting and 4 may" in refusal.message


def test_the_queue_is_bounded_in_tokens(ticket):
    admission = make_admission(max_tokens=1000)
    enter(admission, ticket(prompt=390), ticket("b", prompt=390))
    refusal = refusal_of(admission, ticket("c", prompt=300))
    assert refusal.outcome is Outcome.QUEUE_FULL
    assert "310" in refusal.message
    enter(admission, ticket("c", prompt=150))


def test_one_person_may_have_half_of_the_tokens(ticket):
    admission = make_admission(max_tokens=1000)
    enter(admission, ticket(prompt=390))
    refusal = refusal_of(admission, ticket(prompt=200))
    assert refusal.outcome is Outcome.QUEUE_SHARE
    assert "400 tokens" in refusal.message


def test_one_request_may_have_more_than_the_queues_tokens_when_nobody_waits(ticket):
    admission = make_admission(max_tokens=100)
    enter(admission, ticket(prompt=500))
    assert refusal_of(admission, ticket("b")).outcome is Outcome.QUEUE_FULL


@given(
    arrivals=st.lists(st.integers(0, 9), max_size=200),
    max_requests=st.integers(1, 40),
)
def test_there_is_room_for_a_newcomer_beside_any_floods(arrivals, max_requests):
    """Unless as many people wait as places are left to them."""
    admission, make_ticket = make_admission(max_requests=max_requests), Tickets()
    for person in arrivals:
        with suppress(Refusal):
            admission.enter(make_ticket(f"p{person}"), 0.0)
    people = len({each.person_id for each in admission.waiting})
    places = max(1, max_requests - -(-3 * max_requests // 4))
    try:
        admission.enter(make_ticket("newcomer"), 0.0)
    except Refusal:
        assert people >= places


def test_positions_are_fair_rounds_not_arrivals(ticket):
    admission = make_admission()
    flood = enter(admission, *(ticket() for _ in range(5)))
    assert [each.position for each in flood] == [0, 1, 2, 3, 4]
    others = enter(admission, ticket("b"), ticket("b"), ticket("c"))
    assert [each.position for each in others] == [1, 3, 2]
    batch = enter(admission, ticket("d", lane=BATCH), ticket("d", lane=BATCH))
    assert [each.position for each in batch] == [8, 9]
    assert enter(admission, ticket("e"))[0].position == 3, "batch comes after it"


def test_who_waits_too_long_is_out(ticket):
    admission = make_admission(seats=1, max_wait_s=10.0)
    first = enter(admission, ticket(), now=0.0)
    admission.grant(0.0)
    late = enter(admission, ticket(), ticket("b"), now=1.0)
    enter(admission, ticket("b"), now=2.0)
    assert admission.expire(10.9) == []
    assert admission.expire(11.0) == late
    assert admission.num_waiting == 1
    assert admission.expire(11.0) == []
    admission.leave(first[0], 11.0)
    assert grant(admission) == ["b1"]


def test_leaving_again_is_nothing(ticket):
    admission = make_admission()
    gone, running = enter(admission, ticket(), ticket())
    admission.leave(gone, 0.0)
    admission.grant(0.0)
    for _ in range(3):
        admission.leave(gone, 1.0, 5, 5)
        admission.leave(running, 1.0, 5, 5)
    assert (admission.num_waiting, admission.num_in_flight, admission.in_flight_tokens) == (0, 0, 0)


# ------------------------------------------------------------------- when to come back


def test_the_wait_is_told_by_what_requests_have_been_taking(ticket):
    admission = make_admission(seats=2)
    tickets = enter(admission, *(ticket(person) for person in "abcdef"))
    assert admission.seconds_until(4) == 2 * FIRST_SERVICE_S
    admission.grant(0.0)
    admission.leave(tickets[0], 30.0)
    admission.grant(30.0)
    assert admission.seconds_until(4) == 60.0
    assert admission.retry_after_s() == 4 * 30 / 2
    assert admission.person_retry_after_s("f") == 3 * 30 / 2


def test_an_idle_night_does_not_make_the_wait_longer(ticket):
    admission = make_admission(seats=1)
    for now in (0.0, 50_000.0):
        (each,) = enter(admission, ticket(), now=now)
        admission.grant(now)
        admission.leave(each, now + 2.0)
    assert admission.seconds_until(3) == 6.0


def test_a_refusal_says_when_ones_own_next_turn_is(ticket):
    admission = make_admission(seats=1, max_requests=8)
    enter(admission, *(ticket() for _ in range(2)), ticket("b"), ticket("c"))
    refusal = refusal_of(admission, ticket())
    assert refusal.outcome is Outcome.QUEUE_SHARE
    assert refusal.retry_after_s == 3 * FIRST_SERVICE_S
    assert "try again in 15 s" in refusal.message


# ------------------------------------------------------------------- whatever happens

PEOPLE = ("ann", "bob", "cem", "dan")


arrivals_and_ends = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(list(Lane)),
            st.integers(1, 40),
            st.integers(1, 40),
            st.integers(1, 3),
            st.sampled_from([None, 1, 2]),
        ),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(
    events=arrivals_and_ends,
    seats=st.integers(1, 5),
    kv_tokens=st.integers(80, 300),
    newcomer_seats=st.integers(0, 2),
)
def test_going_at_once_is_entering_and_being_granted_when_nobody_waits(
    events, seats, kv_tokens, newcomer_seats
):
    quick = make_admission(seats, kv_tokens, newcomer_seats=newcomer_seats)
    slow = make_admission(seats, kv_tokens, newcomer_seats=newcomer_seats)
    running = []
    for now, event in enumerate(events):
        if isinstance(event, int):
            if running:
                pair = running.pop(event % len(running))
                for admission, ticket in zip((quick, slow), pair, strict=True):
                    admission.leave(ticket, now, 5, 5)
        else:
            person, lane, prompt, output, num_seqs, cap = event
            pair = tuple(
                Tickets()(person, prompt, output, lane=lane, num_seqs=num_seqs, max_in_flight=cap)
                for _ in range(2)
            )
            for ticket in pair:
                ticket.request_id = f"{person}-{now}"
            if not quick.enter_at_once(pair[0], now):
                quick.enter(pair[0], now)
            slow.enter(pair[1], now)
            running.append(pair)
        quick.grant(now)
        slow.grant(now)
        for admission in (quick, slow):
            assert admission.in_flight_tokens == sum(t.num_tokens for t in admission.in_flight)
        assert {t.request_id for t in quick.in_flight} == {t.request_id for t in slow.in_flight}
        assert [t.request_id for t in quick.waiting] == [t.request_id for t in slow.waiting]
        for lane in Lane:
            counters = [admission._lanes[lane]._counters for admission in (quick, slow)]
            assert counters[0] == counters[1]


class AnyTraffic(RuleBasedStateMachine):
    """People come and go, requests end, the backend shrinks, grows and pauses."""

    waiting_or_running = Bundle("tickets")

    @initialize(
        seats=st.integers(1, 5),
        kv_tokens=st.integers(40, 200),
        newcomer_seats=st.integers(0, 2),
        max_requests=st.integers(1, 12),
        max_tokens=st.integers(40, 400),
    )
    def begin(self, seats, kv_tokens, newcomer_seats, max_requests, max_tokens):
        self.now = 0.0
        self.make_ticket = Tickets()
        self.admission = make_admission(
            seats,
            kv_tokens,
            newcomer_seats=newcomer_seats,
            max_requests=max_requests,
            max_tokens=max_tokens,
            max_wait_s=20.0,
        )
        self.waiting: dict[str, Ticket] = {}
        self.running: dict[str, Ticket] = {}

    @rule(
        target=waiting_or_running,
        person=st.sampled_from(PEOPLE),
        key=st.sampled_from("xy"),
        prompt=st.integers(1, 30),
        output=st.integers(1, 20),
        is_batch=st.booleans(),
    )
    def enter(self, person, key, prompt, output, is_batch):
        ticket = self.make_ticket(
            person,
            prompt,
            output,
            key_id=f"{person}-{key}",
            lane=BATCH if is_batch else INTERACTIVE,
            max_in_flight={"x": None, "y": 1}[key],
            person_max_in_flight={"dan": 2}.get(person),
            model_max_in_flight={"cem": 1}.get(person),
        )
        before = self.counters()
        is_newcomer = all(each.person_id != person for each in self.waiting.values())
        refusal = None
        try:
            self.admission.enter(ticket, self.now)
        except Refusal as error:
            refusal = error
        if refusal is not None:
            assert self.counters() == before, "what is refused costs nothing"
            assert refusal.status in (413, 429, 503)
            assert (refusal.retry_after_s or 0) >= 1 or refusal.status == 413
            assert refusal.outcome is not Outcome.QUEUE_SHARE or not is_newcomer
            return ticket
        assert ticket.num_tokens <= self.admission.capacity.kv_tokens
        assert 0 <= ticket.position <= len(self.waiting)
        self.waiting[ticket.request_id] = ticket
        return ticket

    @rule()
    def grant(self):
        admission = self.admission
        before = dict(self.waiting)
        granted = admission.grant(self.now)
        for ticket in granted:
            self.check_grant(ticket)
            del self.waiting[ticket.request_id]
            self.running[ticket.request_id] = ticket
        assert admission.grant(self.now) == []
        if not granted and not self.running and before and not admission.is_paused:
            raise AssertionError("somebody waits, nobody runs, and nobody goes")

    def check_grant(self, ticket):
        """`ticket` went while `self.running` ran and `self.waiting` waited."""
        capacity, running = self.admission.capacity, self.running.values()
        assert not self.admission.is_paused
        assert len(running) < capacity.max_num_seqs
        tokens = sum(each.num_tokens for each in running) + ticket.num_tokens
        assert tokens <= capacity.kv_tokens or not running
        of_key = sum(each.key_id == ticket.key_id for each in running)
        assert ticket.max_in_flight is None or of_key < ticket.max_in_flight
        of_person = sum(each.person_id == ticket.person_id for each in running)
        assert of_person < {"dan": 2, "cem": 1}.get(ticket.person_id, 99)
        kept = min(self.admission.limits.newcomer_seats, capacity.max_num_seqs - 1)
        if len(running) + 1 > capacity.max_num_seqs - kept:
            assert all(each.person_id != ticket.person_id for each in running)
            assert ticket.lane is INTERACTIVE
        if ticket.lane is BATCH:
            keys = Counter(each.key_id for each in running)
            people = Counter(each.person_id for each in running)
            for each in self.waiting.values():
                is_held = each.max_in_flight is not None and keys[each.key_id] >= each.max_in_flight
                is_held |= people[each.person_id] >= {"dan": 2, "cem": 1}.get(each.person_id, 99)
                assert each.lane is BATCH or is_held
        earlier = [
            each
            for each in self.waiting.values()
            if (each.key_id, each.lane) == (ticket.key_id, ticket.lane)
        ]
        assert earlier[0] is ticket, "a key's requests go in the order in which they came"

    @rule(ticket=consumes(waiting_or_running), seconds=st.integers(0, 3), share=st.floats(0, 3))
    def leave(self, ticket, seconds, share):
        self.now += seconds
        for _ in range(2):
            self.admission.leave(
                ticket,
                self.now,
                round(share * ticket.num_prompt_tokens),
                round(share * ticket.num_output_tokens),
            )
        self.waiting.pop(ticket.request_id, None)
        self.running.pop(ticket.request_id, None)

    @rule(seconds=st.integers(0, 15))
    def expire(self, seconds):
        self.now += seconds
        for ticket in self.admission.expire(self.now):
            assert self.now - ticket.entered_at >= 20.0
            del self.waiting[ticket.request_id]
        assert all(self.now - ticket.entered_at < 20.0 for ticket in self.waiting.values())

    @rule(seats=st.integers(1, 5), kv_tokens=st.integers(40, 200))
    def change_capacity(self, seats, kv_tokens):
        self.admission.capacity = Capacity(seats, kv_tokens, kv_tokens, Provenance.MEASURED)

    @rule(is_paused=st.booleans())
    def pause(self, is_paused):
        self.admission.is_paused = is_paused

    @rule()
    def drain(self):
        """Nobody starves: with nobody else coming, everybody who waits gets to go."""
        self.admission.is_paused = False
        for _ in range(2 * (len(self.waiting) + len(self.running)) + 1):
            self.grant()
            if not self.running:
                break
            oldest = next(iter(self.running.values()))
            del self.running[oldest.request_id]
            self.admission.leave(oldest, self.now, 1, 1)
        assert not self.waiting
        assert not self.running

    def counters(self):
        admission, room = self.admission, self.admission.waiting
        lanes = {lane: +counts for lane, counts in room._lanes.items()}
        parts = (room._requests, room._tokens, room._by_key)
        flying = (admission._in_flight_by_person, admission.counts.by_key)
        return (
            [each.request_id for each in room],
            room.num_tokens,
            lanes,
            [dict(part) for part in (*parts, *flying)],
            admission.in_flight_tokens,
        )

    @invariant()
    def everything_is_counted_once(self):
        if not hasattr(self, "admission"):
            return
        admission, waiting, running = self.admission, self.waiting, self.running
        room = admission.waiting
        assert [each.request_id for each in room] == list(waiting)
        assert sum(len(lane) for lane in admission._lanes.values()) == len(waiting)
        assert room.num_tokens == sum(each.num_tokens for each in waiting.values())
        assert room._requests == Counter(each.person_id for each in waiting.values())
        assert room._by_key == Counter(each.key_id for each in waiting.values())
        assert admission.num_in_flight == len(running)
        assert admission.in_flight_tokens == sum(each.num_tokens for each in running.values())
        by_person = Counter(each.person_id for each in running.values())
        assert admission._in_flight_by_person == by_person
        assert len(admission._in_flight_by_person) == len(by_person)
        by_key = Counter(each.key_id for each in running.values())
        assert admission.counts.by_key == by_key
        assert len(admission.counts.by_key) == len(by_key)

    @invariant()
    def the_queue_is_bounded(self):
        if not hasattr(self, "admission"):
            return
        room, limits = self.admission.waiting, self.admission.limits
        assert len(room) <= limits.max_requests
        assert room.num_tokens <= limits.max_tokens or len(room) == 1 or self.is_over()
        common = -(-limits.max_requests * COMMON_PART // 1)
        most = max(room._requests.values(), default=0)
        assert most <= max(1, min(common, limits.max_requests // 2))

    def is_over(self):
        """One too large came first, and others who stay do not count it again."""
        first = next(iter(self.admission.waiting))
        return first.num_tokens > self.admission.limits.max_tokens


AnyTraffic.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
test_any_traffic = AnyTraffic.TestCase
