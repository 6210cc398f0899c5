"""A real vLLM, where CARPOOL_TEST_VLLM names its executable and CARPOOL_TEST_VLLM_MODEL a model."""

import asyncio
import os
import signal

import pytest

from carpool.backends.backend import BackendState
from carpool.backends.supervision import RestartPolicy
from carpool.backends.supervisor import Supervisor
from carpool.backends.vllm import launch_vllm
from carpool.scheduling.capacity import Provenance

EXECUTABLE = os.environ.get("CARPOOL_TEST_VLLM", "")
MODEL = os.environ.get("CARPOOL_TEST_VLLM_MODEL", "")
LOAD_S = 1200

pytestmark = pytest.mark.skipif(
    not (EXECUTABLE and MODEL), reason="needs CARPOOL_TEST_VLLM and CARPOOL_TEST_VLLM_MODEL"
)


def test_it_is_launched_read_killed_and_back():
    backend = launch_vllm(
        "main",
        MODEL,
        max_num_seqs=8,
        max_model_len=2048,
        options=("--dtype", "bfloat16"),
        executable=EXECUTABLE,
    )

    async def run():
        supervisor = Supervisor(backend, policy=RestartPolicy(first_delay_s=0.05))
        supervisor.start()
        async with asyncio.timeout(LOAD_S):
            first = await supervisor.wait_until(BackendState.READY)
            over_http = await backend.read_facts()
            load = await backend.read_load()
            await backend.find_model()
            os.kill(supervisor.pid, signal.SIGKILL)
            await supervisor.wait_until(BackendState.DOWN)
            second = await supervisor.wait_until(BackendState.READY)
            await supervisor.stop(30)
        return first, second, over_http, load

    first, second, over_http, load = asyncio.run(run())
    assert (first.capacity.max_num_seqs, first.capacity.max_model_len) == (8, 2048)
    assert first.capacity.provenance is Provenance.REPORTED
    assert first.capacity.kv_tokens == over_http.kv_tokens > 2048
    assert over_http.max_model_len == 2048
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert backend.model == MODEL
    assert (second.life, second.capacity.max_num_seqs) == (2, 8)
