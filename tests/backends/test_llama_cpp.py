"""llama.cpp's server: what it prints and answers, recorded, and the real one where installed."""

import asyncio
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from carpool.backends.address import Address
from carpool.backends.backend import BackendState, Command
from carpool.backends.capacity_facts import CapacityFacts
from carpool.backends.llama_cpp import (
    LlamaCppBackend,
    launch_llama_cpp,
    parse_log_line,
    parse_props,
    parse_slots,
)
from carpool.backends.local_port import local_address
from carpool.backends.supervision import RestartPolicy
from carpool.backends.supervisor import Supervisor
from carpool.engine.resolve import default_cache
from carpool.scheduling.capacity import Capacity, Provenance

PROPS = (
    '{"default_generation_settings":{"params":{"temperature":0.8,"n_predict":-1},"n_ctx":512},'
    '"total_slots":4,"model_path":"m.gguf","endpoint_slots":true,"endpoint_metrics":false,'
    '"build_info":"b0-unknown","is_sleeping":false}'
)
SLOTS = (
    '[{"id":0,"n_ctx":512,"speculative":false,"is_processing":false},'
    '{"id":1,"n_ctx":512,"speculative":false,"is_processing":true}]'
)


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            "0.00.541.196 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 512, "
            "kv_unified = 'false'",
            CapacityFacts(4, 2048, 512),
        ),
        (
            "srv    load_model: initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'true'",
            CapacityFacts(4, 8192, 8192),
        ),
        ("srv          init: model loaded", CapacityFacts()),
    ],
)
def test_the_log_says_how_the_slots_were_made(line, facts):
    assert parse_log_line(line) == facts


def test_props_and_slots_say_it_too():
    assert parse_props(PROPS) == CapacityFacts(4, 2048, 512)
    assert parse_slots(SLOTS) == CapacityFacts(2, 1024, 512)
    assert parse_props("{}") == parse_slots("[]") == CapacityFacts()
    assert parse_slots('{"error": {"code": 501}}') == CapacityFacts()


def test_one_that_loads_says_so_and_slots_stand_in_for_props(within, answering):
    async def run():
        async with answering({"/health": (503, "{}"), "/slots": (200, SLOTS)}) as port:
            backend = LlamaCppBackend("main", Address("127.0.0.1", port))
            return await backend.probe(), await backend.read_capacity()

    state, capacity = within(run())
    assert state is BackendState.LOADING
    assert capacity == Capacity(2, 1024, 512, Provenance.REPORTED)


def test_it_is_launched_with_a_whole_context_for_every_slot(tmp_path):
    model = tmp_path / "m.gguf"
    model.touch()
    backend = launch_llama_cpp("main", str(model), max_num_seqs=4, max_model_len=2048)
    argv = backend.command().argv
    assert argv[:3] == ("llama-server", "--model", str(model))
    assert argv[argv.index("--parallel") + 1] == "4"
    assert argv[argv.index("--ctx-size") + 1] == "8192"
    assert backend.command().env == {"LLAMA_API_KEY": backend.api_key}
    assert launch_llama_cpp("main", "org/repo").command().argv[1:3] == ("--hf-repo", "org/repo")


@pytest.mark.model
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the xllamacpp wheel")
def test_the_real_server_is_launched_read_killed_and_back(resolved_model):
    address = local_address()
    gguf = default_cache().blob(resolved_model.source_sha256)
    argv = (sys.executable, "-m", "benchmarks.llama_server", str(gguf))
    argv += (str(address.port), "1", "4")
    root = str(Path(__file__).parents[2])
    backend = LlamaCppBackend("main", address, command=Command(argv, {"PYTHONPATH": root}))

    async def run():
        supervisor = Supervisor(backend, policy=RestartPolicy(first_delay_s=0.05))
        supervisor.start()
        async with asyncio.timeout(60):
            first = await supervisor.wait_until(BackendState.READY)
            os.kill(supervisor.pid, signal.SIGKILL)
            await supervisor.wait_until(BackendState.DOWN)
            second = await supervisor.wait_until(BackendState.READY)
            over_http = await backend.read_facts()
            await supervisor.stop()
        return first, second, over_http

    first, second, over_http = asyncio.run(run())
    assert first.capacity == second.capacity == Capacity(4, 2048, 512, Provenance.REPORTED)
    assert over_http == CapacityFacts(4, 2048, 512)
