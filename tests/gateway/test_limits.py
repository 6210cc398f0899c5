"""What one may use: all limits at once, reserved when a request comes, settled when it ends."""

from datetime import UTC, datetime, timedelta

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

from carpool.gateway.limit_counters import LimitReached
from carpool.gateway.limits import Meter, rate_headers, reserve
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.store.limits import Limits

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)
START = 1000.0


def meter_of(**limits):
    return Meter(Limits(**limits), NOON)


def refused(meter, num_tokens=1, now=START, utc=NOON):
    with pytest.raises(Refusal) as caught:
        reserve([meter], num_tokens, now, utc)
    return caught.value


def state(meter, now=START):
    """All that a meter counts, as far as one can see."""
    return dict(rate_headers([meter], now)), [budget.used for budget in meter._budgets]


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
    reserve([meter], 80, START, NOON)
    refusal = refused(meter, 80)
    assert (refusal.outcome, refusal.status) == (outcome, 429)
    assert refusal.retry_after_s == retry_after_s
    assert refusal.limit == next(iter(limits))
    assert str(next(iter(limits.values()))) in refusal.message


def test_who_comes_back_when_told_is_served():
    meter = meter_of(tpm=100)
    reserve([meter], 90, START, NOON)
    wait = refused(meter, 50).retry_after_s
    reserve([meter], 50, START + wait, NOON)


def test_a_request_that_can_never_conform_is_told_so():
    refusal = refused(meter_of(tpm=100), 101)
    assert "per minute (tpm)" in refusal.message
    assert "shorter prompt" in refusal.message


@pytest.mark.parametrize("short", ["tpm", "daily_tokens", "monthly_tokens"])
def test_what_is_refused_costs_nothing(short):
    limits = {"rpm": 10, "tpm": 1000, "daily_tokens": 1000, "monthly_tokens": 1000, short: 100}
    meter = meter_of(**limits)
    reserve([meter], 60, START, NOON)
    before = state(meter)
    for _ in range(20):
        refused(meter, 60)
    assert state(meter) == before
    reserve([meter], 40, START, NOON)


def test_a_burst_cannot_pass_on_one_check():
    meter = meter_of(tpm=1000)
    taken = [reserve([meter], 300, START, NOON) for _ in range(3)]
    refused(meter, 300)
    for reservation in taken:
        reservation.settle(100)
    reserve([meter], 700, START, NOON)


def test_tokens_used_beyond_the_reservation_count():
    meter = meter_of(tpm=100, daily_tokens=1000)
    reserve([meter], 10, START, NOON).settle(250)
    assert refused(meter).retry_after_s == 91
    assert dict(rate_headers([meter], START))[b"x-ratelimit-remaining-tokens"] == b"0"
    assert refused(meter_of(daily_tokens=5), 6).outcome is Outcome.TOKEN_BUDGET


def test_a_request_that_was_not_served_costs_nothing():
    meter = meter_of(rpm=1, tpm=100, daily_tokens=100, monthly_tokens=100)
    before = state(meter)
    for _ in range(50):
        reserve([meter], 100, START, NOON).cancel()
    assert state(meter) == before


def test_a_served_request_keeps_its_place_in_the_minute():
    meter = meter_of(rpm=1)
    reserve([meter], 5, START, NOON).settle(0)
    assert refused(meter).outcome is Outcome.REQUESTS_PER_MINUTE


def test_settling_or_cancelling_again_is_nothing():
    meter = meter_of(rpm=5, tpm=100, daily_tokens=100)
    reservation = reserve([meter], 50, START, NOON)
    reservation.settle(30)
    after = state(meter)
    reservation.settle(0)
    reservation.cancel()
    assert state(meter) == after


def test_a_day_begins_at_midnight_and_a_month_on_its_first():
    limits = Limits(daily_tokens=100, monthly_tokens=150)
    meter = Meter(limits, NOON - timedelta(days=1))
    reserve([meter], 100, START, NOON - timedelta(days=1)).settle(100)
    refused(meter, utc=NOON - timedelta(hours=13))
    reserve([meter], 50, START, NOON).settle(50)
    refusal = refused(meter, 1)
    assert (refusal.limit, refusal.retry_after_s) == ("monthly_tokens", 12 * 3600)
    reserve([meter], 100, START, NOON + timedelta(hours=12)).settle(100)


def test_tokens_count_for_the_day_on_which_they_were_reserved():
    meter = meter_of(daily_tokens=100)
    late = reserve([meter], 90, START, NOON)
    tomorrow = NOON + timedelta(days=1)
    reserve([meter], 60, START, tomorrow)
    late.settle(10)
    refused(meter, 41, utc=tomorrow)
    reserve([meter], 40, START, tomorrow)


