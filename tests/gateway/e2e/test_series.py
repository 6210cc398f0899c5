"""What a gateway does is there to be read a little later, with one worker or several."""

import operator
import time

from direct_line import URL, needs_redis
from gateway_process import MODEL, ScriptedEngine, gateway_process, until
from mock_engine import chat_events, sse_reply

from carpool.watch.series_reader import SeriesReader

WITHIN_S = 25.0
"""Two flushes, and some for a busy machine."""


def recorded(gateway, names):
    """Sums over the last minutes."""
    now = time.time()
    reader = SeriesReader(gateway.store.database)
    columns = reader.read_series(names, now - 600, now, 10, MODEL).columns
    return [sum(value or 0 for value in column) for column in columns.values()]


def check_recorded(gateway, engine):
    engine.script = lambda request: sse_reply(chat_events(["one", "two", "three"]))
    person = gateway.add_person()
    for _ in range(6):
        assert person.ask(stream=True).status_code == 200
    names = ["requests", "outcome.completed", "ttft.count", "tpot.count"]
    until(lambda: recorded(gateway, names) == [6, 6, 6, 6], WITHIN_S)
    # Levels are looked at every other second, and may be of the next ten.
    levels = ["seats.mean", "host_memory_total.mean"]
    until(lambda: all(map(operator.ge, recorded(gateway, levels), (8, 1))), WITHIN_S)
    now = time.time()
    (caller,) = SeriesReader(gateway.store.database).read_callers(now - 600, now, 10, MODEL)
    assert caller.total("requests") == 6
    assert caller.key_id == person.key_id


def test_one_gateway_records(tmp_path):
    with (
        ScriptedEngine(max_num_seqs=8).serving() as engine,
        gateway_process(engine.url, tmp_path) as gateway,
    ):
        check_recorded(gateway, engine)


@needs_redis
def test_the_parent_records_for_all_workers(tmp_path):
    arguments = ("--workers", "2", "--counters", URL, "--admin-port", "0")
    with (
        ScriptedEngine(max_num_seqs=8).serving() as engine,
        gateway_process(engine.url, tmp_path, *arguments) as gateway,
    ):
        check_recorded(gateway, engine)
