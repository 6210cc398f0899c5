"""The admin API over a real database: who may, what it takes, what it says, what it leaves."""

import csv
import io
import json
import logging
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.routing import Mount
from starlette.testclient import TestClient

from carpool import __version__
from carpool.gateway.admin_app import make_admin_app
from carpool.gateway.admin_login import FAILURES_PER_MINUTE
from carpool.gateway.alerting import make_alert_watch
from carpool.gateway.live_state import Load, ModelState, PersonLoad, Place, ReplicaState
from carpool.store.admin_key import AdminKeyStore
from carpool.store.database import Database
from carpool.store.key_store import KeyStore
from carpool.store.key_text import parse_key_text, secret_matches
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow
from carpool.store.usage_store import UsageStore
from carpool.watch.alert_config import AlertsConfig, set_up_alerts


class Live:
    """A gateway with one model, at which Ana has something."""

    def models(self):
        replica = ReplicaState("embedded", "ready", 1)
        load = Load(1, 50, 2, 60)
        return [
            ModelState(
                "team-model", ("fast",), "ready", 4, 9000, 4096, "reported", load, (replica,)
            )
        ]

    def people(self):
        load = Load(1, 50, 2, 60)
        return [PersonLoad("ana", "Ana", load, {"team-model": load})]

    def places(self):
        one = Place(
            request_id="cp-1",
            model="team-model",
            person_id="ana",
            name="Ana",
            lane=Lane.INTERACTIVE,
            num_seqs=1,
            num_tokens=50,
            is_waiting=False,
            for_s=1.5,
        )
        return [one, replace(one, request_id="cp-2", is_waiting=True, num_tokens=60)]


