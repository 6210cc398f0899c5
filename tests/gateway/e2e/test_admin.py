"""The admin API of a running gateway: its changes hold at once, and it shows what goes on."""

import httpx
import pytest
from gateway_process import CHAT, MODEL, Person, chunks_of, gateway_process, read_until_cut, until
from mock_engine import chat_events, sse_reply

from carpool.store.admin_key import AdminKeyStore
from carpool.store.key_store import NewKey
from carpool.store.key_text import parse_key_text


@pytest.fixture(scope="module")
def gateway(shared_engine, tmp_path_factory):
    home = tmp_path_factory.mktemp("admin")
    with gateway_process(shared_engine.url, home, "--admin-port", "0") as gateway:
        yield gateway
        gateway.stop()


@pytest.fixture(scope="module")
def admin_key(gateway):
    return AdminKeyStore(gateway.store.database).renew()


@pytest.fixture(scope="module")
def http(gateway, admin_key):
    headers = {"authorization": f"Bearer {admin_key.text}"}
    with httpx.Client(base_url=f"{gateway.admin_url}/admin/v1", headers=headers) as http:
        yield http


def add(gateway, http, **options):
    """Somebody new, by the API alone."""
    name = f"person {len(http.get('/people').json()['people'])}"
    assert http.post("/people", json={"name": name}).status_code == 201
    made = http.post("/keys", json={"person": name} | options).json()
    key = gateway.store.get_key(parse_key_text(made["key"]).key_id)
    return Person(gateway, NewKey(key, made["key"]))


def test_a_key_works_as_soon_as_it_is_told(gateway, http, engine):
    for _ in range(5):
        assert add(gateway, http).ask().status_code == 200


def test_changed_limits_hold_at_once(gateway, http, engine):
    ada = add(gateway, http)
    assert ada.ask().status_code == 200
    assert http.patch(f"/keys/{ada.key_id}", json={"rpm": 1}).json()["rpm"] == 1
    assert [ada.ask().status_code for _ in range(2)] == [200, 429]
    http.patch(f"/keys/{ada.key_id}", json={"rpm": None})
    http.patch(f"/people/{ada.person_id}", json={"max_prompt_tokens": 1})
    assert ada.ask().status_code == 413


def test_a_revoked_key_is_refused_at_once_and_its_stream_ends(gateway, http, engine):
    ada = add(gateway, http)
    engine.script = sse_reply(chat_events(["word "] * 1000), piece_delay=0.02)
    with ada.stream() as response:
        pieces = response.iter_bytes()
        next(pieces)
        headers = {"content-type": "application/json"}
        revoked = http.post(f"/keys/{ada.key_id}/revoke", headers=headers)
        assert revoked.json()["state"] == "revoked"
        assert ada.ask().status_code == 401
        content = read_until_cut(pieces)
    assert chunks_of(content.decode())[-1]["error"]["code"] == "stopped"


def test_somebody_removed_is_refused_at_once(gateway, http, engine):
    ada = add(gateway, http)
    assert ada.ask().status_code == 200
    http.delete(f"/people/{ada.person_id}?revoke_keys=true")
    assert ada.ask().status_code == 401


def test_it_shows_who_is_in_flight_and_who_waits(gateway, http, engine):
    until(lambda: http.get("/live").json()["people"] == [])
    ada, ben = add(gateway, http, max_in_flight=1), add(gateway, http)
    with engine.holding():
        answers = [ada.start(), ada.start(), ben.start(max_tokens=7)]
        until(lambda: len(engine.asked) == 2 and gateway.num_waiting == 1)
        live = http.get("/live").json()
        people = {person["person_id"]: person for person in live["people"]}
        assert people.keys() == {ada.person_id, ben.person_id}
        mine = people[ada.person_id]
        assert (mine["in_flight"], mine["waiting"]) == (1, 1)
        assert mine["waiting_tokens"] == mine["in_flight_tokens"] > 0
        assert mine["models"][MODEL]["waiting"] == 1
        assert (people[ben.person_id]["in_flight"], people[ben.person_id]["waiting"]) == (1, 0)
        [model] = http.get("/models").json()["models"]
        assert (model["name"], model["state"], model["max_num_seqs"]) == (MODEL, "ready", 16)
        assert (model["in_flight"], model["waiting"]) == (2, 1)
        assert [replica["in_flight"] for replica in model["replicas"]] == [2]
    assert [answer.result().status_code for answer in answers] == [200, 200, 200]
    until(lambda: http.get("/live").json()["people"] == [])


