"""What a caller may use of a model: the tightest of the key's, the person's and the model's."""

import pytest

from carpool.gateway.admission import Admission
from carpool.gateway.allowance import Allowances, InFlightCaps
from carpool.gateway.gate import Gate
from carpool.gateway.key_ring import Caller, KeyRing
from carpool.gateway.limit_counters import LimitReached
from carpool.gateway.meters import Meters
from carpool.gateway.refusal import Refusal
from carpool.gateway.served_model import ServedModel
from carpool.gateway.ticket import Ticket
from carpool.gateway.waiting_room import QueueLimits
from carpool.scheduling.capacity import Capacity, Provenance
from carpool.store.key_store import KeySnapshot
from carpool.store.limits import NO_LIMITS, Limits
from carpool.store.person import Person


def make_model(limits=NO_LIMITS, name="team-model", aliases=("fast",)):
    admission = Admission(Capacity(4, 1000, 1000, Provenance.REPORTED), QueueLimits())
    gate = Gate(admission, lambda: 0.0)
    return ServedModel(name=name, aliases=aliases, gate=gate, replicas=[], limits=limits)


@pytest.fixture
def caller(make_key):
    """Ana with a key; limits of the person, then of the key."""

    def make(person=NO_LIMITS, **key_limits):
        return Caller(make_key(**key_limits), Person("ana", "Ana", 1.0, person))

    return make


def allowance(caller, model=None):
    return Allowances(Meters()).of(caller, model or make_model())


@pytest.mark.parametrize(
    ("key", "person", "model", "tightest", "who"),
    [
        (10, None, None, 10, "this key may"),
        (10, 9, None, 9, "you, with all your keys together, may"),
        (10, 9, 8, 8, "you, with the model team-model, may"),
        (7, 9, 8, 7, "this key may"),
    ],
)
def test_the_tightest_length_holds(caller, key, person, model, tightest, who):
    limits = [
        {"max_prompt_tokens": each, "max_output_tokens": each} for each in (key, person, model)
    ]
    mine = allowance(caller(Limits(**limits[1]), **limits[0]), make_model(Limits(**limits[2])))
    assert mine.max_output_tokens == tightest
    mine.check_prompt(tightest)
    with pytest.raises(Refusal, match=f"{who} send {tightest} ") as caught:
        mine.check_prompt(tightest + 1)
    assert (caught.value.status, caught.value.limit) == (413, "max_prompt_tokens")


def test_nobody_is_capped_without_limits(caller, run):
    mine = allowance(caller())
    mine.check_prompt(10**9)
    assert mine.max_output_tokens is None
    assert mine.in_flight_caps == InFlightCaps(None, None, None)
    assert run(mine.reserve(10**9)).rate_headers == []


def test_all_three_are_reserved_together(caller, run):
    mine = allowance(
        caller(Limits(tpm=500), rpm=100, tpm=1000), make_model(Limits(tpm=400, daily_tokens=10**6))
    )

    async def scenario():
        reservation = await mine.reserve(300)
        headers = dict(reservation.rate_headers)
        assert headers[b"x-ratelimit-limit-requests"] == b"100"
        assert headers[b"x-ratelimit-limit-tokens"] == b"400"
        with pytest.raises(LimitReached, match="you, with the model team-model, may use 400 "):
            await mine.reserve(300)
        reservation.cancel()
        await mine.reserve(400)

    run(scenario())


def test_an_allowance_is_made_once_and_anew_when_something_changed(caller):
    allowances, model, ana = Allowances(Meters()), make_model(), caller()
    first = allowances.of(ana, model)
    assert allowances.of(Caller(ana.key, ana.person), model) is first
    assert allowances.of(ana, make_model(name="deep")) is not first
    stricter = Caller(ana.key, Person("ana", "Ana", 1.0, Limits(max_output_tokens=5)))
    assert allowances.of(stricter, model).max_output_tokens == 5


def test_who_waits_gets_the_caps_and_the_weight_that_hold_now(make_key, run):
    async def scenario():
        ring, allowances, model = (
            KeyRing(),
            Allowances(Meters()),
            make_model(Limits(max_in_flight=4)),
        )
        person = Person("ana", "Ana", 3.0, Limits(max_in_flight=2))
        ring.load(KeySnapshot(1, (make_key(max_in_flight=1),), {"ana": person}))
        model.gate.admission.is_paused = True
        ticket = Ticket(
            request_id="r",
            person_id="ana",
            num_prompt_tokens=1,
            num_output_tokens=1,
            key_id="anakey",
        )
        with model.gate.enter(ticket):
            model.gate.renew(lambda each: allowances.renew(ring, model, each))
            caps = (ticket.max_in_flight, ticket.person_max_in_flight, ticket.model_max_in_flight)
            assert (caps, ticket.weight) == ((1, 2, 4), 3.0)
            ring.load(KeySnapshot(2, (), {}))
            model.gate.renew(lambda each: allowances.renew(ring, model, each))
            assert ticket.max_in_flight == 1, "a key that is gone is the ring's to tell of"

    run(scenario())
