"""What engines say of themselves, before and after."""

import pytest

from carpool.bench.engine_metrics import change, parse_sample

VLLM = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 2.0
vllm:num_preemptions_total{{engine="0",model_name="m"}} {preemptions}
vllm:num_preemptions_created{{engine="0",model_name="m"}} 1.7e+09
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {queries}
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}
vllm:generation_tokens_total{{engine="0",model_name="m"}} 1e3
"""


def test_of_vllm():
    found = change(
        [
            parse_sample(VLLM.format(running=0, preemptions=3, usage=0, queries=100, hits=50)),
            parse_sample(VLLM.format(running=9, preemptions=3, usage=0.5, queries=200, hits=50)),
            parse_sample(VLLM.format(running=1, preemptions=5, usage=0.25, queries=500, hits=150)),
        ]
    )
    assert found.preemptions == 2
    assert found.prefix_hit_share == 0.25
    assert (found.mean_kv_usage, found.max_kv_usage) == (0.25, 0.5)
    assert (found.max_running, found.max_waiting) == (9, 2)
    assert found.generation_tokens == 0


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (
            'sglang:num_running_reqs{tp_rank="0"} 4\nsglang:num_running_reqs{tp_rank="1"} 4',
            "running",
            4,
        ),
        ("llamacpp:requests_deferred 7", "waiting", 7),
        ("carpool_kv_cache_usage_ratio 0.5", "kv_usage", 0.5),
        (
            'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3',
            "running",
            5,
        ),
    ],
)
def test_gauges_of_engines(text, name, value):
    assert parse_sample(text).gauges[name] == value


def test_an_engine_that_began_anew_and_one_that_says_nothing():
    before = parse_sample("carpool_num_preemptions_total 5")
    after = parse_sample("carpool_num_preemptions_total 1")
    assert change([before, after]).preemptions is None
    assert change([parse_sample("python_info 1\nvllm:kv_cache_usage_perc NaN")]) is None
