"""Seats in Redis: the same people go as by one gateway's memory, over several workers."""

import time
from collections import Counter

import pytest
from direct_line import DirectLine, needs_redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from carpool.gateway.admission import Admission
from carpool.gateway.in_flight import InFlightCounts
from carpool.gateway.refusal import Refusal
from carpool.gateway.shared_seats import PoolFigures, SharedSeats, Standing
from carpool.gateway.ticket import Ticket
from carpool.gateway.waiting_room import QueueLimits, Room
from carpool.scheduling.capacity import Capacity, Provenance
from carpool.store.lane import Lane

pytestmark = needs_redis

INTERACTIVE, BATCH = Lane.INTERACTIVE, Lane.BATCH
SETTLED_S, LEASE_S = 1.6, 5.1


class Clock:
    def __init__(self):
        self.now = float(int(time.time()))


class Pool:
    """A gate that only writes down what it is told."""

    def __init__(self, told):
        self.told = told
        self.has = {}
        self.waiting, self.running = [], []
        self.rooms = {}
        self.positions = {}
        self.figures = None
        self.is_alone = True

    def standing(self):
        waiting = [self.has[each] for each in self.waiting]
        return Standing([self.has[each] for each in self.running], waiting, [], self.told)

    def go_alone(self):
        self.is_alone = True

    def go_together(self):
        self.is_alone = False

    def answered(self, request_id, answer, is_granted):
        if "room" in answer:
            self.rooms[request_id] = Room(**answer["room"])
        else:
            self.positions[request_id] = answer["position"]
            self.waiting.append(request_id)

    def granted(self, request_id):
        if request_id in self.waiting:
            self.waiting.remove(request_id)
            self.running.append(request_id)

    def heard(self, figures):
        self.figures = figures


class Worker:
    def __init__(self, name, clock, prefix, told, pools=("m",)):
        self.line = DirectLine(lambda: clock.now)
        self.line.prefix = prefix or self.line.prefix
        self.seats = SharedSeats(self.line, name, clock=lambda: clock.now)
        self.pools = {pool: Pool(told) for pool in pools}
        for pool, gate in self.pools.items():
            self.seats.add(pool, gate)
        self.hear()

    @property
    def pool(self):
        return self.pools["m"]

    def hear(self):
        self.seats.on_call()
        self.line.wake()

    def enter(self, ticket, pool="m"):
        self.pools[pool].has[ticket.request_id] = ticket
        self.seats.enter(pool, ticket)
        return ticket

    def leave(self, ticket, prompt=0, output=0, pool="m"):
        for line in (self.pools[pool].waiting, self.pools[pool].running):
            if ticket.request_id in line:
                line.remove(ticket.request_id)
        self.seats.leave(pool, ticket, prompt, output)

    def tell(self, told):
        self.pool.told = told
        self.seats.tell("m", told)


class Workers:
    def __init__(self, *names, pools=("m",), **told):
        self.clock = Clock()
        self.told = told_of(**told)
        self.pools = pools
        self.prefix = None
        self.all = {}
        for name in names:
            self.add(name)
        self.wait(SETTLED_S)

    def add(self, name):
        worker = Worker(name, self.clock, self.prefix, self.told, self.pools)
        self.prefix = worker.line.prefix
        self.all[name] = worker
        return worker

    def wait(self, seconds, *names):
        """Those who are named, or all, keep up their leases."""
        while seconds > 0:
            self.clock.now += min(seconds, 1.0)
            seconds -= 1.0
            self.hear(*names)

    def hear(self, *names):
        for name, worker in self.all.items():
            if not names or name in names:
                worker.hear()

    def close(self):
        for worker in self.all.values():
            worker.line.close()


@pytest.fixture
def workers():
    made = []

    def make(*names, **told):
        made.append(Workers(*names, **told))
        return made[-1]

    yield make
    for each in made:
        each.close()


def told_of(seats=4, kv_tokens=10_000, **limits):
    limits = {"newcomer_seats": 0, "max_requests": 512, "max_tokens": 4_000_000} | limits
    return {"max_num_seqs": seats, "kv_tokens": kv_tokens, "is_paused": False, **limits}


class Tickets:
    def __init__(self):
        self.counts = Counter()

    def __call__(self, person="a", prompt=10, output=10, **fields):
        self.counts[person] += 1
        return Ticket(
            request_id=f"{person}{self.counts[person]}",
            person_id=person,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            **{"key_id": f"{person}-key", **fields},
        )


