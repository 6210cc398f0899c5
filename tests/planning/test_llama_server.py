"""The plan for llama-server, against what it says of itself when it starts."""

import re
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

from carpool.cli.serve_plan import plan_to_serve
from carpool.models.cache import ModelCache
from carpool.models.catalogue import SMOLLM2_135M

PROGRAM = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames, params.port = ["127.0.0.1"], 0
params.n_parallel, params.n_ctx, params.cpuparams.n_threads = 8, 8 * 4096, 1
params.verbosity = 5
xllamacpp.Server(params)
"""


LINES = {
    "cache": re.compile(r"llama_kv_cache: size = +([\d.]+) MiB"),
    "weights": re.compile(r"file size += ([\d.]+) MiB"),
}
LONGEST_START_S = 60.0


def mebibytes_in_log(gguf: Path) -> dict[str, float]:
    """What it says while it starts; it is stopped when it has said all."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(gguf)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        end = Timer(LONGEST_START_S, process.kill)
        end.start()
        found: dict[str, float] = {}
        assert process.stdout is not None
        for line in process.stdout:
            said = {name: match for name, regex in LINES.items() if (match := regex.search(line))}
            found |= {name: float(match[1]) for name, match in said.items()}
            if found.keys() == LINES.keys():
                break
        end.cancel()
        process.kill()
    return found


@pytest.mark.model
def test_its_cache_and_weights_are_as_planned(model_folder: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'carpool[bench]'")
    gguf = ModelCache(model_folder.parent.parent).blob(SMOLLM2_135M.sha256)
    if not gguf.is_file():
        pytest.skip("the demo model's GGUF is not in the cache")
    plan = plan_to_serve("llama.cpp", str(gguf), [])
    log = mebibytes_in_log(gguf)
    assert plan.pool.num_bytes / 2**20 == pytest.approx(log["cache"], rel=0.001)
    assert plan.memory.weights.value / 2**20 == pytest.approx(log["weights"], rel=0.001)
