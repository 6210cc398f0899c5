"""From requests to signals: recorded, read back and judged."""

import pytest

from carpool.store.errors import DatabaseAway
from carpool.store.key_store import KeyStore
from carpool.store.series_store import SeriesStore
from carpool.watch.accumulator import Accumulators
from carpool.watch.open_chunks import OpenChunks
from carpool.watch.signal import SignalName, Trend
from carpool.watch.watching import Watching

START = 1_800_000_000.0


class Past:
    """Minutes that were recorded, written at once; `now` is their end."""

    def __init__(self, database, make_row):
        self.store, self.make_row = SeriesStore(database), make_row
        self.chunks, self.now = OpenChunks(), START

    def minutes(self, number, *rows, waiting=0.0):
        """With these requests in each, as changes of a row."""
        gauges = {"waiting": waiting, "in_flight": 8.0 if waiting else 2.0, "seats": 8.0}
        gauges |= {"kv_tokens": 32_000.0, "replicas": 1.0, "replicas_ready": 1.0}
        for _ in range(number):
            sums = Accumulators()
            for changes in rows:
                sums.ended("m", self.make_row(**changes))
            points = sums.take()
            for name, value in gauges.items():
                points["m"].sample(name, value)
            self.chunks.add(self.now + 5, points)
            self.now += 60
        self.store.put(self.chunks.due(0.0, all_of_them=True))


@pytest.fixture
def past(database, make_row):
    return Past(database, make_row)


@pytest.fixture
def watching(database, past):
    return Watching(database, clock=lambda: past.now)


def test_nothing_recorded_is_no_news(watching):
    outlook = watching.look()
    assert (outlook.readings, outlook.signals, outlook.has_data) == ((), (), False)


def test_a_queue_that_builds_up_is_seen_and_explained(past, watching):
    past.minutes(130, {"ttft_ms": 300.0}, {"ttft_ms": 350.0})
    assert watching.look().signals == ()
    assert [each.trend for each in watching.look().readings] == [Trend.CALM]
    past.minutes(65, {"ttft_ms": 9000.0}, {"ttft_ms": 9500.0}, waiting=5.0)
    outlook = watching.look()
    assert [each.trend for each in outlook.readings] == [Trend.CLIMB]
    names = {each.name for each in outlook.signals}
    assert {SignalName.SUSTAINED_QUEUE, SignalName.TTFT_CLIMB, SignalName.CAPACITY} <= names
    (queue,) = (each for each in outlook.signals if each.name is SignalName.SUSTAINED_QUEUE)
    assert queue.since == past.now - 65 * 60
    assert queue.remedies[0].before == 8
    assert watching.signals(1.0) == outlook.signals


def test_a_person_is_called_by_name(past, watching, database):
    keys = KeyStore(database)
    ana = keys.add_key(keys.add_person("Ana").person_id, "laptop").key
    rows = [{"key_id": ana.key_id, "person_id": ana.person_id, "total_ms": 400_000.0}]
    rows += [{"key_id": f"k{n}", "person_id": f"p{n}", "total_ms": 5000.0} for n in range(4)]
    past.minutes(60, *rows, waiting=2.0)
    (noisy,) = (each for each in watching.look().signals if each.name is SignalName.NOISY_KEY)
    assert (noisy.subject, noisy.person_id) == (ana.key_id, ana.person_id)
    assert "A key of Ana" in noisy.sentence


def test_what_was_looked_at_a_moment_ago_is_told_again(past, watching):
    past.minutes(2, {})
    first = watching.look()
    assert watching.look() is first
    past.now += 30
    assert watching.look() is not first


def test_a_database_that_is_away_is_said(database, watching):
    database._file.path.unlink()
    with pytest.raises(DatabaseAway):
        watching.look()


def test_the_engines_word_stands_in_for_a_plan(past, watching):
    assert watching.plan_numbers("m") is None
    past.minutes(1, {})
    plan = watching.plan_numbers("m")
    assert plan is not None
    assert (plan.sequences(2000), plan.sequences(8000)) == (8, 4)
    assert plan.with_kv_8bit(8000) is None


def test_silence_does_not_end_the_watch(past, watching):
    past.minutes(2, {})
    past.now += 2 * 86_400
    assert not watching.look().has_data
    past.minutes(2, {})
    past.now += 60
    assert watching.look().has_data
