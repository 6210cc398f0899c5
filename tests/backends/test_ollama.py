"""What Ollama prints and answers, as recorded from its releases."""

import pytest

from carpool.backends.address import Address
from carpool.backends.backend import BackendState
from carpool.backends.capacity_facts import CapacityFacts
from carpool.backends.ollama import OllamaBackend, launch_ollama, parse_log_line, parse_ps
from carpool.scheduling.capacity import Capacity, Provenance

CONFIG = (
    'time=2026-01-01T17:56:14.862+01:00 level=INFO source=routes.go:1554 msg="server config" '
    'env="map[HTTPS_PROXY: HTTP_PROXY: NO_PROXY: OLLAMA_CONTEXT_LENGTH:{context} '
    "OLLAMA_DEBUG:INFO OLLAMA_FLASH_ATTENTION:false OLLAMA_HOST:http://127.0.0.1:11434 "
    "OLLAMA_KEEP_ALIVE:5m0s OLLAMA_MAX_LOADED_MODELS:0 OLLAMA_MAX_QUEUE:512 "
    "OLLAMA_MODELS:/usr/share/ollama/.ollama/models OLLAMA_NUM_PARALLEL:{parallel} "
    "OLLAMA_ORIGINS:[http://localhost https://localhost app://*] OLLAMA_SCHED_SPREAD:false "
    'http_proxy: https_proxy: no_proxy:]"'
)
PS = """{"models": [
  {"name": "gemma3:latest", "model": "gemma3:latest", "size": 6591830464,
   "expires_at": "2026-10-17T16:47:07Z", "size_vram": 5333539264, "context_length": 4096},
  {"name": "qwen2.5:0.5b", "model": "qwen2.5:0.5b", "size": 492523008, "size_vram": 0,
   "context_length": 2048}]}"""


@pytest.mark.parametrize(
    ("parallel", "context", "facts"),
    [
        (4, 8192, CapacityFacts(4, 32768, 8192)),
        (1, 4096, CapacityFacts(1, 4096, 4096)),
        (0, 4096, CapacityFacts(None, None, 4096)),
        (2, 0, CapacityFacts(2, None, None)),
    ],
)
def test_the_settings_are_read_from_the_log(parallel, context, facts):
    assert parse_log_line(CONFIG.format(parallel=parallel, context=context)) == facts


def test_other_lines_say_nothing():
    assert parse_log_line('level=INFO msg="set OLLAMA_NUM_PARALLEL:9"') == CapacityFacts()


def test_the_list_of_loaded_models_says_what_one_sequence_has():
    assert parse_ps(PS, "qwen2.5:0.5b").max_model_len == 2048
    assert parse_ps(PS, "gemma3").max_model_len == 4096
    assert parse_ps(PS, None).max_model_len == 4096
    assert parse_ps(PS, "other") == parse_ps("{}", None) == CapacityFacts()


def test_one_that_is_attached_to_is_taken_to_run_one_at_a_time(within, answering):
    async def run():
        replies = {"/api/version": (200, '{"version": "0.12.3"}'), "/api/ps": (200, PS)}
        async with answering(replies) as port:
            backend = OllamaBackend("main", Address("127.0.0.1", port), model="qwen2.5:0.5b")
            return await backend.probe(), await backend.read_capacity()

    state, capacity = within(run())
    assert state is BackendState.READY
    assert capacity == Capacity(1, 2048, 2048, Provenance.PREDICTED)
    assert set(answering.asked) == {"/api/version", "/api/ps"}


def test_it_is_launched_with_the_sizes_that_it_is_then_known_to_have(within, answering):
    backend = launch_ollama("main", "gemma3", max_num_seqs=2, max_model_len=8192)
    env = backend.command().env
    assert backend.command().argv == ("ollama", "serve")
    assert env["OLLAMA_NUM_PARALLEL"] == "2"
    assert env["OLLAMA_CONTEXT_LENGTH"] == "8192"
    assert env["OLLAMA_HOST"] == f"127.0.0.1:{backend.address.port}"
    assert backend.quirks.max_tokens_name == "max_tokens"

    async def run():
        async with answering({}) as port:
            backend.address = Address("127.0.0.1", port)
            return await backend.read_capacity()

    assert within(run()) == Capacity(2, 16384, 8192, Provenance.REPORTED)
