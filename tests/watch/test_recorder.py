"""What a gateway does can be read back, whatever the database and the clock do meanwhile."""

import asyncio
import logging
from math import isclose

import pytest

from carpool.store.database import Database
from carpool.watch.accumulator import MOST_REMEMBERED
from carpool.watch.point import MOST_CALLERS, OTHERS
from carpool.watch.series_reader import NAMES, SeriesError, SeriesReader, resolution_for

START = 1_800_000_000.0


@pytest.fixture
def reader(database):
    return SeriesReader(database)


def read(reader, names, since=START, until=START + 60, resolution=10, model="m"):
    return reader.read_series(names, since, until, resolution, model).columns


def test_requests_come_back_as_percentiles_sums_and_callers(recording, reader, make_row):
    recording.scene.gauges["m"] = {"waiting": 3.0, "seats": 8.0}
    for number in range(10):
        row = make_row(request_id=str(number), ttft_ms=100.0 * (number + 1))
        recording.scene.sums.ended("m", row)
    recording.scene.sums.ended("m", make_row(key_id="bobkey", person_id="bob", outcome="queue_full",
                                             prompt_tokens=0, output_tokens=0, ttft_ms=None,
                                             tpot_ms=None))  # fmt: skip
    recording.tick(2)
    found = read(
        reader,
        ["ttft.p50", "ttft.count", "waiting.max", "requests", "outcome.queue_full",
         "tokens_per_second", "prefix_hit_rate", "people_active.mean"],
    )  # fmt: skip
    assert found["ttft.count"][:3] == [10, 0, None]
    assert isclose(found["ttft.p50"][0], 0.5, rel_tol=0.02)
    assert found["ttft.p50"][1] is None
    assert found["waiting.max"][:3] == [3, 3, None]
    assert found["requests"][:3] == [10, 0, None]
    assert found["outcome.queue_full"][0] == 1
    assert found["tokens_per_second"][0] == 100
    assert isclose(found["prefix_hit_rate"][0], 0.2)
    assert found["people_active.mean"][:2] == [1, 1]
    (ana,) = reader.read_callers(START, START + 60, 10)
    assert (ana.key_id, ana.person_id, ana.total("prompt_tokens")) == ("anakey", "ana", 10_000)
    assert ana.columns["requests"][:3] == [10, 0, None]


def test_all_resolutions_tell_the_same(recording, reader, make_row):
    for _ in range(12):
        recording.scene.sums.ended("m", make_row())
        recording.tick()
    recording.end()
    for resolution in (10, 60, 3600):
        table = reader.read_series(["requests", "ttft.p99"], START, START + 3600, resolution, "m")
        assert sum(value or 0 for value in table.columns["requests"]) == 12
        known = [value for value in table.columns["ttft.p99"] if value is not None]
        assert known
        assert all(isclose(value, 0.4, rel_tol=0.02) for value in known)


def test_every_name_can_be_read_and_none_is_nan(recording, reader, make_row):
    recording.scene.sums.ended("m", make_row())
    recording.tick()
    for model in ("m", None, "", "other"):
        for column in read(reader, NAMES, model=model).values():
            assert all(value is None or value == value for value in column)


def test_an_empty_time_is_all_gaps(reader):
    assert read(reader, ["ttft.p99", "requests"]) == {
        "ttft.p99": [None] * 6,
        "requests": [None] * 6,
    }


def test_what_the_database_missed_is_written_when_it_is_back(
    recording, reader, make_row, database, caplog
):
    path = database._file.path
    recording.tick()
    away = path.with_suffix(".away")
    path.rename(away)
    with caplog.at_level(logging.WARNING):
        for _ in range(70):  # further than a chunk of ten minutes
            recording.scene.sums.ended("m", make_row())
            recording.tick()
        away.rename(path)
        recording.tick()
    table = reader.read_series(["requests"], START, START + 720, 10, "m")
    assert table.columns["requests"] == [0, *[1] * 70, 0]
    assert len(caplog.records) == 2


