"""What vLLM prints and answers, as recorded from its releases."""

import pytest

from carpool.backends.address import Address
from carpool.backends.backend import BackendState, BackendUnreachable, PriorityOrder
from carpool.backends.capacity_facts import CapacityFacts
from carpool.backends.vllm import VllmBackend, launch_vllm, parse_log_line, parse_metrics
from carpool.scheduling.capacity import Capacity, Provenance

LOG = """\
(APIServer pid=51) INFO 11-10 01:23:37 [api_server.py:1839] vLLM API server version 0.11.0
(APIServer pid=51) INFO 11-10 01:23:37 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'port': 8100, 'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192, 'max_num_batched_tokens': 8192, 'max_num_seqs': 32}
(APIServer pid=51) INFO 11-10 01:23:52 [model.py:547] Resolved architecture: Qwen3ForCausalLM
(APIServer pid=51) INFO 11-10 01:23:52 [model.py:1510] Using max model len 8192
(EngineCore_DP0 pid=77) INFO 11-10 01:24:20 [gpu_worker.py:359] Available KV cache memory: 52.36 GiB
(EngineCore_DP0 pid=77) INFO 11-10 01:24:21 [kv_cache_utils.py:1286] GPU KV cache size: 381,264 tokens
(EngineCore_DP0 pid=77) INFO 11-10 01:24:21 [kv_cache_utils.py:1291] Maximum concurrency for 8,192 tokens per request: 46.54x
(APIServer pid=51) INFO:     Application startup complete.
""".splitlines()  # noqa: E501

BLOCKS = (
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",'
    'gpu_memory_utilization="0.82",num_cpu_blocks="1024",num_gpu_blocks="573",'
    'num_gpu_blocks_override="None",sliding_window="None"} 1.0'
)


def facts_of(lines):
    backend = VllmBackend("main", Address())
    facts = CapacityFacts()
    for line in lines:
        facts = backend.facts_of_line(line).or_else(facts)
    return facts


def test_the_start_up_log_says_everything():
    assert facts_of(LOG) == CapacityFacts(32, 381264, 8192)


def test_the_older_form_of_the_log_is_read():
    line = (
        "INFO 02-19 23:56:10 llm_engine.py:234] Initializing a V1 LLM engine (v0.8.0) with "
        "config: model='m', dtype=torch.bfloat16, max_seq_len=2048, download_dir=None"
    )
    assert parse_log_line(line) == CapacityFacts(max_model_len=2048)
    line = "INFO 02-19 23:56:55 kv_cache_utils.py:524] GPU KV cache size: 2,042,016 tokens"
    assert parse_log_line(line) == CapacityFacts(kv_tokens=2042016)


def test_the_log_of_the_build_for_cpus_is_read():
    line = (
        "(EngineCore pid=20013) INFO 11-29 17:05:22 [kv_cache_utils.py:2327] CPU KV cache size: "
        "46,592 tokens, Maximum concurrency for 2,048 tokens per request: 22.75x"
    )
    assert parse_log_line(line) == CapacityFacts(kv_tokens=46592)


def test_figures_of_requests_are_not_taken_for_it():
    line = (
        "INFO 03-05 18:47:03 loggers.py:78] Avg prompt throughput: 926.3 tokens/s, "
        "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.3%"
    )
    assert parse_log_line(line) == CapacityFacts()


@pytest.mark.parametrize(
    ("text", "kv_tokens"),
    [
        (f"# TYPE vllm:cache_config_info gauge\n{BLOCKS}\nvllm:num_requests_running 2\n", 9168),
        (
            'vllm:cache_config_info{block_size="256",engine="0",kv_cache_size_tokens="123433",'
            'num_gpu_blocks="4096"} 1.0',
            123433,
        ),
        (
            'vllm:cache_config_info{engine="0",kv_cache_size_tokens="1000"} 1.0\n'
            'vllm:cache_config_info{engine="1",kv_cache_size_tokens="1000"} 1.0\n',
            2000,
        ),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n', None),
        ('vllm:cache_config_info{kv_cache_size_tokens="None",block_size="16"} 1.0\n', None),
        ('vllm:cache_config_info{broken="', None),
        ("", None),
    ],
)
def test_metrics_say_how_large_the_cache_is(text, kv_tokens):
    assert parse_metrics(text) == CapacityFacts(kv_tokens=kv_tokens)


MODELS = '{"object": "list", "data": [{"id": "Qwen/Qwen3-8B", "max_model_len": 8192}]}'


def test_one_that_is_attached_to_is_read_over_http(within, answering):
    async def run():
        replies = {"/metrics": (200, BLOCKS), "/v1/models": (200, MODELS), "/health": (200, "")}
        async with answering(replies) as port:
            known = CapacityFacts(max_num_seqs=16)
            backend = VllmBackend("main", Address("127.0.0.1", port), known=known, api_key="k")
            return await backend.probe(), await backend.read_capacity()

    state, capacity = within(run())
    assert state is BackendState.READY
    assert capacity == Capacity(16, 9168, 8192, Provenance.REPORTED)
    assert set(answering.asked) == {"/health", "/metrics", "/v1/models"}
    assert all("Authorization: Bearer k\r\n" in head for head in answering.heads)


def test_seats_that_nobody_told_are_vllms_default_and_called_predicted(within, answering):
    async def run():
        async with answering({"/metrics": (200, BLOCKS), "/v1/models": (200, MODELS)}) as port:
            return await VllmBackend("main", Address("127.0.0.1", port)).read_capacity()

    assert within(run()) == Capacity(256, 9168, 8192, Provenance.PREDICTED)


def test_a_broken_engine_is_of_no_use(within, answering):
    async def run():
        async with answering({"/health": (500, "")}) as port:
            await VllmBackend("main", Address("127.0.0.1", port)).probe()

    with pytest.raises(BackendUnreachable, match="answered /health with 500"):
        within(run())


def test_it_is_launched_on_loopback_with_a_key_of_its_own():
    backend = launch_vllm("main", "Qwen/Qwen3-8B", max_model_len=8192, options=("--dtype", "auto"))
    argv = backend.command().argv
    assert argv[:3] == ("vllm", "serve", "Qwen/Qwen3-8B")
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--port") + 1] == str(backend.address.port)
    assert argv[argv.index("--max-num-seqs") + 1] == "256"
    assert argv[-4:] == ("--max-model-len", "8192", "--dtype", "auto")
    assert backend.command().env["VLLM_API_KEY"] == backend.api_key
    assert backend.api_key not in argv
    assert backend.quirks.priority_order is PriorityOrder.LOW_FIRST
