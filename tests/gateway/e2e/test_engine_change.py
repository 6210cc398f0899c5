"""One engine takes another's place while people ask: nobody notices, and a restart keeps it."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_process import MODEL, GatewayProcess, Person, gateway_process, until

from carpool.gateway.config_file import read_config
from carpool.gateway.lock_file import LockFile, Pin
from carpool.gateway.model_config import BackendConfig
from carpool.store.admin_key import AdminKeyStore

ENGINE = Path(__file__).parents[2] / "evals" / "mock_version.py"
CONFIG = f"""
[[models]]
name = "{MODEL}"
[[models.backends]]
engine = "vllm"
version = "1.0"
max_num_seqs = 64
program = ["{sys.executable}", "{ENGINE}", "{{version}}"]
args = ["--delay", "0.02"]
"""
NUM_ASKING = 8
START_S = 60


class Admin:
    """Whoever has the admin key of a gateway."""

    def __init__(self, gateway: GatewayProcess, folder: Path) -> None:
        assert gateway.admin_url is not None
        key = AdminKeyStore(gateway.store.database).renew().text
        headers = {"authorization": f"Bearer {key}"}
        url = f"{gateway.admin_url}/admin/v1"
        self.http = httpx.Client(base_url=url, headers=headers, timeout=10)
        self.lock = LockFile(folder / "carpool.lock")
        (self.model,) = read_config(folder / "carpool.toml").models

    def engines(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.http.get("/engines").json()["engines"]
        return listed

    def offer(self, version: str, program: tuple[str, ...] = ()) -> None:
        """Write a candidate into the lock file."""
        backend = self.model.backends[0]
        changed = BackendConfig(
            engine="vllm",
            version=version,
            program=program or backend.program,
            args=backend.args,
        )
        self.lock.set_candidate(self.model, Pin(backend=changed))

    def start(self) -> httpx.Response:
        return self.http.post("/engines", json={"model": MODEL})

    def started(self, version: str) -> str:
        """The id of a standby of this version that is ready."""
        self.offer(version)
        answer = self.start()
        assert answer.status_code == 201, answer.text
        engine_id: str = answer.json()["engine_id"]
        until(lambda: self.engine(engine_id)["state"] == "ready", START_S)
        return engine_id

    def engine(self, engine_id: str) -> dict[str, Any]:
        return next(each for each in self.engines() if each["engine_id"] == engine_id)

    def promote(self, engine_id: str, replaces: str) -> httpx.Response:
        return self.http.post(f"/engines/{engine_id}/promote", json={"replaces": replaces})

    def end(self, engine_id: str) -> httpx.Response:
        return self.http.request("DELETE", f"/engines/{engine_id}", json={})

    def version_of(self, engine_id: str) -> str:
        version: str = self.http.get(f"/engines/{engine_id}/at/version").json()["version"]
        return version


@contextmanager
def serving(home: Path) -> Iterator[tuple[GatewayProcess, Admin]]:
    with gateway_process("", home, "--admin-port", "0", config=CONFIG) as gateway:
        admin = Admin(gateway, home)
        yield gateway, admin
        admin.http.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, Admin]]:
    with serving(tmp_path_factory.mktemp("served")) as both:
        yield both


@contextmanager
def asking(person: Person) -> Iterator[Callable[[], int]]:
    """NUM_ASKING people ask without a pause, streams and whole answers; every answer is checked.
    Gives how many there were so far."""
    is_over, counts = threading.Event(), [0] * NUM_ASKING

    def ask(number: int) -> None:
        while not is_over.is_set():
            if number % 2:
                with person.stream(messages=[{"role": "user", "content": "Hi"}]) as answer:
                    text = answer.read().decode()
                assert text.rstrip().endswith("[DONE]"), text[-200:]
            else:
                whole = person.ask()
                assert whole.status_code == 200, whole.text
                assert whole.json()["choices"][0]["message"]["content"]
            counts[number] += 1

    with ThreadPoolExecutor(NUM_ASKING) as pool:
        tasks = [pool.submit(ask, number) for number in range(NUM_ASKING)]
        try:
            yield lambda: sum(counts)
        finally:
            is_over.set()
            for task in tasks:
                task.result()


def test_no_request_is_lost_when_an_engine_takes_over(
    served: tuple[GatewayProcess, Admin],
) -> None:
    gateway, admin = served
    (old,) = admin.engines()
    with asking(gateway.visitor) as num_answers:
        new = admin.started("1.1")
        assert admin.version_of(old["engine_id"]) != admin.version_of(new)
        until(lambda: num_answers() > 50, START_S)
        assert admin.promote(new, old["engine_id"]).status_code == 200
        until(lambda: [each["engine_id"] for each in admin.engines()] == [new], START_S)
        so_far = num_answers()
        until(lambda: num_answers() > so_far + 50, START_S)
    (engine,) = admin.engines()
    assert engine["role"] == "serving"
    assert engine["config"]["version"] == "1.1"
    assert engine["config"]["max_num_seqs"] == 64
    assert engine["previous"]["backend"]["version"] == "1.0"
    rows = gateway.rows(gateway.visitor)
    assert {row["status"] for row in rows} == {200}


def test_a_candidate_that_cannot_run_says_so_and_is_ended(
    served: tuple[GatewayProcess, Admin],
) -> None:
    gateway, admin = served
    admin.offer("1.1", ("/no/such/{version}/engine",))
    engine_id = admin.start().json()["engine_id"]
    until(lambda: admin.engine(engine_id)["is_hopeless"], START_S)
    engine = admin.engine(engine_id)
    assert engine["role"] == "standby"
    assert "cannot run /no/such/1.1/engine" in engine["reason"]
    serving = next(each for each in admin.engines() if each["role"] == "serving")
    refused = admin.promote(engine_id, serving["engine_id"])
    assert refused.status_code == 409
    assert "only a standby that is ready takes over" in refused.json()["error"]["message"]
    second = admin.start()
    assert second.status_code == 409
    assert "another upgrade is under way" in second.json()["error"]["message"]
    assert admin.end(engine_id).status_code == 200
    assert [each["role"] for each in admin.engines()] == ["serving"]
    assert gateway.visitor.ask().status_code == 200


def test_what_cannot_be_done_to_engines_is_refused(served: tuple[GatewayProcess, Admin]) -> None:
    gateway, admin = served
    (serving,) = (each["engine_id"] for each in admin.engines() if each["role"] == "serving")
    assert admin.end(serving).status_code == 409
    assert admin.end("e99").status_code == 404
    assert admin.promote("e99", serving).status_code == 404
    assert admin.promote(serving, serving).status_code == 409
    assert admin.http.post("/engines", json={"model": "other"}).status_code == 404
    assert admin.http.post("/engines", json={"model": MODEL, "program": "sh"}).status_code == 422
    assert admin.http.get("/engines/e99/at/version").status_code == 404
    stranger = httpx.get(f"{gateway.admin_url}/admin/v1/engines")
    assert stranger.status_code == 401
    admin.lock.set_candidate(admin.model, None)
    assert "has no candidate" in admin.start().json()["error"]["message"]
