"""What a key may use: all limits at once, reserved when a request comes, settled when it ends."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.gateway.limits import KeyMeter
from carpool.gateway.meters import Meters
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.store.limits import Limits

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)
START = 1000.0


def meter_of(**limits):
    return KeyMeter(Limits(**limits), NOON)


def refused(meter, num_tokens=1, now=START, utc=NOON):
    with pytest.raises(Refusal) as caught:
        meter.reserve(num_tokens, now, utc)
    return caught.value


def state(meter, now=START):
    """All that a meter counts, as far as one can see."""
    return dict(meter.headers(now)), [budget.used for budget in meter._budgets]


@pytest.mark.parametrize(
    ("limits", "outcome", "retry_after_s"),
    [
        ({"rpm": 1}, Outcome.REQUESTS_PER_MINUTE, 60),
        ({"tpm": 100}, Outcome.TOKENS_PER_MINUTE, 36),
        ({"daily_tokens": 100}, Outcome.TOKEN_BUDGET, 12 * 3600),
        ({"monthly_tokens": 100}, Outcome.TOKEN_BUDGET, 12 * 3600),
    ],
)
def test_the_refusal_names_the_limit_and_when_to_come_back(limits, outcome, retry_after_s):
    meter = meter_of(**limits)
    meter.reserve(80, START, NOON)
    refusal = refused(meter, 80)
    assert (refusal.outcome, refusal.status) == (outcome, 429)
    assert refusal.retry_after_s == retry_after_s
    assert refusal.limit == next(iter(limits))
    assert str(next(iter(limits.values()))) in refusal.message


def test_who_comes_back_when_told_is_served():
    meter = meter_of(tpm=100)
    meter.reserve(90, START, NOON)
    wait = refused(meter, 50).retry_after_s
    meter.reserve(50, START + wait, NOON)


def test_a_request_that_can_never_conform_is_told_so():
    refusal = refused(meter_of(tpm=100), 101)
    assert "per minute (tpm)" in refusal.message
    assert "shorter prompt" in refusal.message


@pytest.mark.parametrize("short", ["tpm", "daily_tokens", "monthly_tokens"])
def test_what_is_refused_costs_nothing(short):
    limits = {"rpm": 10, "tpm": 1000, "daily_tokens": 1000, "monthly_tokens": 1000, short: 100}
    meter = meter_of(**limits)
    meter.reserve(60, START, NOON)
    before = state(meter)
    for _ in range(20):
        refused(meter, 60)
    assert state(meter) == before
    meter.reserve(40, START, NOON)


def test_a_burst_cannot_pass_on_one_check():
    meter = meter_of(tpm=1000)
    taken = [meter.reserve(300, START, NOON) for _ in range(3)]
    refused(meter, 300)
    for reservation in taken:
        reservation.settle(100)
    meter.reserve(700, START, NOON)


def test_tokens_used_beyond_the_reservation_count():
    meter = meter_of(tpm=100, daily_tokens=1000)
    meter.reserve(10, START, NOON).settle(250)
    assert refused(meter).retry_after_s == 91
    assert dict(meter.headers(START))[b"x-ratelimit-remaining-tokens"] == b"0"
    assert refused(meter_of(daily_tokens=5), 6).outcome is Outcome.TOKEN_BUDGET


def test_a_request_that_was_not_served_costs_nothing():
    meter = meter_of(rpm=1, tpm=100, daily_tokens=100, monthly_tokens=100)
    before = state(meter)
    for _ in range(50):
        meter.reserve(100, START, NOON).cancel()
    assert state(meter) == before


def test_a_served_request_keeps_its_place_in_the_minute():
    meter = meter_of(rpm=1)
    meter.reserve(5, START, NOON).settle(0)
    assert refused(meter).outcome is Outcome.REQUESTS_PER_MINUTE


def test_settling_or_cancelling_again_is_nothing():
    meter = meter_of(rpm=5, tpm=100, daily_tokens=100)
    reservation = meter.reserve(50, START, NOON)
    reservation.settle(30)
    after = state(meter)
    reservation.settle(0)
    reservation.cancel()
    assert state(meter) == after


def test_a_day_begins_at_midnight_and_a_month_on_its_first():
    limits = Limits(daily_tokens=100, monthly_tokens=150)
    meter = KeyMeter(limits, NOON - timedelta(days=1))
    meter.reserve(100, START, NOON - timedelta(days=1)).settle(100)
    refused(meter, utc=NOON - timedelta(hours=13))
    meter.reserve(50, START, NOON).settle(50)
    refusal = refused(meter, 1)
    assert (refusal.limit, refusal.retry_after_s) == ("monthly_tokens", 12 * 3600)
    meter.reserve(100, START, NOON + timedelta(hours=12)).settle(100)


def test_tokens_count_for_the_day_on_which_they_were_reserved():
    meter = meter_of(daily_tokens=100)
    late = meter.reserve(90, START, NOON)
    tomorrow = NOON + timedelta(days=1)
    meter.reserve(60, START, tomorrow)
    late.settle(10)
    refused(meter, 41, utc=tomorrow)
    meter.reserve(40, START, tomorrow)


def test_a_month_ends_in_december_too():
    december = datetime(2027, 12, 31, 23, 59, tzinfo=UTC)
    meter = KeyMeter(Limits(monthly_tokens=10), december, monthly_used=10)
    assert refused(meter, utc=december).retry_after_s == 60
    meter.reserve(10, START, december + timedelta(minutes=1))


def test_what_was_used_before_the_process_began_counts():
    meter = KeyMeter(Limits(daily_tokens=100), NOON, daily_used=95)
    refused(meter, 6)
    meter.reserve(5, START, NOON)


@pytest.mark.parametrize("name", ["rpm", "tpm", "daily_tokens", "monthly_tokens"])
def test_changed_limits_forget_nothing(name):
    meter = meter_of(**{name: 4})
    for _ in range(4):
        meter.reserve(1, START, NOON)
    meter.change(Limits(**{name: 5}), START)
    meter.reserve(1, START, NOON)
    refused(meter)
    meter.change(Limits(**{name: 2}), START)
    refused(meter)
    meter.change(Limits(), START)
    for _ in range(100):
        meter.reserve(1, START, NOON)


def test_a_budget_that_comes_later_knows_what_was_used_before():
    meter = meter_of(rpm=100)
    meter.reserve(80, START, NOON).settle(80)
    meter.change(Limits(daily_tokens=100), START)
    refused(meter, 21)
    meter.change(Limits(daily_tokens=100), START)
    meter.reserve(100, START, NOON + timedelta(days=1))


def test_a_limit_that_came_later_is_given_nothing_back():
    meter = meter_of(rpm=10)
    early = meter.reserve(500, START, NOON)
    meter.change(Limits(tpm=100), START)
    meter.reserve(100, START, NOON)
    early.settle(0)
    refused(meter)


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 90), st.sampled_from(["settle", "cancel"])),
        max_size=40,
    ),
    num_open=st.integers(0, 5),
)
def test_a_budget_is_what_was_used_and_what_is_reserved(steps, num_open):
    """Never over its limit by reservations, whatever ends when."""
    meter, used, waiting = meter_of(daily_tokens=200), 0, []

    def end(num_tokens, num_used, how, reservation):
        if how == "cancel":
            reservation.cancel()
            return 0
        reservation.settle(min(num_used, num_tokens))
        return min(num_used, num_tokens)

    for num_tokens, num_used, how in steps:
        try:
            reservation = meter.reserve(num_tokens, START, NOON)
        except Refusal:
            reserved = sum(each[0] for each in waiting)
            assert used + reserved + num_tokens > 200
            continue
        waiting.append((num_tokens, num_used, how, reservation))
        assert used + sum(each[0] for each in waiting) <= 200
        while len(waiting) > num_open:
            used += end(*waiting.pop(0))
    for each in waiting:
        used += end(*each)
    assert meter._budgets[0].used == used


# ------------------------------------------------------------------------- a meter per key


def test_a_key_without_limits_has_no_meter(run, make_key):
    assert run(Meters().of(make_key(), START)) is None
    assert run(Meters().of(make_key(max_in_flight=3), START)) is None


def test_a_key_has_one_meter_even_when_its_first_requests_come_together(run, make_key):
    asked = []

    def used_tokens(key):
        asked.append(key.key_id)
        return 90, 0

    async def scenario():
        meters, key = Meters(used_tokens), make_key(daily_tokens=100)
        first, second = await asyncio.gather(meters.of(key, START), meters.of(key, START))
        assert first is second is await meters.of(key, START)
        refused(first, 11, utc=datetime.now(UTC))

    run(scenario())
    assert set(asked) == {"anakey"}


def test_a_meter_follows_its_keys_limits(run, make_key):
    async def scenario():
        meters = Meters()
        meter = await meters.of(make_key(rpm=1), START)
        meter.reserve(1, START, NOON)
        refused(meter)
        assert await meters.of(make_key(rpm=2), START) is meter
        meter.reserve(1, START, NOON)
        assert await meters.of(make_key(), START) is meter
        assert meter.headers(START) == []

    run(scenario())
