"""What SGLang prints and answers, as recorded from its releases."""

import json

from carpool.backends.address import Address
from carpool.backends.backend import BackendState, PriorityOrder
from carpool.backends.capacity_facts import CapacityFacts
from carpool.backends.sglang import (
    SGLangBackend,
    launch_sglang,
    parse_log_line,
    parse_server_info,
)
from carpool.scheduling.capacity import Capacity, Provenance

SUMMARY = (
    "[2026-08-08 03:34:57 TP0] max_total_num_tokens=104273, chunked_prefill_size=2048, "
    "max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, "
    "available_gpu_mem=1.70 GB"
)
ARGUMENTS = (
    "[2026-08-08 03:34:20] server_args=ServerArgs(model_path='m', context_length=None, "
    "max_running_requests=32, max_total_tokens=None)"
)
INFO = {
    "model_path": "qwen/qwen2.5-0.5b-instruct",
    "context_length": None,
    "dp_size": 1,
    "max_running_requests": 256,
    "status": "ready",
    "max_total_num_tokens": 20480,
    "max_req_input_len": 20474,
    "internal_states": [
        {
            "max_running_requests": 256,
            "memory_usage": {"weight": 0.98, "kvcache": 0.23, "token_capacity": 20480},
            "effective_max_running_requests_per_dp": 128,
        }
    ],
    "version": "0.5.9",
}
MODELS = '{"data": [{"id": "qwen/qwen2.5-0.5b-instruct", "max_model_len": 32768}]}'


def test_the_line_that_sums_up_the_start_is_read():
    assert parse_log_line(SUMMARY) == CapacityFacts(2048, 104273, 40960)


def test_what_was_asked_for_is_not_taken_for_what_there_is():
    assert parse_log_line(ARGUMENTS) == CapacityFacts()


def test_the_server_info_says_what_is_left_of_the_seats():
    assert parse_server_info(json.dumps(INFO)) == CapacityFacts(128, 20480, None)


def test_ranks_that_work_side_by_side_add_up():
    assert parse_server_info(json.dumps(INFO | {"dp_size": 2})) == CapacityFacts(256, 40960, None)


def test_an_older_server_info_is_read():
    info = {"max_running_requests": 64, "max_total_num_tokens": 20480, "context_length": 4096}
    assert parse_server_info(json.dumps(info)) == CapacityFacts(64, 20480, 4096)
    assert parse_server_info("not json") == CapacityFacts()


def test_probes_ask_nothing_that_generates(within, answering):
    async def run():
        replies = {"/v1/models": (200, MODELS), "/get_server_info": (200, json.dumps(INFO))}
        async with answering(replies) as port:
            backend = SGLangBackend("main", Address("127.0.0.1", port))
            return await backend.probe(), await backend.read_capacity()

    state, capacity = within(run())
    assert state is BackendState.READY
    assert capacity == Capacity(128, 20480, 32768, Provenance.REPORTED)
    assert not [path for path in answering.asked if "health" in path]


def test_a_restart_forgets_what_the_last_process_printed(within, answering):
    backend = SGLangBackend("main", Address())
    backend.read_line(SUMMARY)
    backend.began()

    async def run():
        replies = {"/v1/models": (200, MODELS), "/server_info": (200, json.dumps(INFO))}
        async with answering(replies) as port:
            backend.address = Address("127.0.0.1", port)
            return await backend.read_capacity()

    assert within(run()).kv_tokens == 20480


def test_it_is_launched_on_loopback_without_health_checks_that_generate():
    backend = launch_sglang("main", "m", max_num_seqs=32, max_model_len=4096, executable="py")
    command = backend.command()
    assert command.argv[:5] == ("py", "-m", "sglang.launch_server", "--model-path", "m")
    assert command.argv[-4:] == ("--max-running-requests", "32", "--context-length", "4096")
    assert command.env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"
    assert backend.quirks.priority_order is PriorityOrder.HIGH_FIRST
