"""How busy engines say they are, as recorded from their /metrics."""

import pytest

from carpool.backends.backend import BackendKind, EngineLoad
from carpool.backends.create import attach
from carpool.backends.engine_load import LOAD_METRICS, parse_load

EMBEDDED = """# HELP carpool_num_requests_running Requests in the batch
# TYPE carpool_num_requests_running gauge
carpool_num_requests_running 3.0
# TYPE carpool_num_requests_waiting gauge
carpool_num_requests_waiting 1.0
carpool_kv_cache_usage_ratio 0.25
# TYPE carpool_num_preemptions_total counter
carpool_num_preemptions_total 7.0
"""
VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
vllm:num_preemptions_total{engine="1",model_name="m"} 1.0
"""
SGLANG = """sglang:num_running_reqs{tp_rank="0"} 4
sglang:num_running_reqs{tp_rank="1"} 4
sglang:num_queue_reqs{tp_rank="0"} 3
sglang:num_queue_reqs{tp_rank="1"} 3
sglang:token_usage{tp_rank="0"} 0.7
sglang:token_usage{tp_rank="1"} 0.7
"""
LLAMA_CPP = """# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 5
"""


@pytest.mark.parametrize(
    ("kind", "text", "load"),
    [
        (BackendKind.EMBEDDED, EMBEDDED, EngineLoad(3, 1, 0.25, 7)),
        (BackendKind.VLLM, VLLM, EngineLoad(5, 1, 0.6, 5)),
        (BackendKind.SGLANG, SGLANG, EngineLoad(4, 3, 0.7)),
        (BackendKind.LLAMA_CPP, LLAMA_CPP, EngineLoad(2, 5, None)),
    ],
)
def test_running_and_waiting_are_read(within, answering, kind, text, load):
    assert parse_load(text, LOAD_METRICS[kind]) == load

    async def run():
        async with answering({"/metrics": (200, text)}) as port:
            return await attach("main", f"{kind}+http://127.0.0.1:{port}").read_load()

    assert within(run()) == load


@pytest.mark.parametrize("text", ["", "vllm:num_requests_running 1\n", "vllm:num_requests_runn{"])
def test_half_an_answer_is_none(text):
    assert parse_load(text, LOAD_METRICS[BackendKind.VLLM]) is None


@pytest.mark.parametrize("kind", ["ollama", "remote"])
def test_engines_without_metrics_are_not_asked(within, kind):
    async def run():
        return await attach("main", f"{kind}+http://127.0.0.1:1").read_load()

    assert within(run()) is None
