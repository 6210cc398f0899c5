"""The benchmark of signals: its simulated days are what a gateway would have recorded, and a few
of them come out as they should."""

import random

import numpy as np
import pytest

from benchmarks.queue_simulation import Ask, Machine, simulate
from benchmarks.signal_days import NUM_KEYS, Team, always
from benchmarks.signal_days import Stream as PersonStream
from benchmarks.signals import Job, Rig, summary, table
from benchmarks.simulated_day import recorded
from carpool.store.database import Database
from carpool.store.lane import Lane
from carpool.store.series_store import SeriesStore
from carpool.store.usage_row import UsageRow
from carpool.watch.accumulator import Accumulators
from carpool.watch.open_chunks import OpenChunks
from carpool.watch.series_reader import SeriesReader

MIDNIGHT = 1_800_057_600
FROM, UNTIL = 10 * 3600, 11 * 3600


def rows_of(requests):
    """As the ledger would have them, by the second at which they end."""
    for n, ended in enumerate(requests.ended):
        if FROM <= ended < UNTIL:
            arrived, granted, first = (
                requests.arrived[n],
                requests.granted[n],
                requests.first[n],
            )
            yield (
                ended,
                UsageRow(
                    request_id=str(n),
                    started_at=MIDNIGHT + arrived,
                    person_id=f"key{requests.key[n]}",
                    key_id=f"key{requests.key[n]}",
                    model="m",
                    backend="m",
                    api="chat",
                    lane=Lane.INTERACTIVE,
                    prompt_tokens=requests.prompt[n],
                    cached_tokens=int(0.3 * requests.prompt[n]),
                    output_tokens=requests.output[n],
                    usage_source="reported",
                    queue_ms=1e3 * (granted - arrived),
                    ttft_ms=1e3 * (first - arrived),
                    tpot_ms=1e3 * (ended - first) / max(1, requests.output[n] - 1),
                    total_ms=1e3 * (ended - arrived),
                    outcome="completed",
                    status=200,
                    is_stream=True,
                    is_fallback=False,
                ),
            )


@pytest.fixture(scope="module")
def requests():
    rng, team = random.Random(5), Team.of_seed(5)
    streams = [PersonStream(key, each, rng, always) for key, each in enumerate(team.habits)]
    asks = sorted((stream.first() for stream in streams), key=lambda each: each[0])
    return simulate(asks, Machine(), float(UNTIL + 600))


def test_a_simulated_hour_is_what_a_gateway_would_have_recorded(requests, tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'carpool.db'}")
    database.migrate()
    rows = sorted(rows_of(requests), key=lambda each: each[0])
    chunks, sums = OpenChunks(), Accumulators()
    for start in range(FROM, UNTIL, 10):
        while rows and rows[0][0] < start + 10:
            sums.ended("m", rows.pop(0)[1])
        chunks.add(MIDNIGHT + start + 5, sums.take())
    SeriesStore(database).put(chunks.due(0.0, all_of_them=True))
    reader = SeriesReader(database)
    names = ["requests", "prompt_tokens.sum", "output_tokens.sum", "ttft.p50", "tpot.p50"]
    span = MIDNIGHT + FROM, MIDNIGHT + UNTIL
    read = reader.read_series(names, *span, 60, "m").columns
    day = recorded(requests, Machine(), NUM_KEYS)
    hour = slice(FROM // 60, UNTIL // 60)
    for name in names:
        expected = day.minutes[name][hour]
        found = np.array([np.nan if value is None else value for value in read[name]])
        if name.endswith("p50"):
            np.testing.assert_allclose(found, expected, rtol=0.021)
        else:
            np.testing.assert_allclose(np.nan_to_num(found), expected)
    callers = {each.key_id: each for each in reader.read_callers(*span, 60, "m")}
    for number in range(NUM_KEYS):
        expected = day.by_key["service_s"][number, hour].sum()
        found = callers[f"key{number}"].total("service_s") if f"key{number}" in callers else 0.0
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_full_machine_serves_in_order_and_loses_nobody():
    asks = [(0.01 * n, Ask(n, 400, 100)) for n in range(30)]
    done = simulate(asks, Machine(), 1e5)
    assert len(done.ended) == 30
    assert not np.isnan(done.ended).any()
    assert done.granted == sorted(done.granted)
    waits = np.array(done.granted) - np.array(done.arrived)
    assert waits[:8].max() == 0
    assert waits[8:].min() > 0


def test_what_ran_in_an_outage_is_asked_again():
    machine = Machine(outages=((5.0, 30.0),))
    done = simulate([(0.0, Ask(0, 400, 2000)), (10.0, Ask(1, 400, 10))], machine, 1e5)
    assert np.isnan(done.ended[0])
    assert done.left[0] == 5.0
    assert done.granted[1] == 30.0
    assert sum(not np.isnan(ended) for ended in done.ended) == 2


def test_a_few_days_come_out_as_they_should():
    rig = Rig(77, None)
    results = [rig.run(Job(kind, 0, 77)) for kind in (0, 6)]
    assert [each.kind for each in results] == ["calm", "flapping"]
    assert not any(each.misses or each.false_alarms for each in results)
    assert "backend_flapping" in table(results)
    assert summary(results, 1.0)["ok"]
