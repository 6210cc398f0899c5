"""The gate of a worker that shares its seats: with a real Redis, and while that is away."""

import asyncio

import pytest
from direct_line import DirectLine, needs_redis

from carpool.gateway.admission import Admission
from carpool.gateway.outcome import Outcome
from carpool.gateway.redis_link import CountersAway
from carpool.gateway.refusal import Refusal
from carpool.gateway.shared_gate import SharedGate
from carpool.gateway.shared_seats import SharedSeats
from carpool.gateway.ticket import Ticket
from carpool.gateway.waiting_room import QueueLimits
from carpool.scheduling.capacity import Capacity, Provenance

pytestmark = needs_redis

START = 1_800_000_000.0


class Worker:
    """`line.is_away = True` keeps letters back; `lose` says that the server is gone."""

    def __init__(self, name, prefix=None, now=START, **limits):
        self.now = now
        self.line = DirectLine(lambda: self.now)
        self.line.prefix = prefix or self.line.prefix
        self.seats = SharedSeats(self.line, name, num_workers=2, clock=lambda: self.now)
        capacity = Capacity(4, 10_000, 10_000, Provenance.REPORTED)
        self.admission = Admission(capacity, QueueLimits(**{"newcomer_seats": 0, **limits}))
        self.gate = SharedGate(self.admission, self.seats, "m")
        self.gate.set_capacity(capacity, 10_000, is_paused=False)
        self.hear()
        self.now += 2.0
        self.hear()

    def hear(self):
        self.seats.on_call()
        self.line.wake()

    def lose(self):
        self.line.is_away = True
        self.seats.lost(CountersAway())

    def find(self):
        self.line.is_away = False
        self.hear()
        self.now += 2.0
        self.hear()


@pytest.fixture
def workers():
    made = []

    def make(name, *others, **options):
        prefix = others[0].line.prefix if others else None
        made.append(Worker(name, prefix, **options))
        return made[-1]

    yield make
    for each in made:
        each.line.close()


def ticket(name, person="ana", **fields):
    return Ticket(
        request_id=name,
        person_id=person,
        num_prompt_tokens=10,
        num_output_tokens=10,
        key_id=f"{person}-key",
        **fields,
    )


async def refusal_of(seat):
    with pytest.raises(Refusal) as caught:
        await seat.wait()
    return caught.value


def test_a_seat_is_granted_and_given_back(run, workers):
    async def scenario():
        worker = workers("a")
        seats = [worker.gate.enter(ticket(f"t{number}")) for number in range(5)]
        for seat in seats[:4]:
            await seat.wait()
        assert not seats[4].is_granted
        assert worker.admission.num_in_flight == 4
        with seats[0]:
            pass
        await seats[4].wait()

    run(scenario())


def test_a_full_queue_is_refused_with_the_numbers_of_all_workers(run, workers):
    async def scenario():
        one = workers("a", max_requests=3)
        other = workers("b", one, now=START + 2, max_requests=3)
        for number in range(4):
            await one.gate.enter(ticket(f"t{number}")).wait()
        waiting = [one.gate.enter(ticket(f"w{who}", who)) for who in ("ben", "cem", "dan")]
        refusal = await refusal_of(other.gate.enter(ticket("x", "eve")))
        assert refusal.outcome is Outcome.QUEUE_FULL
        assert "3 requests are waiting and 3 may" in refusal.message
        assert not any(seat.is_granted for seat in waiting)

    run(scenario())


def test_those_who_asked_when_the_server_went_away_go_by_this_workers_share(run, workers):
    async def scenario():
        worker = workers("a")
        worker.seats.num_workers = 2
        worker.line.is_away = True
        seats = [worker.gate.enter(ticket(f"t{number}")) for number in range(3)]
        assert not any(seat.is_granted for seat in seats)
        worker.lose()
        assert [seat.is_granted for seat in seats] == [True, True, False]
        assert worker.admission.capacity.max_num_seqs == 2
        worker.find()
        await seats[2].wait()
        assert worker.admission.capacity.max_num_seqs == 4
        assert worker.admission.num_in_flight == 3

    run(scenario())


def test_what_was_granted_alone_is_known_to_the_others_afterwards(run, workers):
    async def scenario():
        one = workers("a")
        other = workers("b", one, now=START + 2)
        one.lose()
        alone = [one.gate.enter(ticket(f"t{number}")) for number in range(2)]
        one.now = other.now
        one.find()
        assert all(seat.is_granted for seat in alone)
        other.now = one.now
        seats = [other.gate.enter(ticket(f"o{number}", "ben")) for number in range(3)]
        assert [seat.is_granted for seat in seats] == [True, True, False]

    run(scenario())


def test_whoever_leaves_while_the_answer_is_on_its_way_leaves_nothing(run, workers):
    async def scenario():
        worker = workers("a")
        worker.line.is_away = True
        with worker.gate.enter(ticket("t")):
            letter = worker.seats.outgoing()
        script = worker.line._scripts[0][1]
        worker.seats.incoming(worker.line.ask(script, letter))
        worker.line.is_away = False
        worker.hear()
        assert worker.admission.num_in_flight == 0
        seats = [worker.gate.enter(ticket(f"n{number}")) for number in range(4)]
        assert all(seat.is_granted for seat in seats)

    run(scenario())


def test_those_of_a_revoked_key_are_sent_away_wherever_they_are(run, workers):
    async def scenario():
        worker = workers("a")
        for number in range(4):
            await worker.gate.enter(ticket(f"t{number}", "ben")).wait()
        waiting = worker.gate.enter(ticket("w"))
        worker.line.is_away = True
        asked = worker.gate.enter(ticket("x"))
        refusal = Refusal(Outcome.KEY_REVOKED, "revoked")
        worker.gate.refuse_waiting(lambda each: each.key_id == "ana-key", refusal)
        assert await refusal_of(waiting) is refusal
        assert await refusal_of(asked) is refusal

    run(scenario())


def test_caps_that_change_hold_for_those_who_wait(run, workers):
    async def scenario():
        worker = workers("a")
        first = worker.gate.enter(ticket("t0", max_in_flight=1))
        second = worker.gate.enter(ticket("t1", max_in_flight=1))
        assert (first.is_granted, second.is_granted) == (True, False)

        def change(each):
            each.max_in_flight = 2

        worker.gate.renew(change)
        await second.wait()

    run(scenario())


def test_whoever_waits_too_long_is_refused(run, workers):
    async def scenario():
        worker = workers("a", max_wait_s=0.05)
        for number in range(4):
            await worker.gate.enter(ticket(f"t{number}", "ben")).wait()
        with worker.gate.enter(ticket("w")) as seat:
            refusal = await refusal_of(seat)
        assert refusal.outcome is Outcome.QUEUE_TIMEOUT
        worker.hear()
        assert worker.admission.elsewhere.waiting == 0
        await asyncio.sleep(0)

    run(scenario())
