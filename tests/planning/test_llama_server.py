"""The plan for llama-server, against what it says of itself when it starts."""

import re
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.model
def test_its_cache_and_weights_are_as_planned(model_folder: Path) -> None:
    pytest.importorskip("xllamacpp", reason="pip install 'carpool[bench]'")
    gguf = ModelCache(model_folder.parent.parent).blob(SMOLLM2_135M.sha256)
    if not gguf.is_file():
        pytest.skip("the demo model's GGUF is not in the cache")
    plan = plan_to_serve("llama.cpp", str(gguf), [])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(gguf)], capture_output=True, text=True, check=True
    )
    log = done.stdout + done.stderr
    cache = re.findall(r"llama_kv_cache: size = +([\d.]+) MiB", log)
    weights = re.search(r"file size += ([\d.]+) MiB", log)
    assert cache
    assert weights
    assert plan.pool.num_bytes / 2**20 == pytest.approx(float(cache[-1]), rel=0.001)
    assert plan.memory.weights.value / 2**20 == pytest.approx(float(weights[1]), rel=0.001)
