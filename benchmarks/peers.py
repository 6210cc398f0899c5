"""The engines that are measured, each in a process of its own, one after the other."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CACHE_MIB = 2048
MAX_NUM_SEQS = 32


@dataclass(frozen=True, slots=True)
class Server:
    """A server on this machine that speaks OpenAI's API."""

    port: int
    pid: int
    facts: dict[str, Any]

    @property
    def peak_rss_bytes(self) -> int:
        """The process's VmHWM (Linux)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise ValueError(f"no VmHWM for process {self.pid}")


@contextmanager
def carpool_server(model: str, threads: int, *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "carpool", "engine", model, "--port", "0", "--json"]
    command += ["--threads", str(threads), "--max-num-seqs", str(MAX_NUM_SEQS)]
    command += ["--kv-cache-memory", f"{CACHE_MIB}MiB", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("no output from carpool engine")
        facts = json.loads(process.stdout.readline())
        port = int(facts["base_url"].rsplit(":", 1)[1].split("/")[0])
        yield Server(port, process.pid, facts)
    finally:
        process.terminate()
        process.wait(30)


def has_llama_server() -> bool:
    return find_spec("xllamacpp") is not None


@contextmanager
def llama_server(gguf: Path, threads: int) -> Iterator[Server]:
    port = 18200
    command = [sys.executable, "-m", "benchmarks.llama_server", str(gguf)]
    command += [str(port), str(threads), str(MAX_NUM_SEQS)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_healthy(port, process)
        yield Server(port, process.pid, {})
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_healthy(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("llama-server did not become healthy within 60 s")


def run_genai(
    folder: Path, threads: int, levels: Sequence[Sequence[Sequence[int]]], output_len: int
) -> list[dict[str, Any]]:
    """Run each level's prompts through GenAI's pipeline in a child; see `genai_pipeline`."""
    work = {"folder": str(folder), "threads": threads, "levels": levels, "output_len": output_len}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.genai_pipeline"],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OPENVINO_LOG_LEVEL": "0"},
    )
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results
