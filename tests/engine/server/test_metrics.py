"""What /metrics shows of the engine."""

import pytest
from metrics_doc import documented, shown
from prometheus_client.parser import text_string_to_metric_families

from carpool.engine.client import EngineState
from carpool.scheduling.request import FinishReason, WaitingReason


@pytest.fixture
def samples(client):
    def read() -> dict[tuple[str, tuple[str, ...]], float]:
        families = text_string_to_metric_families(client.get("/metrics").text)
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }

    return read


def test_gauges_and_totals_are_the_schedulers(samples):
    assert {
        name: value
        for (name, labels), value in samples().items()
        if not labels and "_bucket" not in name
    }.items() >= {
        "carpool_num_requests_running": 2,
        "carpool_num_requests_waiting": 3,
        "carpool_kv_cache_blocks_used": 25,
        "carpool_kv_cache_blocks_total": 100,
        "carpool_kv_cache_usage_ratio": 0.25,
        "carpool_prefix_cache_queries_total": 64,
        "carpool_prefix_cache_hits_total": 32,
        "carpool_num_preemptions_total": 1,
    }.items()


def test_requests_show_up_in_counters_and_histograms(engine, samples):
    engine.recorder.admitted(0.02, num_prompt_tokens=10)
    engine.recorder.first_token(0.3)
    engine.recorder.generated(5)
    engine.recorder.finished(FinishReason.STOP, 0.7, decode_time=0.4, num_output_tokens=5)
    found = samples()
    assert found["carpool_prompt_tokens_total", ()] == 10
    assert found["carpool_generation_tokens_total", ()] == 5
    assert found["carpool_request_success_total", ("stop",)] == 1
    assert found["carpool_request_success_total", ("length",)] == 0
    assert found["carpool_time_to_first_token_seconds_bucket", ("0.25",)] == 0
    assert found["carpool_time_to_first_token_seconds_bucket", ("0.5",)] == 1
    assert found["carpool_time_to_first_token_seconds_bucket", ("+Inf",)] == 1
    assert found["carpool_time_to_first_token_seconds_sum", ()] == pytest.approx(0.3)
    assert found["carpool_time_per_output_token_seconds_sum", ()] == pytest.approx(0.1)
    assert found["carpool_request_queue_time_seconds_bucket", ("0.02",)] == 1
    assert found["carpool_e2e_request_latency_seconds_count", ()] == 1


def test_a_request_of_one_token_has_no_time_per_output_token(engine, samples):
    engine.recorder.finished(FinishReason.LENGTH, 0.1, num_output_tokens=1)
    assert samples()["carpool_time_per_output_token_seconds_count", ()] == 0


def test_waiting_requests_are_counted_by_reason(engine, samples):
    engine.waiting_reasons = {WaitingReason.KV_BLOCKS: 3}
    found = samples()
    assert found["carpool_waiting_reason", ("kv_blocks",)] == 3
    assert found["carpool_waiting_reason", ("seats",)] == 0


def test_an_engine_that_loads_has_a_state_and_no_figures(engine, samples):
    engine.state = EngineState.LOADING
    found = samples()
    assert found["carpool_engine_state", ("loading",)] == 1
    assert found["carpool_engine_state", ("ready",)] == 0
    assert ("carpool_num_requests_running", ()) not in found


def test_the_manual_has_every_metric_and_no_other(client):
    assert shown(client.get("/metrics").text) == documented(is_gateway=False)
