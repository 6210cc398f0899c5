"""From a gateway's engines, database and signals to a webhook and the admin API."""

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from scripted_server import Posts, http_answer, scripted
from starlette.testclient import TestClient

from carpool.gateway.admin_app import make_admin_app
from carpool.gateway.alert_metrics import AlertMetrics
from carpool.gateway.alerting import make_alert_watch
from carpool.gateway.live_state import Load, ModelState
from carpool.store.admin_key import AdminKeyStore
from carpool.store.database import Database
from carpool.store.errors import DatabaseAway, StoreError
from carpool.store.key_store import KeyStore
from carpool.watch.alert_config import (
    AlertsConfig,
    RuleConfig,
    WebhookConfig,
    set_up_alerts,
)
from carpool.watch.severity import Severity
from carpool.watch.signal import Remedy, Signal, SignalName

AT_ONCE = {
    name: RuleConfig(for_s=0, resolve_s=0)
    for name in ("model_down", "database_away", "context_creep", "ttft_climb")
}


class Live:
    """A gateway with one model."""

    def __init__(self) -> None:
        self.state = "ready"

    def models(self):
        load = Load(waiting=3)
        return [ModelState("m", (), self.state, 4, 9000, 4096, "reported", load, ())]

    def people(self):
        return []

    def places(self):
        return []


class House:
    """Everything but the gateway: what it looks at, and who is told."""

    def __init__(self, database: Database, url: str | None = None, folder=None) -> None:
        self.live = Live()
        self.signals: list[Signal] = []
        self.error: Exception | None = None
        hooks = () if url is None else (WebhookConfig(name="team", url_env="URL"),)
        config = AlertsConfig(rules=AT_ONCE, webhooks=hooks)
        setup = set_up_alerts(config, {"URL": url or ""})
        self.watch = make_alert_watch(setup, self.live, database, self.look, folder)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(AlertMetrics(self.watch))
        self.registry = registry
        self.key = AdminKeyStore(database).renew().text
        self.client = TestClient(make_admin_app(database, self.live, registry, alerts=self.watch))

    def look(self, ease):
        if self.error is not None:
            raise self.error
        return [each for each in self.signals if each.value > ease * each.threshold]

    def judge(self) -> list[str]:
        changes = asyncio.run(self.watch.judge())
        return [f"{change.kind.value} {change.alert.rule}" for change in changes]

    def ask(self, path="/alerts", method="GET", status=200, **fields):
        answer = self.client.request(
            method,
            f"/admin/v1{path}",
            headers={"authorization": f"Bearer {self.key}"},
            json=fields or None,
        )
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def database(tmp_path):
    opened = Database(f"sqlite:///{tmp_path}/carpool.db")
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def house(database) -> House:
    return House(database)


def creep(**fields) -> Signal:
    options = {
        "name": SignalName.CONTEXT_CREEP,
        "severity": Severity.WARNING,
        "model": "m",
        "since": 0.0,
        "sentence": "prompts of one key grew to 1,900 tokens",
        "value": 1.9,
        "threshold": 1.5,
        "remedies": (Remedy("cap_context", "cap the context"), Remedy("add_gpu", "add a GPU")),
    }
    return Signal(**options | fields)


def test_a_model_that_is_down_fires_and_ends(house):
    assert house.judge() == []
    house.live.state = "down"
    assert house.judge() == ["firing model_down"]
    (alert,) = house.ask()["alerts"]
    assert (alert["rule"], alert["model"], alert["state"]) == ("model_down", "m", "firing")
    assert alert["summary"] == "no engine of m takes requests; 3 requests wait"
    house.live.state = "loading"
    assert house.judge() == ["resolved model_down"]


def test_a_signal_becomes_an_alert_with_its_remedies_and_the_persons_name(house, database):
    person = KeyStore(database).add_person("Zoë <b>")
    house.signals = [creep(subject="a2b3c4", person_id=person.person_id)]
    assert house.judge() == ["firing context_creep"]
    (alert,) = house.ask()["alerts"]
    assert alert["subject"] == "Zoë <b>, key a2b3c4"
    assert alert["summary"] == "prompts of one key grew to 1,900 tokens"
    assert alert["remedies"] == ["cap the context", "add a GPU"]
    house.signals = []
    assert house.judge() == ["resolved context_creep"]


def test_a_signal_that_hovers_about_its_threshold_is_one_alert(house):
    house.signals = [creep(value=1.4)]
    assert house.judge() == []
    told = []
    for value in (1.6, 1.4, 1.3, 1.6, 1.3, 1.1):
        house.signals = [creep(value=value)]
        told += house.judge()
    assert told == ["firing context_creep", "resolved context_creep"]


def test_two_keys_of_a_person_are_two_alerts(house):
    house.signals = [creep(subject="a", person_id="p"), creep(subject="b", person_id="p")]
    assert house.judge() == ["firing context_creep"] * 2


def test_while_the_database_is_away_signals_stay_as_they_were(house):
    house.signals = [creep()]
    house.judge()
    house.error = DatabaseAway("the database cannot be used now: it is gone")
    house.live.state = "down"
    assert house.judge() == ["firing model_down", "firing database_away"]
    view = house.ask()
    assert view["blind_reason"] == "the database cannot be used now: it is gone"
    assert {alert["rule"] for alert in view["alerts"]} == {
        "context_creep", "model_down", "database_away",
    }  # fmt: skip
    house.error = None
    assert house.judge() == ["resolved database_away"]
    assert house.ask()["blind_reason"] is None


