"""A real server with the demo model, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DRAIN_S = 30


@pytest.fixture(scope="session")
def server_url(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Root URL of `carpool engine smollm2-135m` on a free port, once it is ready."""
    log = tmp_path_factory.mktemp("server") / "stderr.log"
    carpool = Path(sys.executable).with_name("carpool")
    command = [carpool, "engine", "smollm2-135m", "--port", "0", "--json"]
    # At f32 the same prompt gives the same text whoever else is in the batch.
    command += ["--dtype", "f32", "--kv-cache-dtype", "f32"]
    command += ["--kv-cache-memory", "512MiB", "--max-model-len", "4096"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    with process:
        try:
            ready = process.stdout.readline() if process.stdout else ""
            if not ready:
                pytest.fail(f"the server did not start:\n{log.read_text()}")
            yield json.loads(ready)["base_url"].removesuffix("/v1")
            process.terminate()
            process.wait(DRAIN_S)
        finally:
            process.kill()
