"""The queue as coroutines meet it: whatever ends a wait, what it took comes back."""

import asyncio
import gc
import itertools
import random
import weakref

import pytest

from carpool.gateway.admission import Admission
from carpool.gateway.gate import Gate
from carpool.gateway.in_flight import InFlightCounts
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.gateway.ticket import Ticket
from carpool.gateway.waiting_room import QueueLimits
from carpool.scheduling.capacity import Capacity, Provenance

GONE = Refusal(Outcome.DRAINING, "the server is shutting down; try again", retry_after_s=5)


def make_gate(seats=1, counts=None, **limits):
    capacity = Capacity(seats, 10_000, 10_000, Provenance.REPORTED)
    limits = QueueLimits(**{"newcomer_seats": 0, **limits})
    return Gate(Admission(capacity, limits, counts), asyncio.get_running_loop().time)


numbers = itertools.count()


def make_ticket(person="ana", **fields):
    return Ticket(
        request_id=f"{person}{next(numbers)}",
        person_id=person,
        num_prompt_tokens=10,
        num_output_tokens=10,
        key_id=fields.pop("key_id", f"{person}-key"),
        **fields,
    )


class Request:
    """A coroutine that waits for a seat, holds it until `release`, and gives it back."""

    def __init__(self, gate, **fields):
        self.ticket = make_ticket(**fields)
        self.release = asyncio.Event()
        self.is_running = False
        self.task = asyncio.create_task(self._run(gate))

    async def _run(self, gate):
        with gate.enter(self.ticket) as seat:
            await seat.wait()
            self.is_running = True
            await self.release.wait()
            seat.used(10, 10)

    @property
    def refusal(self):
        error = self.task.exception()
        assert isinstance(error, Refusal)
        return error


