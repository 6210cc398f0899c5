"""The real gateway as a process of its own, the scripted engine behind it, people with keys.

with ScriptedEngine().serving() as engine, gateway_process(engine.url, home) as gateway:
    ada = gateway.add_person(rpm=10)
    assert ada.ask().status_code == 200
"""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from mock_engine import (
    MockEngine,
    Reply,
    Script,
    SeenClose,
    SeenRequest,
    answer,
    chat_body,
    json_reply,
    reply_of,
    serving,
)
from prometheus_client.parser import text_string_to_metric_families

from carpool.store.database import Database
from carpool.store.key_store import KeyStore, NewKey
from carpool.store.limits import Limits

CHAT = "/v1/chat/completions"
TEXT = (("content-type", "text/plain"),)
MODEL = "team-model"
ALIAS = "fast"
MESSAGES = [{"role": "user", "content": "Hello!"}]
PATIENCE_S = 10.0
NUM_IN_ADVANCE = 8
_names = (f"person-{number}" for number in count())


def until(is_so: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """What `is_so` returns, as soon as that is true. Fails after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not (result := is_so()):
        assert time.monotonic() < deadline, f"still not so after {within_s} s"
        time.sleep(0.005)
    return result


class ScriptedEngine:
    """A mock engine that answers probes like SGLang, with the capacity of its arguments, and
    everything else by `script`, which a test may set at any time."""

    def __init__(self, max_num_seqs: int = 16, kv_tokens: int = 1_000_000) -> None:
        self.script: Script = plausible
        self.models = (MODEL,)
        self.is_loading = False
        self.load: tuple[int, int] | None = None
        """Requests that it says are running and waiting, whosever they are."""
        self._info = {
            "max_running_requests": max_num_seqs,
            "max_total_num_tokens": kv_tokens,
            "context_length": kv_tokens,
        }
        self._mock: MockEngine

    @contextlib.contextmanager
    def serving(self, port: int = 0) -> Iterator["ScriptedEngine"]:
        with serving(self._reply, port=port) as self._mock:
            yield self

    @property
    def url(self) -> str:
        return f"sglang+{self._mock.url}"

    @property
    def asked(self) -> list[SeenRequest]:
        """What was to be answered, without probes, since `forget`."""
        return [request for request in self._mock.requests if request.method == "POST"]

    @property
    def num_probes(self) -> int:
        return sum(request.method == "GET" for request in self._mock.requests)

    @property
    def left(self) -> list[SeenClose]:
        """Answers of which the gateway closed the connection before their end."""
        return [close for close in self._mock.closes if close.num_pieces is not None]

    @property
    def num_polls(self) -> int:
        """How often somebody has asked how busy it is."""
        return sum(request.path == "/metrics" for request in self._mock.requests)

    @property
    def most_at_once(self) -> int:
        return self._mock.most_posts

    def forget(self) -> None:
        """As new: the script, and what was seen."""
        self.script = plausible
        self._mock.requests.clear()
        self._mock.closes.clear()
        self._mock.most_posts = 0

    def slow_down(self, seconds: float) -> None:
        """Whole answers, each after so many seconds."""
        self.script = lambda request: replace(plausible(request), head_delay=seconds)

    @contextlib.contextmanager
    def holding(self, reply: Reply | None = None) -> Iterator[threading.Event]:
        """Answers stop before their first piece, or where `reply` says, until the event is set;
        it is in any case at the end, and later requests get whole answers."""
        released = threading.Event()

        def held(request: SeenRequest) -> Reply:
            whole = reply or plausible(request)
            return replace(whole, stall_after=whole.stall_after or 0, released=released)

        self.script = held
        try:
            yield released
        finally:
            self.script = plausible
            released.set()

    def _reply(self, request: SeenRequest) -> Reply:
        if request.method != "GET":
            return reply_of(self.script, request)
        if self.is_loading:
            return json_reply({"error": {"message": "Loading model"}}, 503)
        if request.path == "/server_info":
            return json_reply(self._info)
        if request.path == "/metrics" and self.load is not None:
            lines = (
                f"sglang:num_running_reqs {self.load[0]}\nsglang:num_queue_reqs {self.load[1]}\n"
            )
            return Reply(headers=TEXT, pieces=(lines.encode(),), framing="length")
        if request.path == "/v1/models":
            return json_reply({"object": "list", "data": [{"id": name} for name in self.models]})
        return answer(request)


def plausible(request: SeenRequest) -> Reply:
    """An answer to a prompt of about as many tokens as its text has."""
    fields = request.json
    if request.path != CHAT or fields.get("stream"):
        return answer(request)
    num_output = fields.get("max_tokens") or 5
    text = " ".join(["word"] * num_output)
    num_prompt = len(request.body) // 4
    return json_reply(chat_body(text, model=fields["model"], prompt=num_prompt, output=num_output))


class GatewayProcess:
    """A gateway that runs. Its answers come to threads of their own with `Person.start`."""

    def __init__(
        self, process: "subprocess.Popen[str]", url: str, database: Path, log: Path
    ) -> None:
        self.process = process
        self.url = url
        self.admin_url: str | None = None
        self.log = log
        self.database = database
        self.journal = database.with_name(f"{database.name}.journal")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.http = httpx.Client(base_url=url, timeout=PATIENCE_S, limits=limits)
        self.pool = ThreadPoolExecutor(64)
        self._people: dict[str, list[Person]] = {}
        self.store = KeyStore(Database(f"sqlite:///{self.database}"))

    @property
    def pid(self) -> int:
        return self.process.pid

    def add_person(self, **options: Any) -> "Person":
        """Somebody with a key that the gateway knows; `options` are limits and key options."""
        return self.add_people(1, **options)[0]

    def add_people(self, num_people: int, **options: Any) -> list["Person"]:
        """As `add_person`; some more are made, for the next who need such: the gateway takes a
        while to see a new key."""
        made = self._people.setdefault(repr(options), [])
        if len(made) < num_people:
            made += self._make_people(num_people + NUM_IN_ADVANCE, options)
        return [made.pop() for _ in range(num_people)]

    def _make_people(self, num_people: int, options: dict[str, Any]) -> list["Person"]:
        names = Limits.__dataclass_fields__.keys() & options.keys()
        limits = Limits(**{name: options[name] for name in names})
        others = {name: value for name, value in options.items() if name not in names}
        people = []
        for _ in range(num_people):
            _, new = self.store.add_key_for(next(_names), None, limits=limits, **others)
            people.append(Person(self, new))
        until(lambda: people[-1].get("/v1/models").status_code == 200)
        return people

    @cached_property
    def visitor(self) -> "Person":
        """Somebody without limits."""
        return self.add_person()

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series with these labels; names without `carpool_gateway_`."""
        families = text_string_to_metric_families(self.metrics())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"carpool_gateway_{name}" and labels.items() <= sample.labels.items()
        )

    def metrics(self) -> str:
        return self.http.get("/metrics").text

    @property
    def num_waiting(self) -> int:
        return int(self.metric("requests_waiting"))

    @property
    def num_in_flight(self) -> int:
        return int(self.metric("requests_in_flight"))

    @property
    def is_idle(self) -> bool:
        return not self.num_waiting and not self.num_in_flight

    def rows(self, person: "Person") -> list[dict[str, Any]]:
        """The person's rows in the ledger so far, oldest first."""
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            connection.row_factory = sqlite3.Row
            query = "SELECT * FROM usage WHERE key_id = ? ORDER BY started_at"
            return [dict(row) for row in connection.execute(query, (person.key_id,))]

    def row(self, person: "Person") -> dict[str, Any]:
        """The first of them, when it is there."""
        return until(lambda: self.rows(person))[0]

    def stop(self, within_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within_s)


