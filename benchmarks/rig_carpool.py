"""The real gateway as a process, with people and keys made in advance."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.rig_cores import on_core
from carpool.serving.http_server import run
from carpool.store.database import open_database
from carpool.store.key_store import KeyStore
from carpool.store.limits import Limits

STOP_S = 40.0
T = TypeVar("T")


class StartFailed(Exception):
    """A process of the rig did not become ready; says where its log is."""


def run_rig(work: Coroutine[Any, Any, T]) -> T:
    """On uvloop; SIGTERM, like Ctrl-C, stops what the rig has started before it exits."""

    async def cancellable() -> T:
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return run(cancellable())
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Gateway:
    """One that is ready."""

    port: int
    pid: int


def make_keys(database: Path, people: Iterable[str], limits: Limits) -> list[str]:
    """A key for each of `people`, in a new SQLite file or an old one."""
    with closing(open_database(f"sqlite:///{database}")) as opened:
        store = KeyStore(opened)
        return [store.add_key_for(name, limits=limits)[1].text for name in people]


@asynccontextmanager
async def carpool_gateway(
    model: str,
    backend: str,
    database: Path,
    *,
    options: Sequence[str] = (),
    python: Sequence[str] = ("-m", "carpool"),
    core: int | None = None,
) -> AsyncIterator[Gateway]:
    """`carpool serve` on a free port, on one core if that is given, until the `async with` ends.
    Its log is beside the database. `python` is how the command is run. Raises StartFailed."""
    command = [sys.executable, *python, "serve", model, "--backend", backend, "--port", "0"]
    command += ["--json", "--database", f"sqlite:///{database}", *options]
    log = database.with_suffix(".log")
    process = _spawned(command, core, log)
    try:
        line = await asyncio.to_thread(process.stdout.readline) if process.stdout else ""
        if not line.startswith("{"):
            raise StartFailed(f"carpool serve did not start:\n{log.read_text()[-2000:]}")
        url = json.loads(line)["base_url"]
        yield Gateway(int(url.rsplit(":", 1)[1].split("/")[0]), process.pid)
    finally:
        await stop(process)
        if process.stdout:
            process.stdout.close()


def _spawned(command: Sequence[str], core: int | None, log: Path) -> "subprocess.Popen[str]":
    with log.open("ab") as stderr, on_core(core):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)


async def stop(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL for one that does not mind it."""
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