def test_a_clock_set_back_writes_over_nothing(recording, reader, make_row):
    recording.scene.sums.ended("m", make_row())
    recording.tick(2)
    recording.clocks.jump(-3600)
    recording.scene.sums.ended("m", make_row())
    recording.tick(2)
    recording.clocks.jump(+3600)
    recording.scene.sums.ended("m", make_row())
    recording.tick(2)
    table = reader.read_series(["requests"], START - 3600, START + 60, 10, "m")
    assert sum(value or 0 for value in table.columns["requests"]) == 3


def test_a_clock_far_ahead_forgets_nothing(recording, reader, make_row):
    recording.scene.sums.ended("m", make_row())
    recording.tick()
    recording.clocks.jump(20 * 365 * 86_400)
    recording.clocks.pass_(4000)
    recording.tick(2)
    recording.clocks.jump(-20 * 365 * 86_400)
    assert read(reader, ["requests"])["requests"][0] == 1


def test_what_is_old_is_forgotten(recording, reader, make_row, database):
    recording.scene.sums.ended("m", make_row())
    recording.tick()
    recording.clocks.pass_(31 * 86_400)
    recording.tick()
    assert read(reader, ["requests"])["requests"][0] is None
    hours = reader.read_series(["requests"], START, START + 3600, 3600, "m")
    assert hours.columns["requests"] == [1]


def test_many_keys_are_told_apart_up_to_a_limit(recording, reader, make_row):
    for number in range(MOST_REMEMBERED + 100):
        row = make_row(key_id=f"key{number}", person_id=f"person{number}")
        recording.scene.sums.ended("m", row)
    recording.tick()
    callers = reader.read_callers(START, START + 10, 10)
    assert len(callers) == MOST_CALLERS + 1
    assert callers[0].key_id == OTHERS
    assert sum(each.total("requests") for each in callers) == MOST_REMEMBERED + 100


def test_odd_figures_of_engines_do_no_harm(recording, reader, make_row):
    recording.scene.gauges["m"] = {"kv_usage": float("nan"), "waiting": 1.0}
    row = make_row(prompt_tokens=2**80, output_tokens=-5, cached_tokens=2**90, ttft_ms=float("inf"))
    recording.scene.sums.ended("m", row)
    recording.tick()
    found = read(reader, ["prefix_hit_rate", "kv_usage.mean", "output_tokens.sum"])
    assert found["prefix_hit_rate"][0] == 1
    assert found["kv_usage.mean"][0] is None
    assert found["output_tokens.sum"][0] == 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"names": ["ttft.p42"]}, "no figure"),
        ({"resolution": 7}, "resolution is 7"),
        ({"since": float("nan")}, "unix seconds"),
        ({"until": START + 30 * 86_400}, "points are more"),
    ],
)
def test_what_cannot_be_read_is_said(reader, changes, word):
    with pytest.raises(SeriesError, match=word):
        read(reader, **{"names": ["requests"]} | changes)


def test_the_finest_resolution_that_fits():
    assert resolution_for(0, 3600) == 10
    assert resolution_for(0, 86_400) == 60
    assert resolution_for(0, 30 * 86_400) == 3600


def test_what_came_last_is_written_at_the_end(recording, reader, make_row):
    async def scenario():
        task = asyncio.create_task(recording.recorder.run())
        await asyncio.sleep(0)
        recording.scene.sums.ended("m", make_row())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    now = recording.clocks.wall
    assert sum(filter(None, read(reader, ["requests"], now - 60, now + 60)["requests"])) == 1


def test_another_process_adds_to_what_is_there(recording, reader, make_row, database: Database):
    from carpool.watch.recorder import Recorder

    recording.scene.sums.ended("m", make_row())
    recording.tick()
    recording.recorder = Recorder(
        recording.scene,
        database,
        wall=lambda: recording.clocks.wall - 10,
        monotonic=lambda: recording.clocks.monotonic,
    )
    recording.scene.sums.ended("m", make_row())
    recording.tick()
    assert read(reader, ["requests"])["requests"][0] == 2