class Person:
    """Somebody with a key, who asks the gateway."""

    def __init__(self, gateway: GatewayProcess, new: NewKey) -> None:
        self.gateway = gateway
        self.new = new
        self.key = new.text
        self.key_id = new.key.key_id
        self.person_id = new.key.person_id

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def get(self, path: str) -> httpx.Response:
        return self.gateway.http.get(path, headers=self.headers)

    def ask(
        self,
        path: str = CHAT,
        headers: dict[str, str] | None = None,
        content: bytes | None = None,
        timeout: float = PATIENCE_S,
        **fields: Any,
    ) -> httpx.Response:
        """The whole answer to `content`, or to a small request with `fields` in it."""
        return self.gateway.http.post(
            path,
            headers=self.headers | (headers or {}),
            content=json.dumps(body(path, **fields)).encode() if content is None else content,
            timeout=timeout,
        )

    def start(self, **options: Any) -> "Future[httpx.Response]":
        """`ask`, in another thread."""
        return self.gateway.pool.submit(self.ask, **options)

    @contextlib.contextmanager
    def stream(
        self, path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any
    ) -> Iterator[httpx.Response]:
        """A stream that has begun; leaving early closes its connection."""
        content = json.dumps(body(path, **{"stream": True, **fields})).encode()
        with self.gateway.http.stream(
            "POST", path, headers=self.headers | (headers or {}), content=content
        ) as response:
            yield response

    def revoke(self) -> float:
        """The moment, by time.monotonic."""
        self.gateway.store.revoke(self.key_id)
        return time.monotonic()