def test_a_month_ends_in_december_too():
    december = datetime(2027, 12, 31, 23, 59, tzinfo=UTC)
    meter = Meter(Limits(monthly_tokens=10), december, monthly_used=10)
    assert refused(meter, utc=december).retry_after_s == 60
    reserve([meter], 10, START, december + timedelta(minutes=1))


def test_what_was_used_before_the_process_began_counts():
    meter = Meter(Limits(daily_tokens=100), NOON, daily_used=95)
    refused(meter, 6)
    reserve([meter], 5, START, NOON)


@pytest.mark.parametrize("name", ["rpm", "tpm", "daily_tokens", "monthly_tokens"])
def test_changed_limits_forget_nothing(name):
    meter = meter_of(**{name: 4})
    for _ in range(4):
        reserve([meter], 1, START, NOON)
    meter.change(Limits(**{name: 5}), START)
    reserve([meter], 1, START, NOON)
    refused(meter)
    meter.change(Limits(**{name: 2}), START)
    refused(meter)
    meter.change(Limits(), START)
    for _ in range(100):
        reserve([meter], 1, START, NOON)


def test_a_budget_that_comes_later_knows_what_was_used_before():
    meter = meter_of(rpm=100)
    reserve([meter], 80, START, NOON).settle(80)
    meter.change(Limits(daily_tokens=100), START)
    refused(meter, 21)
    meter.change(Limits(daily_tokens=100), START)
    reserve([meter], 100, START, NOON + timedelta(days=1))


def test_a_limit_that_came_later_is_given_nothing_back():
    meter = meter_of(rpm=10)
    early = reserve([meter], 500, START, NOON)
    meter.change(Limits(tpm=100), START)
    reserve([meter], 100, START, NOON)
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
            reservation = reserve([meter], num_tokens, START, NOON)
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


# --------------------------------------------------------------------- several at once


def meters_of(*limits):
    """A key's, its person's, and the person's with a model."""
    names = ("this key", "you, with all your keys together,", "you, with the model fast,")
    return [Meter(each, NOON, who=who) for each, who in zip(limits, names, strict=True)]


def refused_by(meters, num_tokens=1, now=START, utc=NOON):
    with pytest.raises(LimitReached) as caught:
        reserve(meters, num_tokens, now, utc)
    return caught.value


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("name", ["rpm", "tpm", "daily_tokens", "monthly_tokens"])
def test_the_refusal_says_whose_limit_it_is_and_nobody_pays(level, name):
    limits = [Limits(rpm=1000, tpm=10_000, daily_tokens=10_000) for _ in range(3)]
    limits[level] = Limits(**{name: 1})
    meters = meters_of(*limits)
    reserve(meters, 1, START, NOON)
    before = [state(meter) for meter in meters]
    refusal = refused_by(meters)
    assert (refusal.limit, refusal.status) == (name, 429)
    assert refusal.message.startswith(f"{meters[level].who} may use 1 ")
    assert [state(meter) for meter in meters] == before


def test_the_limit_that_is_in_the_way_for_longest_is_told():
    meters = meters_of(Limits(rpm=60), Limits(rpm=2), Limits(tpm=100))
    reserve(meters, 100, START, NOON)
    reserve(meters[:1], 1, START, NOON)
    refusal = refused_by(meters, 50)
    assert (refusal.limit, refusal.retry_after_s) == ("tpm", 30)
    reserve(meters, 50, START + refusal.retry_after_s, NOON)


def test_what_can_never_go_is_told_before_what_only_takes_long():
    meters = meters_of(Limits(daily_tokens=100), Limits(tpm=50), Limits())
    reserve(meters[:1], 100, START, NOON)
    assert refused_by(meters, 51).limit == "tpm"


def test_the_headers_show_the_tightest_limit_also_to_who_is_refused():
    meters = meters_of(Limits(rpm=60, tpm=1000), Limits(rpm=2), Limits(tpm=500))
    reserve(meters, 100, START, NOON)
    headers = dict(reserve(meters, 100, START, NOON).rate_headers)
    assert headers[b"x-ratelimit-limit-requests"] == b"2"
    assert headers[b"x-ratelimit-remaining-requests"] == b"0"
    assert headers[b"x-ratelimit-limit-tokens"] == b"500"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"300"
    assert dict(refused_by(meters).rate_headers) == headers


