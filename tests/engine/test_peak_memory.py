"""What a loaded engine takes of the machine's memory, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from carpool.models.resolved import ResolvedModel

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no peak of resident memory"),
]

KV_CACHE_MEMORY = 256 * 2**20
OVERHEAD = 700 * 2**20

FILL_THE_CACHE = """
import json, sys
from pathlib import Path
from carpool.engine.generation import GenerationRequest
from carpool.engine.loader import load_model
from carpool.engine.options import Dtype, EngineOptions, KVCacheDtype
from carpool.engine.resolve import resolve
from carpool.engine.executor import ExecutorConfig
from carpool.engine.options import Weights
from carpool.engine.resolve import default_cache
from carpool.engine.sampling_params import SamplingParams
from carpool.engine.weights import prepare_weights

model = resolve("smollm2-135m")
options = EngineOptions(
    kv_cache_memory=int(sys.argv[1]),
    max_model_len=1024,
    dtype=Dtype.F32,
    kv_cache_dtype=KVCacheDtype.F32,
)
config = ExecutorConfig.from_options(options)
path = prepare_weights(default_cache(), model, Weights(sys.argv[2]), config)
loaded = load_model(model, path, options)
core = loaded.core
length, number = 900, 0
while core.stats().scheduler.num_free_blocks > 1:  # The last block of a prompt is not full.
    prompt = tuple((number * 7919 + place) % 40000 + 100 for place in range(length))
    sampling = SamplingParams(max_tokens=2, temperature=0.9, top_p=0.9, logprobs=5)
    core.add(GenerationRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
    number += 1
    while core.has_unfinished:
        core.step()
status = Path("/proc/self/status").read_text()
[peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
print(json.dumps({"peak": int(peak) * 1024, "weights": loaded.executor.weight_bytes}))
"""


@pytest.mark.parametrize("weights", ["compressed", "expanded"])
def test_the_peak_is_the_weights_the_kv_cache_and_no_more_than_700_mib(
    resolved_model: ResolvedModel, weights: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL_THE_CACHE, str(KV_CACHE_MEMORY), weights],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    over = found["peak"] - found["weights"] - KV_CACHE_MEMORY
    print(f"{weights}: {over / 2**20:,.0f} MiB over weights and KV cache")
    assert over <= OVERHEAD, f"{over / 2**20:,.0f} MiB over weights and KV cache"
