"""`carpool engine` as a process: what it refuses to start with, and how it leaves."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from carpool.engine.resolve import resolve
from carpool.models.cache import ModelCache
from carpool.models.resolved import ResolvedModel
from carpool.serving.listen import Address, listening

CARPOOL = Path(sys.executable).with_name("carpool")
PATIENCE_S = 60

Serve = Callable[..., str]


@pytest.fixture
def refusal(cache: ModelCache) -> Serve:
    """Start a server that cannot start; the one line that it leaves on stderr."""

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [CARPOOL, "engine", *map(str, arguments)],
            env=os.environ | {"CARPOOL_HOME": str(cache.home)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        assert line.startswith("carpool: ")
        return line

    return run


@pytest.fixture
def tiny(cache: ModelCache, write_gguf: Callable[..., Path]) -> ResolvedModel:
    return resolve(str(write_gguf()), cache)


def test_a_wrong_option_is_told_in_the_last_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "carpool", "engine", "--max-num-sequences", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "No such option: --max-num-sequences" in done.stderr.splitlines()[-1]


def test_a_port_in_use_is_named(refusal: Serve, tiny: ResolvedModel) -> None:
    with listening(Address(port=0)) as listener:
        port = listener.getsockname()[1]
        line = refusal("tiny", "--port", port)
    assert f"port {port}" in line
    assert "--port" in line


def test_a_path_that_is_no_socket_is_left_alone(
    refusal: Serve, tiny: ResolvedModel, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    assert "--uds" in refusal("tiny", "--uds", path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", ["smollm3", "/no/such/model.gguf"])
def test_a_model_that_is_not_there_is_named(refusal: Serve, name: str) -> None:
    assert name in refusal(name, "--port", 0)


@pytest.mark.parametrize("share", [0.05, 0.99])
def test_a_file_that_is_cut_off_is_named(
    refusal: Serve, write_gguf: Callable[..., Path], share: float
) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert str(path) in refusal(path, "--port", 0)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("openvino_model.bin", b"garbage"),
        ("openvino_model.xml", None),
        ("openvino_tokenizer.xml", b"garbage"),
        ("openvino_tokenizer.bin", b"garbage"),
    ],
)
def test_a_folder_with_a_broken_file_is_named(
    refusal: Serve, tiny: ResolvedModel, tmp_path: Path, name: str, data: bytes | None
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny.folder, folder)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(data or whole[: len(whole) // 2])
    assert str(folder) in refusal(folder, "--port", 0)


def test_a_chat_template_that_is_none_is_told(
    refusal: Serve, write_gguf: Callable[..., Path], cache: ModelCache
) -> None:
    path = write_gguf(**{"tokenizer.chat_template": "{% if %}"})
    resolve(str(path), cache)
    assert "chat template is broken" in refusal(path, "--port", 0)


def test_too_little_memory_says_how_much_is_needed(refusal: Serve, tiny: ResolvedModel) -> None:
    line = refusal("tiny", "--port", 0, "--kv-cache-memory", "64KiB")
    assert "--kv-cache-memory" in line
    assert "--max-model-len 512" in line


def test_a_context_longer_than_the_models_is_refused(refusal: Serve, tiny: ResolvedModel) -> None:
    line = refusal("tiny", "--port", 0, "--max-model-len", 1000)
    assert "1,000" in line
    assert "512" in line


class Server:
    """A server with the demo model on a Unix socket."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.process = process
        self.path = path
        transport = httpx.HTTPTransport(uds=str(path))
        self.client = httpx.Client(
            transport=transport, base_url="http://localhost", timeout=PATIENCE_S
        )

    def state(self) -> str:
        return self.client.get("/ready").json()["status"]

    @contextmanager
    def stream(self, max_tokens: int) -> Iterator[Iterator[str]]:
        """The lines of a stream of `max_tokens` tokens."""
        body = {"prompt": "Once", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        with self.client.stream("POST", "/v1/completions", json=body) as response:
            yield (line for line in response.iter_lines() if line)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


@pytest.fixture
def start(model_folder: Path, tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Start a server; it listens, and may still be loading."""
    servers: list[Server] = []

    def run() -> Server:
        path = tmp_path / "s.sock"
        command = [CARPOOL, "engine", "smollm2-135m", "--uds", path, "--json"]
        command += ["--weights", "compressed", "--kv-cache-memory", "256MiB"]
        command += ["--max-model-len", "4096"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        servers.append(Server(process, path))
        until(path.exists)
        return servers[-1]

    yield run
    for server in servers:
        server.client.close()
        server.process.kill()
        server.process.communicate()


@pytest.mark.model
def test_a_signal_lets_a_stream_finish_and_turns_the_next_away(
    start: Callable[[], Server],
) -> None:
    server = start()
    assert server.process.stdout is not None
    ready = json.loads(server.process.stdout.readline())
    assert ready["uds"] == str(server.path)
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    with server.stream(max_tokens=100) as lines:
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.state() == "draining")
        refused = server.client.post("/v1/completions", json={"prompt": "Once"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        *_, last, done = lines
    assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert done == "data: [DONE]"
    assert server.process.wait(PATIENCE_S) == 0
    assert not server.path.exists()
    assert server.process.stderr is not None
    [line] = server.process.stderr.read().splitlines()
    assert "finishing what runs (1)" in line


@pytest.mark.model
def test_a_second_signal_ends_it_at_once(start: Callable[[], Server]) -> None:
    server = start()
    until(lambda: server.state() == "ready")
    with server.stream(max_tokens=3000) as lines:
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.state() == "draining")
        server.process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        assert len(list(lines)) < 3000
    assert server.process.wait(PATIENCE_S) == 0
    assert time.monotonic() - asked < 2.5
    assert not server.path.exists()


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_loads_ends_it(start: Callable[[], Server], number: int) -> None:
    server = start()
    response = server.client.get("/ready")
    assert response.json() == {"status": "loading"}
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert server.client.get("/health").status_code == 200
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE_S) == 0
    assert not server.path.exists()
