"""The engine that is verified: one that runs already, or one that is started for it."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from carpool.backends.address import Address
from carpool.backends.backend import Backend, BackendKind, BackendState, BackendUnreachable
from carpool.backends.capacity_facts import json_object
from carpool.backends.create import attach, launch
from carpool.backends.http_get import http_get
from carpool.backends.supervision import BackendStatus
from carpool.backends.supervisor import Supervisor
from carpool.bench.errors import BenchError
from carpool.bench.listener import listening_pid
from carpool.bench.target import Target, find_target
from carpool.scheduling.capacity import Capacity

STOP_S = 5.0
TIMEOUT_S = 5.0
_PREFIXES = {
    "vllm:": BackendKind.VLLM,
    "sglang:": BackendKind.SGLANG,
    "llamacpp:": BackendKind.LLAMA_CPP,
    "carpool_kv_cache_": BackendKind.EMBEDDED,
}
_VERSIONS = {
    BackendKind.VLLM: ("/version", "version"),
    BackendKind.SGLANG: ("/get_server_info", "version"),
    BackendKind.LLAMA_CPP: ("/props", "build_info"),
    BackendKind.OLLAMA: ("/api/version", "version"),
}
_SAMPLE = re.compile(r"^(carpool_kv_cache_blocks_\w+) ([0-9.e+]+)$", re.MULTILINE)


class EngineUnderTest:
    """`capacity` is what it reports."""

    def __init__(
        self,
        target: Target,
        backend: Backend,
        capacity: Capacity,
        version: str,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.target = target
        self.kind = backend.kind
        self.capacity = capacity
        self.version = version
        self._supervisor = supervisor

    @property
    def pid(self) -> int | None:
        """Of an engine that was attached to: where this machine tells."""
        if self._supervisor is not None:
            return self._supervisor.pid
        address = self.target.address
        if address.uds is not None or not is_loopback(address):
            return None
        return listening_pid(address.port)

    @property
    def is_started_here(self) -> bool:
        return self._supervisor is not None

    async def check_alive(self) -> None:
        """Raises BenchError if it is gone, or a new process is in its place."""
        status = None if self._supervisor is None else self._supervisor.status
        if status is not None and (status.life > 1 or status.state is BackendState.DOWN):
            raise BenchError(status.reason or "the engine ended, and was started again")
        await find_target(
            str(self.target.address), model=self.target.model, api_key=self.target.api_key
        )

    def facts(self) -> dict[str, object]:
        """What an embedded engine said when it was ready."""
        lines = () if self._supervisor is None else self._supervisor.last_lines
        said = (json_object(line) for line in lines if line.startswith("{"))
        return next((dict(fields) for fields in said if "kv_bytes_per_token" in fields), {})

    async def overhead_bytes(self, used_bytes: int) -> int | None:
        """Of `used_bytes` of memory, what is neither weights nor written cache; None where the
        engine does not say what those are."""
        facts = self.facts()
        weights, per_token = facts.get("weight_bytes"), facts.get("kv_bytes_per_token")
        if not isinstance(weights, int) or not isinstance(per_token, int):
            return None
        try:
            answer = await http_get(self.target.address, "/metrics", timeout_s=TIMEOUT_S)
        except BackendUnreachable:
            return None
        found = dict(_SAMPLE.findall(answer.body.decode("utf-8", "replace")))
        blocks = {name.rpartition("_")[2]: float(value) for name, value in found.items()}
        if not blocks.get("total"):
            return None
        # The system hands out the cache's memory as it is written.
        share = (blocks.get("used", 0.0) + blocks.get("cached", 0.0)) / blocks["total"]
        return max(0, int(used_bytes - weights - share * per_token * self.capacity.kv_tokens))


@asynccontextmanager
async def attached(
    url: str, *, model: str | None, api_key: str | None
) -> AsyncIterator[EngineUnderTest]:
    """An engine that runs at `url`, like http://HOST:PORT or vllm+http://HOST:PORT; without the
    kind, it is known by its metrics. Raises BenchError."""
    kind, plus, rest = url.partition("+")
    is_named = bool(plus) and "/" not in kind
    target = await find_target(rest if is_named else url, model=model, api_key=api_key)
    if not is_named:
        found = await _kind_at(target)
        url = f"{found.value}+{target.address}"
    backend = attach("verified", url, model=target.model, api_key=api_key)
    try:
        capacity = await backend.read_capacity()
    except BackendUnreachable as error:
        raise BenchError(str(error)) from None
    yield EngineUnderTest(target, backend, capacity, await _version(target, backend.kind))


@asynccontextmanager
async def started(
    kind: str, model: str, run_folder: Path, options: Sequence[str], version: str
) -> AsyncIterator[EngineUnderTest]:
    """An engine of our own, stopped at the end. Raises BenchError where it does not start."""
    supervisor = Supervisor(launch(kind, "verified", model, run_folder=run_folder, options=options))
    supervisor.start()
    try:
        status = await _ready(supervisor)
        backend = supervisor.backend
        if status.capacity is None or backend.model is None:
            raise BenchError("the engine does not say what it serves")
        target = await find_target(
            str(backend.address), model=backend.model, api_key=backend.api_key
        )
        version = await _version(target, backend.kind) or version
        yield EngineUnderTest(target, backend, status.capacity, version, supervisor)
    finally:
        await supervisor.stop(STOP_S)


async def _ready(supervisor: Supervisor) -> BackendStatus:
    """Ready in its first life: one that dies while it loads would die again."""
    ready = asyncio.ensure_future(supervisor.wait_until(BackendState.READY))
    down = asyncio.ensure_future(supervisor.wait_until(BackendState.DOWN))
    mistake = asyncio.ensure_future(supervisor.wait_for_mistake())
    try:
        await asyncio.wait((ready, down, mistake), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            return ready.result()
        raise BenchError(mistake.result() if mistake.done() else down.result().reason)
    finally:
        for each in (ready, down, mistake):
            each.cancel()


@dataclass(frozen=True, slots=True)
class _Page:
    status: int
    text: str


async def _page(target: Target, path: str) -> _Page:
    """Nothing for what cannot be had: not every engine has every page."""
    try:
        answer = await http_get(target.address, path, timeout_s=TIMEOUT_S, headers=target.headers)
    except BackendUnreachable:
        return _Page(0, "")
    return _Page(answer.status, answer.body.decode("utf-8", "replace"))


async def _kind_at(target: Target) -> BackendKind:
    metrics = (await _page(target, "/metrics")).text
    for prefix, kind in _PREFIXES.items():
        if re.search(rf"^{prefix}", metrics, re.MULTILINE):
            return kind
    if "total_slots" in json_object((await _page(target, "/props")).text):
        return BackendKind.LLAMA_CPP
    if (await _page(target, "/api/version")).status == 200:
        return BackendKind.OLLAMA
    return BackendKind.REMOTE


async def _version(target: Target, kind: BackendKind) -> str:
    """Empty where it does not say."""
    path, name = _VERSIONS.get(kind, ("", ""))
    if not path:
        return ""
    value = json_object((await _page(target, path)).text).get(name)
    return value if isinstance(value, str) else ""


def is_loopback(address: Address) -> bool:
    """Whether it runs on this machine, as far as its address tells."""
    return address.uds is not None or address.host in ("localhost", "127.0.0.1", "::1")
