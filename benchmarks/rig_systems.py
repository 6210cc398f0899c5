"""What the gateway's benchmark measures: Carpool, nginx and LiteLLM in front of one engine."""

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig_carpool import StartFailed, carpool_gateway, make_keys, stop
from benchmarks.rig_cores import on_core
from benchmarks.rig_engine import MODEL
from carpool.store.limits import Limits

PEERS = Path(__file__).parents[1] / ".venv/peers"
START_S = 120.0
# All that is checked is on, and lets everything through.
_LIMITS = Limits(
    rpm=10**9, tpm=10**12, max_in_flight=10**6, daily_tokens=10**14, monthly_tokens=10**15
)
_NGINX = """
worker_processes 1;
daemon off;
pid {home}/nginx.pid;
error_log stderr;
{user}
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    keepalive_requests 1000000000;
    upstream engine {{
        server 127.0.0.1:{engine};
        keepalive 512;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            client_max_body_size 8m;
        }}
    }}
}}
"""
_LITELLM = """
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{engine}/v1
      api_key: none
general_settings:
  master_key: {key}
"""


@dataclass(frozen=True, slots=True)
class System:
    """Something that answers chat completions for `key` on `port` of this machine."""

    port: int
    key: str = ""
    model: str = MODEL


def nginx_program() -> str | None:
    return shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


def litellm_program() -> str | None:
    return shutil.which(str(PEERS / "bin/litellm"))


@asynccontextmanager
async def carpool(
    engine: int, core: int | None, home: Path, profile: Path | None = None
) -> AsyncIterator[System]:
    """With a key that has every limit, the fair queue and the ledger in SQLite. `profile`: run
    it under cProfile, which writes its figures to that file."""
    database = home / "carpool.db"
    key = make_keys(database, ["ada"], _LIMITS)[0]
    python = ["-m", "carpool"]
    if profile is not None:
        python = ["-m", "cProfile", "-o", str(profile), *python]
    url = f"sglang+http://127.0.0.1:{engine}"
    async with carpool_gateway("team", url, database, python=python, core=core) as gateway:
        yield System(gateway.port, key, "team")


@asynccontextmanager
async def nginx(engine: int, core: int | None, home: Path) -> AsyncIterator[System]:
    """As a reverse proxy that knows nobody: what forwarding alone costs."""
    port = _free_port()
    user = "user root;" if os.geteuid() == 0 else ""
    config = home / "nginx.conf"
    config.write_text(_NGINX.format(home=home, engine=engine, port=port, user=user))
    command = [str(nginx_program()), "-p", str(home), "-e", "stderr", "-c", str(config)]
    async with _started(command, core, home / "nginx.log", port, "/health"):
        yield System(port)


@asynccontextmanager
async def litellm(engine: int, core: int | None, home: Path) -> AsyncIterator[System]:
    """One worker, a master key, no database: keys, limits and usage of its own are off."""
    port, key = _free_port(), f"sk-{secrets.token_hex(16)}"
    config = home / "litellm.yaml"
    config.write_text(_LITELLM.format(model=MODEL, engine=engine, key=key))
    command = [str(litellm_program()), "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    async with _started(command, core, home / "litellm.log", port, "/health/liveliness"):
        yield System(port, key)


@asynccontextmanager
async def _started(
    command: list[str], core: int | None, log: Path, port: int, health: str
) -> AsyncIterator[None]:
    process = _spawned(command, core, log)
    try:
        await asyncio.to_thread(_wait_until_healthy, process, port, health, log)
        yield
    finally:
        await stop(process)


def _spawned(command: list[str], core: int | None, log: Path) -> "subprocess.Popen[bytes]":
    # LiteLLM would fetch its list of prices from the network.
    env = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    with log.open("wb") as output, on_core(core):
        return subprocess.Popen(command, stdout=output, stderr=output, env=env)


def _wait_until_healthy(
    process: "subprocess.Popen[bytes]", port: int, path: str, log: Path
) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    words = log.read_text(errors="replace")[-2000:]
    raise StartFailed(f"{process.args!r} was not healthy within {START_S:.0f} s:\n{words}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