class Admin:
    """Somebody with the admin key. `told` counts what the gateway heard of changes."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.keys = KeyStore(database)
        self.admin_keys = AdminKeyStore(database)
        self.usage = UsageStore(database)
        self.new = self.admin_keys.renew()
        self.told = 0
        registry = CollectorRegistry()
        Counter("carpool_gateway_requests", "Requests", registry=registry).inc(3)
        app = make_admin_app(database, Live(), registry, self._hear)
        self.client = TestClient(app, raise_server_exceptions=False)

    async def _hear(self) -> None:
        self.told += 1

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.new.text}"}

    def ask(self, method, path, status=200, **options):
        """The JSON of an answer, which has that status."""
        headers = self.headers | options.pop("headers", {})
        answer = self.client.request(method, f"/admin/v1{path}", headers=headers, **options)
        assert answer.status_code == status, answer.text
        assert answer.headers["cache-control"] == "no-store"
        return answer.json()

    def refused(self, method, path, status, **options):
        error = self.ask(method, path, status, **options)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error


@pytest.fixture
def admin(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/carpool.db")
    database.migrate()
    yield Admin(database)
    database.close()


# ---------------------------------------------------------------------------- who may


@pytest.mark.parametrize("path", ["/people", "/keys", "/usage", "/live", "/nothing/at/all"])
def test_nobody_gets_anywhere_without_the_admin_key_and_all_hear_the_same(admin, path):
    _, person = admin.keys.add_key_for("Ana")
    old, admin.new = admin.new, admin.admin_keys.renew()
    wrong_secret = f"{admin.new.text[:17]}{old.text[17:]}"
    tries = [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": admin.new.text},
        {"authorization": f"Basic {admin.new.text}"},
        {"authorization": f"Bearer {admin.new.text}x"},
        {"authorization": f"Bearer {person.text}"},
        {"authorization": f"Bearer {person.text.replace('cp-', 'cpa-')}"},
        {"authorization": f"Bearer {old.text}"},
        {"authorization": f"Bearer {wrong_secret}"},
        {"authorization": b"Bearer \xff"},
        {"x-api-key": admin.new.text},
    ]
    answers = [admin.client.get(f"/admin/v1{path}", headers=headers) for headers in tries]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    assert {answer.headers["cache-control"] for answer in answers} == {"no-store"}
    admin.ask("GET", "/people")


def test_before_there_is_a_key_nobody_is_the_admin(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/carpool.db")
    database.migrate()
    client = TestClient(make_admin_app(database, Live(), CollectorRegistry()))
    assert client.get("/admin/v1/people").status_code == 401
    database.close()


def test_a_replaced_key_ends_at_once_or_nearly(admin, monkeypatch):
    admin.ask("GET", "/people")
    old, admin.new = admin.headers, admin.admin_keys.renew()
    monkeypatch.setattr("carpool.gateway.admin_login.REMEMBERED_S", 0)
    assert admin.client.get("/admin/v1/people", headers=old).status_code == 401
    admin.ask("GET", "/people")


def test_guesses_are_bounded_and_keep_the_admin_in(admin):
    answers = [admin.client.get("/admin/v1/people") for _ in range(FAILURES_PER_MINUTE + 20)]
    statuses = [answer.status_code for answer in answers]
    assert statuses[:FAILURES_PER_MINUTE] == [401] * FAILURES_PER_MINUTE
    assert statuses[-10:] == [429] * 10
    assert int(answers[-1].headers["retry-after"]) >= 1
    admin.ask("GET", "/people")


def test_health_version_and_metrics_need_no_key(admin):
    assert admin.client.get("/health").json() == {"status": "ok"}
    assert admin.client.get("/version").json() == {"version": __version__}
    assert "carpool_gateway_requests_total 3.0" in admin.client.get("/metrics").text
    assert admin.client.get("/other").status_code == 404
    assert admin.client.post("/health").status_code == 405


# ------------------------------------------------------------------------------ people


def test_a_person_is_added_changed_and_removed(admin):
    added = admin.ask("POST", "/people", 201, json={"name": "Ana", "rpm": 60, "weight": 2})
    person_id = added["person_id"]
    assert (added["rpm"], added["tpm"], added["weight"], added["keys"]) == (60, None, 2.0, [])
    for called in ("Ana", person_id):
        assert admin.ask("GET", f"/people/{called}") == added
    changes = {"rpm": None, "daily_tokens": 500}
    changed = admin.ask("PATCH", "/people/Ana", json=changes)
    assert changed == added | changes
    assert admin.ask("PATCH", f"/people/{person_id}", json={"name": "Anna"})["name"] == "Anna"
    assert admin.ask("GET", "/people") == {"people": [changed | {"name": "Anna"}]}
    admin.ask("DELETE", "/people/Anna")
    assert admin.ask("GET", "/people") == {"people": []}
    assert admin.told == 4


def test_a_person_with_keys_that_work_is_removed_only_when_told_so(admin):
    _, new = admin.keys.add_key_for("Ana")
    assert new.key.key_id in admin.refused("DELETE", "/people/Ana", 422)["message"]
    admin.ask("DELETE", "/people/Ana?revoke_keys=true")
    assert admin.ask("GET", "/keys") == {"keys": []}


# -------------------------------------------------------------------------------- keys


def test_a_key_is_added_with_all_its_options_and_its_text_told_once(admin):
    admin.ask("POST", "/people", 201, json={"name": "Ana"})
    options = {
        "label": "laptop",
        "models": ["fast"],
        "rpm": 60,
        "max_in_flight": 2,
        "lane": "batch",
        "is_private": True,
        "expires_at": "2099-01-31T12:00:00Z",
    }
    added = admin.ask("POST", "/keys", 201, json={"person": "Ana"} | options)
    text = added.pop("key")
    assert added | options == added
    assert admin.ask("GET", f"/keys/{added['key_id']}") == added
    assert admin.ask("GET", "/keys?person=Ana") == admin.ask("GET", "/keys") == {"keys": [added]}
    assert admin.ask("GET", "/people/Ana")["keys"] == [added["key_id"]]
    parsed = parse_key_text(text)
    assert secret_matches(parsed.secret, admin.keys.get_key(parsed.key_id).secret_sha256)


def test_a_key_changes_in_what_is_named_alone(admin):
    _, new = admin.keys.add_key_for("Ana", "laptop", models=["fast"], lane=Lane.BATCH)
    path = f"/keys/{new.key.key_id}"
    before = admin.ask("GET", path)
    for change in (
        {"rpm": 5, "tpm": 9},
        {"rpm": None},
        {"models": None},
        {"models": ["deep", "fast"], "lane": "interactive"},
        {"is_private": True, "label": "desk"},
        {"expires_at": "2099-01-01T00:00:00Z"},
        {"expires_at": None},
    ):
        after = admin.ask("PATCH", path, json=change)
        assert after == before | change
        before = after


def test_a_key_is_rotated_and_revoked(admin):
    _, new = admin.keys.add_key_for("Ana")
    path = f"/keys/{new.key.key_id}"
    rotated = admin.ask("POST", f"{path}/rotate", json={})
    assert parse_key_text(rotated["key"]).key_id == new.key.key_id
    assert rotated["key"] != new.text
    json_type = {"content-type": "application/json"}
    revoked = admin.ask("POST", f"{path}/revoke", headers=json_type)
    assert revoked["state"] == "revoked"
    assert admin.refused("POST", f"{path}/rotate", 422, json={})["param"] == "key"
    assert admin.refused("PATCH", path, 422, json={"rpm": 5})["param"] == "key"
    assert admin.told == 2


# --------------------------------------------------------------------- what it refuses

BAD_FIELDS = [
    ("POST", "/people", {}, "name"),
    ("POST", "/people", {"name": 7}, "name"),
    ("POST", "/people", {"name": " "}, "name"),
    ("POST", "/people", {"name": "Ana"}, "name"),
    ("POST", "/people", {"name": "a\nb"}, "name"),
    ("POST", "/people", {"name": "B", "weight": 0}, "weight"),
    ("POST", "/people", {"name": "B", "weight": "2"}, "weight"),
    ("POST", "/people", {"name": "B", "weight": True}, "weight"),
    ("POST", "/people", {"name": "B", "rpm": -1}, "rpm"),
    ("POST", "/people", {"name": "B", "rpm": 0}, "rpm"),
    ("POST", "/people", {"name": "B", "rpm": 1.5}, "rpm"),
    ("POST", "/people", {"name": "B", "rpm": "5"}, "rpm"),
    ("POST", "/people", {"name": "B", "rpm": True}, "rpm"),
    ("POST", "/people", {"name": "B", "daily_tokens": 10**30}, "daily_tokens"),
    ("POST", "/people", {"name": "B", "rps": 5}, "rps"),
    ("POST", "/people", {"name": "B", "person_id": "x"}, "person_id"),
    ("PATCH", "/people/Ana", {"name": None}, "name"),
    ("PATCH", "/people/Ana", {"weight": None}, "weight"),
    ("POST", "/keys", {"person": "nobody"}, "person"),
    ("POST", "/keys", {"label": "x"}, "person"),
    ("POST", "/keys", {"person": "Ana", "lane": "fast"}, "lane"),
    ("POST", "/keys", {"person": "Ana", "models": []}, "models"),
    ("POST", "/keys", {"person": "Ana", "models": "fast"}, "models"),
    ("POST", "/keys", {"person": "Ana", "models": [1]}, "models.0"),
    ("POST", "/keys", {"person": "Ana", "is_private": "yes"}, "is_private"),
    ("POST", "/keys", {"person": "Ana", "expires_at": "soon"}, "expires_at"),
    ("POST", "/keys", {"person": "Ana", "expires_at": "2001-01-01"}, "expires_at"),
    ("POST", "/keys", {"person": "Ana", "expires_at": 1900000000}, "expires_at"),
    ("POST", "/keys", {"person": "Ana", "key": "cp-mine"}, "key"),
    ("POST", "/keys", {"person": "Ana", "secret_sha256": "00"}, "secret_sha256"),
    ("PATCH", "/keys/KEY", {"person": "Ana"}, "person"),
    ("PATCH", "/keys/KEY", {"label": ""}, "label"),
    ("POST", "/keys/KEY/rotate", {"secret": "mine"}, "secret"),
    ("GET", "/usage?by=hour", None, "by"),
    ("GET", "/usage?since=yesterday", None, "since"),
    ("GET", "/usage?from=2027-01-01", None, "from"),
    ("GET", "/usage?by=key&by=day", None, "by"),
    ("GET", "/keys?name=Ana", None, "name"),
    ("DELETE", "/people/Ana?revoke_keys=yes", None, "revoke_keys"),
]


@pytest.mark.parametrize(("method", "path", "body", "param"), BAD_FIELDS)
def test_a_bad_field_is_named_and_nothing_changes(admin, method, path, body, param):
    _, new = admin.keys.add_key_for("Ana")
    before = admin.keys.snapshot()
    options = {} if body is None else {"json": body}
    error = admin.refused(method, path.replace("KEY", new.key.key_id), 422, **options)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert param.partition(".")[0] in error["message"]
    assert admin.keys.snapshot() == before
    assert admin.told == 0


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b'{"name": ', 400),
        (b"[]", 400),
        (b'"Ana"', 400),
        (b'{"name": "\xff"}', 400),
        (b'{"name": "Ana", "name": "Ben"}', 400),
        (b'{"a": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", 400),
        (b'{"weight": ' + b"9" * 5000 + b"}", 400),
        (b'{"name": "' + b"a" * 70_000 + b'"}', 413),
        (b'{"name": "B", "weight": NaN}', 400),
        (b'{"name": "B", "weight": 1e999}', 422),
    ],
)
def test_a_body_that_is_no_small_json_object_is_refused(admin, content, status):
    headers = {"content-type": "application/json"}
    error = admin.refused("POST", "/people", status, content=content, headers=headers)
    assert error["message"]
    assert admin.keys.list_people() == ()


@pytest.mark.parametrize("path", ["/people", "/keys", "/keys/KEY/revoke", "/keys/KEY/rotate"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_write_says_that_it_is_json(admin, path, kind):
    _, new = admin.keys.add_key_for("Ana")
    headers = {} if kind is None else {"content-type": kind}
    where = path.replace("KEY", new.key.key_id)
    admin.refused("POST", where, 415, content=b'{"name": "B"}', headers=headers)
    assert admin.keys.get_key(new.key.key_id) == new.key


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/people/nobody"),
        ("DELETE", "/people/nobody"),
        ("GET", "/keys/nothing"),
        ("GET", "/keys?person=nobody"),
        ("GET", "/nothing"),
        ("GET", "/people/a/b"),
    ],
)
def test_what_is_not_there_is_not_found(admin, method, path):
    assert admin.refused(method, path, 404)["type"] == "not_found_error"


def test_a_method_that_a_path_does_not_take_is_refused(admin):
    admin.refused("PUT", "/people", 405, json={"name": "Ana"})


def test_a_fault_is_answered_without_its_details(admin, monkeypatch):
    def fail(self):
        raise ArithmeticError("of nobody's concern")

    monkeypatch.setattr(Live, "people", fail)
    error = admin.refused("GET", "/live", 500)
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "nobody" not in error["message"]


def test_while_the_database_is_away_it_says_so_and_not_where_it_was(admin, tmp_path):
    admin.ask("GET", "/people")
    (tmp_path / "carpool.db").rename(tmp_path / "elsewhere.db")
    answer = admin.client.get("/admin/v1/people", headers=admin.headers)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert str(tmp_path) not in answer.text
    assert admin.client.get("/health").status_code == 200


# ------------------------------------------------------------------------ what it tells


@pytest.fixture
def used(admin):
    person, new = admin.keys.add_key_for("Ana", "laptop")

    def insert(request_id, model="fast", ago_s=0.0):
        row = UsageRow(
            request_id, time.time() - ago_s, person.person_id, new.key.key_id, model, "embedded",
            "chat", Lane.INTERACTIVE, 10, 2, 5, "reported", 4.0, 120.0, 8.0, 200.0, "completed",
            200, True, False,
        )  # fmt: skip
        admin.usage.insert([row])

    return insert


def test_usage_is_summed_up_by_what_is_asked(admin, used):
    used("1"), used("2", "deep"), used("3", "=cmd()", 86_400 * 9)
    by_person = admin.ask("GET", "/usage")
    assert by_person["by"] == "person"
    assert [(row["name"], row["num_requests"]) for row in by_person["usage"]] == [("Ana", 3)]
    week_ago = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 7 * 86_400))
    recent = admin.ask("GET", f"/usage?by=model&since={week_ago}")["usage"]
    assert {row["name"] for row in recent} == {"fast", "deep"}
    older = admin.ask("GET", f"/usage?by=key&until={week_ago}T00:00:00Z")["usage"]
    assert [(row["name"], row["output_tokens"]) for row in older] == [("laptop", 5)]
    assert len(admin.ask("GET", "/usage?by=day")["usage"]) == 2


def test_usage_as_csv_holds_no_formula(admin, used):
    used("1", "=cmd()")
    answer = admin.client.get("/admin/v1/usage?by=model&format=csv", headers=admin.headers)
    assert answer.headers["content-type"].startswith("text/csv")
    [row] = csv.DictReader(io.StringIO(answer.text))
    assert (row["name"], row["prompt_tokens"]) == ("'=cmd()", "10")


def test_models_and_who_is_in_flight_are_told(admin):
    figures = {"in_flight": 1, "in_flight_tokens": 50, "waiting": 2, "waiting_tokens": 60}
    [model] = admin.ask("GET", "/models")["models"]
    assert model == figures | {
        "name": "team-model",
        "aliases": ["fast"],
        "state": "ready",
        "max_num_seqs": 4,
        "kv_tokens": 9000,
        "max_model_len": 4096,
        "provenance": "reported",
        "replicas": [{"name": "embedded", "state": "ready", "in_flight": 1}],
    }
    live = admin.ask("GET", "/live")
    person = {"person_id": "ana", "name": "Ana", "models": {"team-model": figures}}
    assert live["people"] == [person | figures]
    assert live["models"] == [{"name": "team-model"} | figures]


# ------------------------------------------------------------------------ what it leaves


def test_every_change_leaves_one_line_that_says_who_and_what_and_no_secret(admin, caplog):
    caplog.set_level(logging.DEBUG)
    admin.ask("POST", "/people", 201, json={"name": "Ana"})
    key = admin.ask("POST", "/keys", 201, json={"person": "Ana", "label": "laptop"})
    path = f"/keys/{key['key_id']}"
    rotated = admin.ask("POST", f"{path}/rotate", json={})
    admin.ask("PATCH", path, json={"rpm": 5, "label": key["key"]})
    admin.ask("POST", f"{path}/revoke", json={})
    admin.ask("PATCH", "/people/Ana", json={"tpm": 9})
    admin.ask("DELETE", "/people/Ana")
    admin.refused("DELETE", "/people/Ana", 404)
    admin.ask("GET", "/people")
    lines = [each.getMessage() for each in caplog.records if each.name == "carpool.audit"]
    assert len(lines) == 7
    assert all(line.startswith(f"admin key {admin.new.key.key_id}: ") for line in lines)
    kinds = ("added person", "added key", "rotated", "changed key", "revoked", "changed", "removed")
    assert all(kind in line for kind, line in zip(kinds, lines, strict=True))
    assert '"rpm": 5' in lines[3]
    logged = "\n".join(record.getMessage() for record in caplog.records)
    for text in (key["key"], rotated["key"], admin.new.text):
        assert text[18:] not in logged


def test_no_answer_but_that_of_its_making_has_a_secret_or_a_hash(admin):
    admin.ask("POST", "/people", 201, json={"name": "Ana"})
    made = admin.ask("POST", "/keys", 201, json={"person": "Ana"})
    stored = admin.keys.get_key(made["key_id"])
    paths = ("/people", "/keys", f"/keys/{made['key_id']}", "/usage", "/models", "/live")
    for path in paths:
        text = json.dumps(admin.ask("GET", path))
        assert made["key"][16:] not in text
        assert stored.secret_sha256.hex() not in text
        assert admin.new.text[17:] not in text


# ------------------------------------------------------------------------ what is written


def routes_of(routes, prefix=""):
    for route in routes:
        if isinstance(route, Mount):
            yield from routes_of(route.routes, prefix + route.path)
        else:
            path = prefix + route.path.replace(":path", "")
            yield from (f"{each} {path}" for each in route.methods - {"HEAD"})


def test_every_route_is_in_the_documentation_with_an_example_and_no_other():
    page = Path(__file__).parents[2].joinpath("docs", "admin.md").read_text()
    sections = re.split(r"^### `(.+)`$", page, flags=re.MULTILINE)[1:]
    documented = dict(zip(sections[::2], sections[1::2], strict=True))
    database = Database("sqlite:////nowhere/carpool.db")
    alerts = make_alert_watch(set_up_alerts(AlertsConfig()), Live(), database, lambda ease: ())
    app = make_admin_app(database, Live(), CollectorRegistry(), alerts=alerts)
    assert sorted(documented) == sorted(routes_of(app.routes))
    for route, text in documented.items():
        method, path = route.split()
        example = text.partition("\n\n    ")[2].partition("\n\n")[0]
        pattern = re.sub(r"\\\{\w+\\\}", r"[\\w.]+", re.escape(path))
        assert example.startswith("curl")
        assert re.search(rf"\$ADMIN{pattern}(\?|\"|$)", example), route
        assert f"-X {method}" in example or method == "GET" or "-d '" in example
        for body in re.findall(r"-d '(.+?)'", example):
            json.loads(body)
