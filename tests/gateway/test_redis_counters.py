"""Limits in Redis: the same answers as in memory, whatever people do, by all workers together."""

import asyncio
import json
import time
from contextlib import contextmanager
from datetime import UTC, datetime

from direct_line import DirectLine, needs_redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from carpool.gateway.limit_counters import LimitReached
from carpool.gateway.meters import Meters
from carpool.gateway.redis_counters import RedisCounters
from carpool.gateway.redis_link import CountersAway
from carpool.gateway.subject import of_key, of_person
from carpool.store.limits import Limits

pytestmark = needs_redis

START = float(int(time.time()) + 86400)


class Clock:
    def __init__(self):
        self.now = START

    def utc(self):
        return datetime.fromtimestamp(self.now, UTC)


@contextmanager
def counters_of(*workers, used=lambda subject: (0, 0), num_workers=lambda: 1):
    clock = Clock()
    lines = [DirectLine(lambda: clock.now) for _ in workers]
    for line in lines:
        line.prefix = lines[0].prefix
    try:
        yield (
            clock,
            lines,
            [
                RedisCounters(line, worker, used, num_workers)
                for line, worker in zip(lines, workers, strict=True)
            ],
        )
    finally:
        for line in lines:
            line.close()


def take(counters, subjects, num_tokens=1):
    """The reservation, or the refusal."""
    try:
        return asyncio.run(counters.reserve(subjects, num_tokens))
    except LimitReached as refusal:
        return refusal


def test_two_workers_together_let_through_what_a_minute_allows():
    subject = of_key("k", Limits(rpm=10))
    with counters_of("a", "b") as (_, _, workers):
        taken = [take(workers[number % 2], [subject]) for number in range(30)]
    assert sum(not isinstance(each, LimitReached) for each in taken) == 10


def test_what_is_given_back_once_is_given_back_once_also_when_the_answer_was_lost():
    subject = of_key("k", Limits(daily_tokens=100))
    with counters_of("a") as (_, [line], [counters]):
        reservation = take(counters, [subject], 100)
        line.is_away = True
        reservation.settle(40)
        line.is_away = False
        script = line._scripts[0][1]
        line.ask(script, counters.outgoing())  # carried out, and nobody hears of it
        counters.lost(CountersAway())
        line.wake()
        assert not isinstance(take(counters, [subject], 60), LimitReached)
        assert isinstance(take(counters, [subject], 1), LimitReached)


def test_a_budget_begins_with_what_was_used_before_and_is_asked_for_once():
    asked = []

    def used(subject):
        asked.append(subject.id)
        return 70, 170

    subject = of_person("p", Limits(daily_tokens=100, monthly_tokens=1000))
    with counters_of("a", "b", used=used) as (_, _, [one, other]):
        assert isinstance(take(one, [subject], 31), LimitReached)
        assert not isinstance(take(other, [subject], 30), LimitReached)
        refusal = take(one, [subject], 1)
    assert refusal.limit == "daily_tokens"
    assert "100 are used" in refusal.message
    assert asked == [subject.id]


def test_a_new_day_begins_a_budget_anew():
    subject = of_key("k", Limits(daily_tokens=10))
    with counters_of("a") as (clock, _, [counters]):
        yesterday = take(counters, [subject], 10)
        assert isinstance(take(counters, [subject], 1), LimitReached)
        clock.now += 86400
        assert not isinstance(take(counters, [subject], 10), LimitReached)
        yesterday.settle(0)
        assert isinstance(take(counters, [subject], 1), LimitReached)


def test_while_redis_is_away_everybody_has_their_part_of_the_limit():
    subject = of_key("k", Limits(rpm=10))
    with counters_of("a", num_workers=lambda: 2) as (_, [line], [counters]):
        line.is_away = True
        taken = [take(counters, [subject]) for _ in range(8)]
        assert sum(not isinstance(each, LimitReached) for each in taken) == 5
        line.is_away = False
        assert not isinstance(take(counters, [subject]), LimitReached)


def test_whoever_goes_while_their_tokens_are_being_reserved_gets_them_back():
    subject = of_key("k", Limits(daily_tokens=10))

    async def scenario(line, counters):
        line._is_busy = True  # the letter is not sent yet
        asking = asyncio.create_task(counters.reserve([subject], 10))
        await asyncio.sleep(0)
        letter = counters.outgoing()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        counters.incoming(line.ask(line._scripts[0][1], letter))
        line._is_busy = False
        line.wake()
        await counters.reserve([subject], 10)

    with counters_of("a") as (_, [line], [counters]):
        asyncio.run(scenario(line, counters))


def test_the_months_begin_when_the_calendar_says_so():
    with counters_of("a") as (clock, [line], [counters]):
        counters.outgoing()
        letter = json.dumps({"worker": "a", "batch": 0, "returns": [], "asks": []})
        for days in range(0, 366 * 9, 13):
            clock.now = START + 86400.0 * days
            reply = json.loads(line.ask(line._scripts[0][1], letter))
            begins = clock.utc().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            assert reply["month"] == begins.timestamp()


NUMBERS = st.none() | st.integers(1, 60)
ANY_LIMITS = st.builds(
    Limits, rpm=NUMBERS, tpm=NUMBERS, daily_tokens=NUMBERS, monthly_tokens=NUMBERS
)
NAMES = ["key:1", "key:2", "person:a"]


class AsInMemory(RuleBasedStateMachine):
    """Two workers, by Redis, say word for word what one does by its memory."""

    held = Bundle("held")

    @initialize(limits=st.lists(ANY_LIMITS, min_size=3, max_size=3))
    def begin(self, limits):
        self.context = counters_of("a", "b")
        self.clock, _, self.workers = self.context.__enter__()
        self.limits = dict(zip(NAMES, limits, strict=True))
        self.memory = Meters(monotonic=lambda: self.clock.now, utc=self.clock.utc)

    def subjects(self, key):
        key_id = f"key:{key}"
        return [of_key(str(key), self.limits[key_id]), of_person("a", self.limits["person:a"])]

    @rule(
        target=held,
        key=st.sampled_from([1, 2]),
        worker=st.sampled_from([0, 1]),
        num_tokens=st.integers(1, 40),
    )
    def ask(self, key, worker, num_tokens):
        subjects = self.subjects(key)
        expected = take(self.memory, subjects, num_tokens)
        got = take(self.workers[worker], subjects, num_tokens)
        assert isinstance(got, LimitReached) == isinstance(expected, LimitReached)
        if isinstance(got, LimitReached):
            assert (got.limit, got.outcome) == (expected.limit, expected.outcome)
            assert got.message == expected.message
            return None
        assert got.rate_headers == expected.rate_headers
        return num_tokens, expected, got

    @rule(request=consumes(held), share=st.floats(0, 1.5), is_served=st.booleans())
    def end(self, request, share, is_served):
        if request is None:
            return
        num_tokens, *reservations = request
        for reservation in reservations:
            for _ in range(2):
                reservation.settle(round(share * num_tokens)) if is_served else reservation.cancel()

    @rule(seconds=st.integers(1, 400).map(lambda number: number / 8))
    def wait(self, seconds):
        self.clock.now += seconds

    @rule(hours=st.integers(1, 800))
    def wait_long(self, hours):
        self.clock.now += 3600.0 * hours

    @rule(name=st.sampled_from(NAMES), limits=ANY_LIMITS)
    def change(self, name, limits):
        self.limits[name] = limits

    def teardown(self):
        if hasattr(self, "context"):
            self.context.__exit__(None, None, None)


AsInMemory.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_as_in_memory = AsInMemory.TestCase
