"""What the dashboard is told over time, out of a database with series and without."""

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from carpool.gateway import admin_login
from carpool.gateway.admin_app import make_admin_app
from carpool.gateway.live_state import Load, ModelState, ReplicaState
from carpool.store.admin_key import AdminKeyStore
from carpool.store.database import Database
from carpool.store.errors import DatabaseAway
from carpool.store.key_store import KeyStore
from carpool.store.lane import Lane
from carpool.store.series_store import SeriesStore
from carpool.store.usage_row import UsageRow
from carpool.watch.accumulator import Accumulators
from carpool.watch.open_chunks import OpenChunks

MODEL = "team-model"


class Live:
    def models(self):
        replica = ReplicaState("embedded", "ready", 0)
        return [
            ModelState(MODEL, (), "ready", 4, 9000, 4096, "reported", Load(), (replica,)),
            ModelState("other", (), "down", None, None, None, None, Load(), ()),
        ]

    def people(self):
        return []

    def places(self):
        return []


@pytest.fixture
def database(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/carpool.db")
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def get(database):
    key = AdminKeyStore(database).renew().text
    app = make_admin_app(database, Live(), CollectorRegistry())
    client = TestClient(app, headers={"authorization": f"Bearer {key}"})

    def get(path, status=200):
        answer = client.get(f"/admin/v1{path}")
        assert answer.status_code == status, answer.text
        return answer.json()

    return get


def record(database, rows, moment, waiting=3.0):
    """Ten seconds in which these requests ended."""
    sums = Accumulators(has_think=True)
    for row in rows:
        sums.ended(MODEL, row)
    points = sums.take()
    for point in points.values():
        point.sample("waiting", waiting)
        point.sample("in_flight", 2.0)
    chunks = OpenChunks()
    chunks.add(moment, points)
    SeriesStore(database).put(chunks.due(0.0, all_of_them=True))


def request(number, person_id, prompt_tokens, output_tokens=20, ttft_ms=250.0):
    return UsageRow(
        request_id=f"r{number}", started_at=0.0, person_id=person_id, key_id=f"k-{person_id}",
        model=MODEL, backend="embedded", api="chat", lane=Lane.INTERACTIVE,
        prompt_tokens=prompt_tokens, cached_tokens=0, output_tokens=output_tokens,
        usage_source="reported", queue_ms=0.0, ttft_ms=ttft_ms, tpot_ms=20.0, total_ms=900.0,
        outcome="completed", status=200, is_stream=True, is_fallback=False,
    )  # fmt: skip


def test_where_nothing_was_recorded_there_is_no_data_and_no_nought(get):
    told = get("/series?range=24h")
    assert len(told["starts"]) in (1440, 1441)
    assert all(set(column) == {None} for column in told["columns"].values())
    assert get("/outlook")["recent"] is None
    assert get("/who")["people"] == []
    [model, other] = get("/plan")["models"]
    measured = {row["name"]: row["measured"] for row in model["rows"]}
    assert measured["Seats"] == 4
    assert measured["Mean context, tokens"] is None
    assert all(row["plan"] is None for row in model["rows"])
    assert all(row["measured"] is None for row in other["rows"])


@pytest.mark.parametrize("span", ["1h", "24h", "7d", "30d"])
def test_every_range_has_what_happened_and_gaps_before(get, database, span):
    now = get("/series")["as_of"]
    record(database, [request(1, "ana", 100)], now - 60)
    told = get(f"/series?range={span}")
    assert len(told["starts"]) <= 1501
    waiting = [value for value in told["columns"]["waiting.max"] if value is not None]
    ttft = [value for value in told["columns"]["ttft.p99"] if value is not None]
    assert waiting == [3]
    assert ttft == [pytest.approx(0.25, rel=0.03)]
    assert told["starts"][0] <= now - told["resolution"] < told["starts"][-1] + told["resolution"]


def test_one_model_alone_can_be_asked_for(get, database):
    now = get("/series")["as_of"]
    record(database, [request(1, "ana", 100)], now - 60)
    other = get("/series?model=other")["columns"]["waiting.max"]
    assert set(other) == {None}
    assert get("/series?range=2h", 422)["error"]["param"] == "range"


def test_people_have_their_share_and_the_length_of_their_prompts(get, database):
    keys = KeyStore(database)
    ana = keys.add_person("<b>Ana</b>").person_id
    now = get("/series")["as_of"]
    rows = [request(1, ana, 100), request(2, ana, 300), request(3, "gone", 60)]
    record(database, rows, now - 30)
    first, second = get("/who")["people"]
    assert (first["name"], first["requests"], first["prompt_tokens"]) == ("<b>Ana</b>", 2, 400)
    assert first["share"] == pytest.approx(440 / 520)
    assert [each for each in first["prompt_lengths"] if each is not None] == [200]
    assert second["name"] == "gone"
    measured = {row["name"]: row["measured"] for row in get("/plan")["models"][0]["rows"]}
    assert measured["Mean context, tokens"] == pytest.approx(460 / 3 + 10, rel=0.03)
    assert measured["In flight, most"] == 2
    recent = get("/outlook")["recent"]
    assert recent["ttft_p50"] == pytest.approx(0.25, rel=0.03)


def test_a_database_that_is_away_is_told_as_such(get, database, monkeypatch):
    def fail(self):
        raise DatabaseAway("no connection")

    monkeypatch.setattr(admin_login, "REMEMBERED_S", 1e9)
    get("/now")
    monkeypatch.setattr(Database, "read", fail)
    for path in ("/series", "/outlook", "/who", "/plan", "/keys", "/days"):
        assert get(path, 503)["error"]["code"] == "database_away"
    assert get("/now")["models"][0]["name"] == MODEL