def test_two_keys_of_one_person_share_the_person_s_limit():
    person = Meter(Limits(rpm=3), NOON)
    laptop, phone = meter_of(rpm=2), meter_of(rpm=2)
    for key in (laptop, phone, laptop):
        reserve([key, person], 1, START, NOON)
    refused_by([phone, person])
    reserve([phone], 1, START, NOON)


NUMBERS = st.none() | st.integers(1, 60)
ANY_LIMITS = st.builds(
    Limits, rpm=NUMBERS, tpm=NUMBERS, daily_tokens=NUMBERS, monthly_tokens=NUMBERS
)


class AnyInterleaving(RuleBasedStateMachine):
    """Two keys of each of two people ask two models, requests end when they like, and limits
    change meanwhile. Nobody gets more than a limit allows, and refusals change nothing."""

    held = Bundle("held")

    @initialize(limits=st.lists(ANY_LIMITS, min_size=10, max_size=10))
    def begin(self, limits):
        names = [f"key {person}{key}" for person in "ab" for key in "12"]
        names += [f"person {person}" for person in "ab"]
        names += [f"model {person}{model}" for person in "ab" for model in "xy"]
        self.meters = {
            name: Meter(each, NOON, who=name) for name, each in zip(names, limits, strict=True)
        }
        self.now, self.utc = START, NOON
        self.tokens = dict.fromkeys(names, 0)  # used or reserved, of the day
        self.taken = {name: [] for name in names}  # (when, requests, tokens); back: negative
        self.changed = set()

    @rule(
        target=held,
        person=st.sampled_from("ab"),
        key=st.sampled_from("12"),
        model=st.sampled_from("xy"),
        num_tokens=st.integers(1, 40),
    )
    def ask(self, person, key, model, num_tokens):
        names = [f"key {person}{key}", f"person {person}", f"model {person}{model}"]
        meters = [self.meters[name] for name in names]
        before = {name: state(meter, self.now) for name, meter in self.meters.items()}
        refusal = None
        try:
            reservation = reserve(meters, num_tokens, self.now, self.utc)
        except LimitReached as error:
            refusal = error
        if refusal is not None:
            assert {name: state(meter, self.now) for name, meter in self.meters.items()} == before
            assert refusal.retry_after_s >= 1
            assert any(refusal.message.count(name) for name in names)
            return None
        others = self.meters.keys() - set(names)
        assert all(state(self.meters[name], self.now) == before[name] for name in others)
        for name in names:
            self.tokens[name] += num_tokens
            self.taken[name].append((self.now, 1, num_tokens))
            self.check_budgets(name)
        return names, num_tokens, reservation

    @rule(request=consumes(held), share=st.floats(0, 1), is_served=st.booleans())
    def end(self, request, share, is_served):
        if request is None:
            return
        names, num_tokens, reservation = request
        num_used = round(share * num_tokens) if is_served else 0
        for _ in range(2):
            reservation.settle(num_used) if is_served else reservation.cancel()
        for name in names:
            self.tokens[name] -= num_tokens - num_used
            self.taken[name].append((self.now, 0 if is_served else -1, num_used - num_tokens))

    @rule(seconds=st.floats(0.01, 50))
    def wait(self, seconds):
        self.now += seconds

    @rule(data=st.data(), limits=ANY_LIMITS)
    def change(self, data, limits):
        name = data.draw(st.sampled_from(sorted(self.meters)))
        self.meters[name].change(limits, self.now)
        self.changed.add(name)

    @invariant()
    def nobody_passes_a_limit(self):
        if not hasattr(self, "meters"):
            return
        for name, meter in self.meters.items():
            assert [budget.used for budget in meter._budgets] == [self.tokens[name]] * 2
            if name not in self.changed:
                self.check_budgets(name)
                self.check_rate(self.taken[name], 1, meter.limits.rpm)
                self.check_rate(self.taken[name], 2, meter.limits.tpm)

    def check_budgets(self, name):
        limits = self.meters[name].limits
        for budget in (limits.daily_tokens, limits.monthly_tokens):
            assert budget is None or self.tokens[name] <= budget

    def check_rate(self, taken, column, rate):
        """In any t seconds: at most rate * (1 + t / 60), less what is given back in them."""
        if rate is None:
            return
        for first, entry in enumerate(taken):
            total = 0
            for later in taken[first:]:
                total += later[column]
                assert total <= rate * (1 + (later[0] - entry[0]) / 60) + 1e-6


AnyInterleaving.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_any_interleaving = AnyInterleaving.TestCase