def test_usage_of_the_running_gateway_is_there(gateway, http, engine):
    ada = add(gateway, http)
    assert ada.ask().status_code == 200
    gateway.row(ada)
    usage = http.get("/usage?by=person").json()["usage"]
    assert [each["num_requests"] for each in usage if each["group_id"] == ada.person_id] == [1]


def test_clients_cannot_reach_it_and_its_key_asks_no_model(gateway, http, admin_key):
    headers = {"authorization": f"Bearer {admin_key.text}"}
    for path in ("/admin/v1/people", "/admin/v1/live"):
        assert gateway.http.get(path, headers=headers).status_code == 404
    assert gateway.http.post(CHAT, headers=headers, json={"model": MODEL}).status_code == 401
    assert httpx.get(f"{gateway.admin_url}/v1/models", headers=headers).status_code == 404


def test_health_and_metrics_are_there_without_a_key(gateway, http):
    assert httpx.get(f"{gateway.admin_url}/health").status_code == 200
    assert "carpool_gateway_requests" in httpx.get(f"{gateway.admin_url}/metrics").text


def test_every_change_is_in_the_log_and_no_secret_is(gateway, http, admin_key):
    ada = add(gateway, http)
    until(lambda: f"added key {ada.key_id}" in gateway.log.read_text())
    log = gateway.log.read_text()
    assert f"admin key {admin_key.key.key_id}: added person {ada.person_id}" in log
    for text in (ada.key, admin_key.text):
        assert text.split("-", 2)[2] not in log


def test_a_model_s_limits_are_each_person_s_own(shared_engine, tmp_path):
    config = f"""
        [[models]]
        name = "scarce"
        aliases = ["rare"]
        limits = {{rpm = 1, max_output_tokens = 3}}
        backends = [{{engine = "{shared_engine.url}"}}]
        [[models]]
        name = "plenty"
        backends = [{{engine = "{shared_engine.url}"}}]
    """
    shared_engine.forget()
    with gateway_process("", tmp_path, config=config) as gateway:
        ada, ben = gateway.add_people(2)
        for person in (ada, ben):
            assert person.ask(model="scarce", max_tokens=9).status_code == 200
            refused = person.ask(model="rare")
            assert refused.status_code == 429
            assert "with the model scarce, may use 1 request" in refused.json()["error"]["message"]
            assert person.ask(model="plenty").status_code == 200
        caps = [request.json.get("max_tokens") for request in shared_engine.asked]
        assert caps == [3, None, 3, None]
        gateway.stop()


def test_a_budget_is_known_again_after_a_restart(shared_engine, tmp_path):
    shared_engine.forget()
    database = tmp_path / "carpool.db"
    with gateway_process(shared_engine.url, tmp_path, database=database) as gateway:
        ada = gateway.add_person()
        assert ada.ask(max_tokens=50).status_code == 200
        used = gateway.row(ada)["prompt_tokens"] + gateway.row(ada)["output_tokens"]
        gateway.store.change_person(ada.person_id, limits={"monthly_tokens": used + 40})
        gateway.stop()
    with gateway_process(shared_engine.url, tmp_path, database=database) as again:
        ada = Person(again, ada.new)
        refused = ada.ask(max_tokens=40)
        assert refused.status_code == 429
        assert f"{used:,} are used" in refused.json()["error"]["message"]
        again.stop()