@pytest.fixture
def ticket():
    return Tickets()


def test_seats_of_all_workers_together_are_those_there_are(workers, ticket):
    here = workers("a", "b", seats=4)
    for number in range(10):
        here.all["ab"[number % 2]].enter(ticket(f"p{number}"))
    here.hear()
    running = [len(worker.pool.running) for worker in here.all.values()]
    assert sum(running) == 4
    assert here.all["a"].pool.figures == PoolFigures(waiting=6, in_flight=4, peak=4)


def test_a_seat_that_one_worker_gives_back_goes_to_whoever_waits_at_another(workers, ticket):
    here = workers("a", "b", seats=1)
    first = here.all["a"].enter(ticket("ana"))
    second = here.all["b"].enter(ticket("ben"))
    assert here.all["b"].pool.waiting == [second.request_id]
    here.all["a"].leave(first)
    here.all["b"].hear()
    assert here.all["b"].pool.running == [second.request_id]


def test_people_take_turns_by_what_they_had_whichever_worker_they_wait_at(workers, ticket):
    here = workers("a", "b", seats=1)
    a, b = here.all.values()
    running = [(a, a.enter(ticket("cem")))]
    for _ in range(3):
        a.enter(ticket("ana"))
    for _ in range(6):
        b.enter(ticket("ben", prompt=5, output=5))
    order = []
    while running:
        worker, done = running.pop()
        worker.leave(done, done.num_prompt_tokens, done.num_output_tokens)
        here.hear()
        running = [(each, each.pool.has[name]) for each in (a, b) for name in each.pool.running]
        order += [each.person_id for _, each in running]
    assert "".join(each[0] for each in order) == "abbabbabb"


def test_a_worker_that_dies_gives_its_seats_back_when_its_lease_is_over(workers, ticket):
    here = workers("a", "b", seats=2)
    a, b = here.all.values()
    a.enter(ticket("ana")), a.enter(ticket("ana")), a.enter(ticket("ana"))
    waiting = b.enter(ticket("ben"))
    here.wait(3.0, "b")
    assert b.pool.waiting == [waiting.request_id]
    here.wait(LEASE_S, "b")
    assert b.pool.running == [waiting.request_id]
    assert b.pool.figures == PoolFigures(waiting=0, in_flight=1, peak=1)


def test_a_worker_whose_lease_ran_out_says_again_what_it_has(workers, ticket):
    here = workers("a", "b", seats=2)
    a, b = here.all.values()
    a.enter(ticket("ana"))
    here.wait(LEASE_S, "b")
    assert b.pool.figures.in_flight == 0
    a.hear()
    b.hear()
    assert b.pool.figures.in_flight == 1


def test_after_the_server_forgot_everything_nobody_goes_before_all_have_said_what_they_have(
    workers, ticket
):
    here = workers("a", "b", seats=2)
    a, b = here.all.values()
    a.enter(ticket("ana")), a.enter(ticket("ana"))
    waiting = b.enter(ticket("ben"))
    a.line._redis.delete(*a.line._redis.scan_iter(f"{here.prefix}*"))
    b.hear()
    assert b.pool.waiting == [waiting.request_id], "two are at the engine still"
    a.hear()
    here.wait(SETTLED_S)
    assert b.pool.figures == PoolFigures(waiting=1, in_flight=2, peak=2)
    assert b.pool.waiting == [waiting.request_id]


def test_a_cap_of_a_person_holds_over_models_and_workers(workers, ticket):
    here = workers("a", "b", pools=("m", "n"))
    a, b = here.all.values()
    first = a.enter(ticket("ana", person_max_in_flight=1), "m")
    second = b.enter(ticket("ana", person_max_in_flight=1), "n")
    assert b.pools["n"].waiting == [second.request_id]
    a.leave(first)
    b.hear()
    assert b.pools["n"].running == [second.request_id]


def test_what_a_person_had_in_flight_is_not_held_against_them_when_all_workers_are_gone(
    workers, ticket
):
    here = workers("a")
    here.all["a"].enter(ticket("ana", person_max_in_flight=1))
    line = here.all["a"].line
    line._redis.delete(f"{here.prefix}seats:pool:m")  # forgotten after a day
    here.clock.now += 86400
    del here.all["a"]
    later = here.add("b")
    here.wait(SETTLED_S)
    again = later.enter(ticket("ana", person_max_in_flight=1))
    assert later.pool.running == [again.request_id]
    line.close()