async def settle():
    """Until every coroutine has gone as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def is_empty(gate):
    admission = gate.admission
    counts = (admission.num_waiting, admission.num_in_flight, admission.in_flight_tokens)
    return counts == (0, 0, 0) and not gate._waits


def test_seats_go_from_one_to_the_next(run):
    async def scenario():
        gate = make_gate(seats=2)
        requests = [Request(gate) for _ in range(4)]
        await settle()
        assert [each.is_running for each in requests] == [True, True, False, False]
        requests[1].release.set()
        await settle()
        assert [each.is_running for each in requests] == [True, True, True, False]
        for each in requests:
            each.release.set()
        await asyncio.gather(*(each.task for each in requests))
        assert is_empty(gate)

    run(scenario())


@pytest.mark.parametrize("cap", ["max_in_flight", "person_max_in_flight"])
def test_who_is_at_a_cap_goes_when_a_request_for_another_model_ends(run, cap):
    async def scenario():
        counts = InFlightCounts()
        here, there = make_gate(4, counts), make_gate(4, counts)
        uncapped = Request(here)
        await settle()
        waiting = Request(there, **{cap: 1})
        await settle()
        assert not waiting.is_running
        uncapped.release.set()
        await settle()
        assert waiting.is_running
        waiting.release.set()
        await waiting.task
        assert is_empty(here)
        assert is_empty(there)
        assert not counts.by_key
        assert not counts.by_person

    run(scenario())


def test_a_free_seat_is_there_at_once(run):
    async def scenario():
        gate = make_gate()
        with gate.enter(make_ticket()) as seat:
            assert seat.is_granted
            await seat.wait()

    run(scenario())


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["who runs", "who is next", "who is last"])
def test_who_is_cancelled_gives_everything_back(run, victim):
    async def scenario():
        gate = make_gate()
        requests = [Request(gate) for _ in range(3)]
        await settle()
        requests[victim].task.cancel()
        await settle()
        assert requests[victim].task.cancelled()
        assert gate.admission.num_in_flight == 1
        assert gate.admission.num_waiting == 1
        rest = [each for each in requests if each is not requests[victim]]
        for each in rest:
            each.release.set()
        await asyncio.gather(*(each.task for each in rest))
        assert is_empty(gate)

    run(scenario())


def test_who_is_cancelled_in_the_moment_of_the_grant_gives_the_seat_back(run):
    async def scenario():
        gate = make_gate()
        first, second, third = (Request(gate) for _ in range(3))
        await settle()
        first.release.set()
        await asyncio.sleep(0)
        second.task.cancel()
        await settle()
        assert second.task.cancelled()
        assert third.is_running
        third.release.set()
        await third.task
        assert is_empty(gate)

    run(scenario())


def test_who_fails_gives_everything_back(run):
    async def fail(gate):
        with gate.enter(make_ticket()) as seat:
            await seat.wait()
            raise RuntimeError

    async def scenario():
        gate = make_gate()
        with pytest.raises(RuntimeError):
            await fail(gate)
        assert is_empty(gate)

    run(scenario())


def test_who_waits_too_long_is_told_so(run):
    async def scenario():
        gate = make_gate(max_wait_s=0.02)
        first, late = Request(gate), Request(gate)
        await asyncio.wait([late.task])
        assert first.is_running
        assert late.refusal.outcome is Outcome.QUEUE_TIMEOUT
        assert late.refusal.retry_after_s >= 1
        assert "within 0.02 s" in late.refusal.message
        first.release.set()
        await first.task
        assert is_empty(gate)

    run(scenario())


def test_a_wait_can_be_interrupted_and_gone_on_with(run):
    async def scenario():
        gate = make_gate()
        first = Request(gate)
        await settle()
        with gate.enter(make_ticket()) as seat:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await seat.wait()
            first.release.set()
            await seat.wait()
        assert is_empty(gate)

    run(scenario())


def test_the_waiting_of_one_key_can_be_sent_away(run):
    async def scenario():
        gate = make_gate()
        running, revoked, other = Request(gate), Request(gate, key_id="bad"), Request(gate)
        await settle()
        refusal = Refusal(Outcome.KEY_REVOKED, "the key of this request was revoked")
        gate.refuse_waiting(lambda ticket: ticket.key_id == "bad", refusal)
        await settle()
        assert revoked.refusal is refusal
        assert running.is_running
        running.release.set()
        other.release.set()
        await asyncio.gather(running.task, other.task)
        assert is_empty(gate)

    run(scenario())


def test_a_closed_gate_sends_away_who_waits_and_who_comes_and_lets_who_runs_finish(run):
    async def scenario():
        gate = make_gate()
        running, waiting = Request(gate), Request(gate)
        await settle()
        gate.close(GONE)
        await settle()
        assert waiting.refusal.outcome is Outcome.DRAINING
        with pytest.raises(Refusal), gate.enter(make_ticket()):
            pass
        assert not running.task.done()
        running.release.set()
        await running.task
        assert is_empty(gate)

    run(scenario())


def test_a_closed_gate_remembers_nobody_it_sent_away(run):
    class Visitor:
        pass

    def visit(gate):
        visitor = Visitor()
        with pytest.raises(Refusal), gate.enter(make_ticket()):
            pass
        return weakref.ref(visitor)

    async def scenario():
        gate = make_gate()
        gate.close(GONE)
        visits = [visit(gate) for _ in range(20)]
        gc.collect()
        assert sum(each() is not None for each in visits) <= 1

    run(scenario())


def test_when_the_backend_is_back_those_who_waited_go(run):
    async def scenario():
        gate = make_gate(seats=2)
        gate.admission.is_paused = True
        requests = [Request(gate) for _ in range(3)]
        await settle()
        assert not any(each.is_running for each in requests)
        gate.admission.is_paused = False
        gate.pump()
        await settle()
        assert [each.is_running for each in requests] == [True, True, False]
        for each in requests:
            each.release.set()
        await asyncio.gather(*(each.task for each in requests))

    run(scenario())


def test_who_waits_for_a_backend_that_stays_away_is_told_so(run):
    async def scenario():
        gate = make_gate(max_wait_s=0.02)
        gate.admission.is_paused = True
        request = Request(gate)
        await asyncio.wait([request.task])
        assert request.refusal.outcome is Outcome.QUEUE_TIMEOUT
        assert is_empty(gate)

    run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_after_a_storm(run, seed):
    """Hundreds of requests that finish, leave, fail and expire in any order."""

    async def one(gate, rng):
        try:
            with gate.enter(make_ticket(rng.choice("abc"), max_in_flight=rng.choice([None, 2]))):
                pass
            with gate.enter(make_ticket(rng.choice("abc"))) as seat:
                await seat.wait()
                for _ in range(rng.randrange(5)):
                    await asyncio.sleep(0)
                if rng.random() < 0.2:
                    raise RuntimeError
                seat.used(rng.randrange(50), rng.randrange(50))
        except (Refusal, RuntimeError):
            pass

    async def scenario():
        rng = random.Random(seed)
        gate = make_gate(seats=3, max_requests=20, newcomer_seats=1)
        tasks = []
        for _ in range(300):
            tasks.append(asyncio.create_task(one(gate, rng)))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert is_empty(gate)
        assert not gate.admission.counts.by_key
        assert not gate.admission._in_flight_by_person

    run(scenario())