def test_what_cannot_be_read_at_all_holds_everything(house):
    house.error = StoreError("the database lacks a table")
    house.live.state = "down"
    assert house.judge() == []
    assert house.ask()["blind_reason"] == "the database lacks a table"


def test_a_fault_in_a_signal_is_said_and_ends_nothing(house, caplog):
    house.error = ZeroDivisionError()
    assert house.judge() == []
    assert "the gateway's log says how" in house.ask()["blind_reason"]
    assert "ZeroDivisionError" in caplog.text
    house.error, house.signals = None, [creep()]
    assert house.judge() == ["firing context_creep"]


def test_a_webhook_is_told_and_its_delivery_is_seen(database):
    posts = Posts(http_answer(200))
    with scripted(posts) as server:
        house = House(database, f"http://127.0.0.1:{server.port}/T0K3N")
        house.live.state = "down"
        assert house.ask()["destinations"][1]["state"] == "idle"
        asyncio.run(_one_round(house))
        (post,) = posts.seen
        assert json.loads(post.body)["alerts"][0]["rule"] == "model_down"
        log, team = house.ask()["destinations"]
        assert (log["name"], team["name"], team["kind"]) == ("log", "team", "json")
        assert (team["state"], team["delivered"]) == ("ok", 1)
        assert team["last_delivered_at"].endswith("Z")


def test_a_webhook_that_takes_nothing_is_seen_in_the_api_and_the_metrics(database, caplog):
    with scripted(Posts(http_answer(404))) as server:
        house = House(database, f"http://127.0.0.1:{server.port}/T0K3N")
        house.live.state = "down"
        asyncio.run(_one_round(house))
        team = house.ask()["destinations"][1]
        assert (team["state"], team["failed"]) == ("failing", 1)
        assert team["last_error"] == "its answer was 404; check the webhook's URL"
        metrics = generate_latest(house.registry).decode()
        assert 'alert_destination_failing{destination="team"} 1.0' in metrics
        assert 'alert_messages_total{destination="team",outcome="failed"} 1.0' in metrics
        assert 'alerts_firing{rule="model_down"} 1.0' in metrics
        assert 'alerts_firing{rule="ttft_climb"} 0.0' in metrics
        assert "alerts cannot be delivered to team: its answer was 404" in caplog.text
        assert "T0K3N" not in caplog.text + metrics + json.dumps(house.ask())


async def _one_round(house: House) -> None:
    """As the gateway does it: a task that is cancelled, and a stop that delivers what is due."""
    task = asyncio.create_task(house.watch.run())
    while house.watch.view().judged_at is None or not house.watch.view().alerts:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(house.watch.stop)


def test_a_restart_tells_nothing_twice_and_the_end_still(database, tmp_path):
    before = House(database, folder=tmp_path / "journal")
    before.live.state = "down"
    before.signals = [creep(subject="a", person_id="p")]
    assert len(before.judge()) == 2
    key = before.ask()["alerts"][0]["fingerprint"]
    before.ask(f"/alerts/{key}/acknowledge", "POST", hours=1)
    before.judge()

    after = House(database, folder=tmp_path / "journal")
    after.live.state, after.signals = "down", before.signals
    assert after.ask()["alerts"] == before.ask()["alerts"]
    assert after.judge() == []
    after.live.state, after.signals = "ready", []
    assert after.judge() == ["resolved context_creep"]  # the other was acknowledged
    assert House(database, folder=tmp_path / "journal").judge() == []


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[[]]", b'[{"rule": 3}]'])
def test_a_file_of_alerts_that_is_none_is_said_and_left(database, tmp_path, caplog, content):
    file = tmp_path / "alerts.json"
    file.write_bytes(content)
    house = House(database, folder=tmp_path)
    assert "what fired before the start is not known" in caplog.text
    house.live.state = "down"
    assert house.judge() == ["firing model_down"]
    assert House(database, folder=tmp_path).judge() == ["resolved model_down"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written_is_said_once(database, tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    house = House(database, folder=tmp_path / "file" / "folder")
    for state in ("down", "ready", "down"):
        house.live.state = state
        assert len(house.judge()) == 1
    assert caplog.text.count("alerts are not kept for a restart") == 1


def test_an_alert_can_be_acknowledged(house):
    house.live.state = "down"
    house.judge()
    fingerprint = house.ask()["alerts"][0]["fingerprint"]
    path = f"/alerts/{fingerprint}/acknowledge"
    assert house.ask(path, "POST", hours=4)["acknowledged_until"] is not None
    house.live.state = "ready"
    assert house.judge() == []
    assert house.ask()["alerts"][0]["state"] == "resolved"
    assert house.ask(path, "POST", 404, hours=4)["error"]["code"] == "not_found"


@pytest.mark.parametrize("hours", [-1, 721, "4", None])
def test_hours_that_cannot_be_are_refused(house, hours):
    error = house.ask(f"/alerts/{'0' * 16}/acknowledge", "POST", 422, hours=hours)["error"]
    assert error["param"] == "hours"


def test_nobody_sees_alerts_without_the_key(house):
    house.key = "cpa-x-y"
    house.ask(status=401)
    house.ask("/alerts/0/acknowledge", "POST", 401, hours=1)


def test_rules_that_are_off_are_no_alerts(database):
    setup = set_up_alerts(AlertsConfig(rules={"model_down": RuleConfig(enabled=False)}))
    live = Live()
    live.state = "down"
    watch = make_alert_watch(setup, live, database, lambda ease: ())
    assert asyncio.run(watch.judge()) == []