def test_nobody_goes_through_a_worker_that_sees_no_engine(workers, ticket):
    here = workers("a", "b")
    a, b = here.all.values()
    a.tell({**here.told, "is_paused": True})
    mine, other = a.enter(ticket("ana")), b.enter(ticket("ana"))
    assert (a.pool.waiting, b.pool.running) == ([mine.request_id], [other.request_id])
    a.tell(here.told)
    assert a.pool.running == [mine.request_id]


PEOPLE = ["ana", "ben", "cem", "dan"]


class AsInMemory(RuleBasedStateMachine):
    """Over two workers the same tickets wait, go and are refused as over one's memory."""

    tickets = Bundle("tickets")

    @initialize(
        seats=st.integers(1, 5),
        kv_tokens=st.integers(40, 200),
        newcomer_seats=st.integers(0, 2),
        max_requests=st.integers(1, 12),
        max_tokens=st.integers(40, 400),
    )
    def begin(self, seats, kv_tokens, **limits):
        self.limits = limits
        self.make_ticket = Tickets()
        self.memory = Admission(
            Capacity(seats, kv_tokens, kv_tokens, Provenance.REPORTED),
            QueueLimits(**limits),
            InFlightCounts(),
        )
        self.workers = Workers("a", "b", **told_of(seats, kv_tokens, **limits))

    @rule(
        target=tickets,
        person=st.sampled_from(PEOPLE),
        key=st.sampled_from("xy"),
        prompt=st.integers(1, 30),
        output=st.integers(1, 20),
        num_seqs=st.integers(1, 2),
        is_batch=st.booleans(),
        worker=st.sampled_from("ab"),
    )
    def enter(self, person, key, prompt, output, num_seqs, is_batch, worker):
        ticket = self.make_ticket(
            person,
            prompt,
            output,
            num_seqs=num_seqs,
            key_id=f"{person}-{key}",
            lane=BATCH if is_batch else INTERACTIVE,
            weight={"ben": 2.0}.get(person, 1.0),
            max_in_flight={"x": None, "y": 1}[key],
            person_max_in_flight={"dan": 2}.get(person),
            model_max_in_flight={"cem": 1}.get(person),
        )
        if ticket.num_tokens > self.memory.capacity.kv_tokens:
            return None
        gate = self.workers.all[worker].pool
        refusal = None
        try:
            self.memory.enter(ticket, 0.0)
        except Refusal as error:
            refusal = error
        self.workers.all[worker].enter(ticket)
        room = gate.rooms.get(ticket.request_id)
        assert (refusal is None) == (room is None)
        if refusal is not None:
            assert str(self.memory.no_room(ticket, room)) == str(refusal)
            return None
        assert gate.positions[ticket.request_id] == ticket.position
        self.check()
        return worker, ticket

    @rule(entered=consumes(tickets), share=st.floats(0, 3))
    def leave(self, entered, share):
        if entered is None:
            return
        worker, ticket = entered
        prompt = round(share * ticket.num_prompt_tokens)
        output = round(share * ticket.num_output_tokens)
        self.memory.leave(ticket, 0.0, prompt, output)
        self.workers.all[worker].leave(ticket, prompt, output)
        self.check()

    @rule(seats=st.integers(1, 5), kv_tokens=st.integers(40, 200), worker=st.sampled_from("ab"))
    def change_capacity(self, seats, kv_tokens, worker):
        self.memory.capacity = Capacity(seats, kv_tokens, kv_tokens, Provenance.MEASURED)
        self.workers.all[worker].tell(told_of(seats, kv_tokens, **self.limits))
        self.check()

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds):
        self.workers.wait(seconds)
        self.check()

    def check(self):
        self.memory.grant(0.0)
        self.workers.hear()
        waiting, running = [], []
        for worker in self.workers.all.values():
            waiting += worker.pool.waiting
            running += worker.pool.running
        assert sorted(waiting) == sorted(each.request_id for each in self.memory.waiting)
        assert sorted(running) == sorted(each.request_id for each in self.memory.in_flight)

    def teardown(self):
        if hasattr(self, "workers"):
            self.workers.close()


AsInMemory.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_as_in_memory = AsInMemory.TestCase
