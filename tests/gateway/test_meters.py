"""Counters in memory: one meter a subject, which knows the ledger and follows its limits."""

import asyncio
from datetime import UTC, datetime

import pytest

from carpool.gateway.limit_counters import LimitReached
from carpool.gateway.meters import NOTHING, Meters
from carpool.gateway.subject import of_key, of_model, of_person
from carpool.store.limits import NO_LIMITS, Limits


def noon():
    return datetime(2027, 1, 31, 12, tzinfo=UTC)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def make_meters(used_tokens=lambda subject: (0, 0)):
    return Meters(used_tokens, Clock(), noon)


async def is_refused(meters, subjects, num_tokens=1):
    try:
        await meters.reserve(subjects, num_tokens)
    except LimitReached:
        return True
    return False


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(max_in_flight=3, max_output_tokens=5)])
def test_who_has_nothing_to_count_has_no_meter(run, limits):
    def used_tokens(subject):
        raise AssertionError("nobody is to be asked")

    subjects = (of_key("k", limits), of_person("ana", limits), of_model("ana", ("fast",), limits))
    reservation = run(make_meters(used_tokens).reserve(subjects, 10**9))
    assert reservation is NOTHING
    assert reservation.rate_headers == []
    with reservation:
        reservation.settle(5)


def test_a_subject_has_one_meter_even_when_its_first_requests_come_together(run):
    asked = []

    def used_tokens(subject):
        asked.append(subject.id)
        return 90, 0

    async def scenario():
        meters, key = make_meters(used_tokens), of_key("k", Limits(daily_tokens=100))
        refused = await asyncio.gather(*(is_refused(meters, [key], 4) for _ in range(5)))
        assert sorted(refused) == [False, False, True, True, True]
        num_asked = len(asked)
        assert await is_refused(meters, [key], 3)
        assert len(asked) == num_asked, "the ledger is read once"

    run(scenario())
    assert set(asked) == {"key:k"}


def test_of_whom_the_ledger_is_asked(run):
    asked = []

    def used_tokens(subject):
        asked.append((subject.key_id, subject.person_id, subject.models))
        return 0, 0

    limits = Limits(monthly_tokens=5)
    subjects = (
        of_key("k", limits),
        of_person("ana", limits),
        of_model("ana", ("fast", "quick"), limits),
    )
    run(make_meters(used_tokens).reserve(subjects, 1))
    assert asked == [
        ("k", None, None),
        (None, "ana", None),
        (None, "ana", ("fast", "quick")),
    ]


def test_a_model_s_limits_are_each_person_s_own(run):
    async def scenario():
        meters, limits = make_meters(), Limits(rpm=1)
        for person in ("ana", "ben"):
            for model in ("fast", "deep"):
                subject = of_model(person, (model,), limits)
                assert not await is_refused(meters, [subject])
                assert await is_refused(meters, [subject])

    run(scenario())


def test_changed_limits_hold_at_once_and_what_was_used_stays_used(run):
    async def scenario():
        meters = make_meters()
        two, three, none = (
            of_key("k", Limits(rpm=2)),
            of_key("k", Limits(rpm=3)),
            of_key("k", NO_LIMITS),
        )
        assert not await is_refused(meters, [two])
        assert not await is_refused(meters, [two])
        assert await is_refused(meters, [two])
        assert not await is_refused(meters, [none])
        assert not await is_refused(meters, [three])
        assert await is_refused(meters, [three])
        assert await is_refused(meters, [two])

    run(scenario())


def test_the_end_of_a_with_gives_back_what_nothing_has_settled(run):
    async def scenario():
        meters, key = make_meters(), of_key("k", Limits(rpm=1, daily_tokens=10))
        with pytest.raises(InterruptedError), await meters.reserve([key], 10):
            raise InterruptedError
        with await meters.reserve([key], 10) as reservation:
            reservation.settle(10)
        assert await is_refused(meters, [key])

    run(scenario())