def body(path: str = CHAT, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": MESSAGES} if path in (CHAT, "/v1/messages") else {"prompt": "Hello!"}
    return {"model": MODEL, **prompt, **fields}


@contextlib.contextmanager
def gateway_process(
    engine_url: str,
    home: Path,
    *arguments: str,
    model: str = MODEL,
    database: Path | None = None,
    config: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[GatewayProcess]:
    """`carpool serve` on a free port, once it is ready; its log and, by default, its database
    are in `home`. `config`: the text of a configuration file, instead of `engine_url`."""
    home.mkdir(parents=True, exist_ok=True)
    database = database or home / "carpool.db"
    log = home / "stderr.log"
    carpool = Path(sys.executable).with_name("carpool")
    what: Sequence[str | Path] = (model, "--backend", engine_url, "--alias", ALIAS)
    if config is not None:
        file = home / "carpool.toml"
        file.write_text(config)
        what = ("--config", file)
    command: Sequence[str | Path] = (
        *(carpool, "serve", *what, "--port", "0", "--json"),
        *("--database", f"sqlite:///{database}", *arguments),
    )
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | (env or {}),
        )
    with process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            assert line, f"the gateway did not start:\n{log.read_text()}"
            urls = json.loads(line)
            gateway = GatewayProcess(process, urls["base_url"].removesuffix("/v1"), database, log)
            gateway.admin_url = urls["admin_url"]
            try:
                yield gateway
            finally:
                gateway.http.close()
                gateway.pool.shutdown(wait=False, cancel_futures=True)
                gateway.store.database.close()
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE_S)
        finally:
            process.kill()


def connected(gateway: GatewayProcess) -> socket.socket:
    """A connection of its own, for what no HTTP library would send."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def request_bytes(person: Person, **fields: Any) -> bytes:
    """A chat request as it is on the wire."""
    content = json.dumps(body(**fields)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {person.key}\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def raw_answer(gateway: GatewayProcess, request: bytes) -> bytes:
    """All that comes back on a connection of its own until the gateway closes it."""
    with connected(gateway) as connection:
        connection.sendall(request)
        pieces = []
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def chunks_of(text: str) -> list[Any]:
    """The JSON of a stream's events, "[DONE]" as it is."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def read_until_cut(answer: httpx.Response | Iterator[bytes]) -> bytes:
    """What comes of an answer, or what is left of it, whose end never does."""
    pieces = []
    try:
        for piece in answer.iter_bytes() if isinstance(answer, httpx.Response) else answer:
            pieces.append(piece)
    except httpx.RemoteProtocolError:
        return b"".join(pieces)
    raise AssertionError("the answer ended as if it were whole")
