"""Figures as Prometheus gets them: counted once, states one at a time."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from carpool.backends.address import Address
from carpool.backends.backend import BackendState
from carpool.gateway.admission import Admission
from carpool.gateway.circuit_breaker import CircuitBreaker
from carpool.gateway.gate import Gate
from carpool.gateway.ledger import Ledger
from carpool.gateway.metrics import GatewayMetrics
from carpool.gateway.outcome import Outcome
from carpool.gateway.routing import Replica
from carpool.gateway.served_model import ServedModel
from carpool.gateway.upstream import Upstream
from carpool.gateway.waiting_room import QueueLimits
from carpool.scheduling.capacity import Capacity, Provenance
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow

ROW = UsageRow(
    request_id="r",
    started_at=0.0,
    person_id="ana",
    key_id="anakey",
    model="an-alias",
    backend="one",
    api="chat",
    lane=Lane.INTERACTIVE,
    prompt_tokens=10,
    cached_tokens=4,
    output_tokens=5,
    usage_source="reported",
    queue_ms=1.0,
    ttft_ms=200.0,
    tpot_ms=40.0,
    total_ms=600.0,
    outcome="completed",
    status=200,
    is_stream=True,
    is_fallback=False,
)


def make_replica(name):
    return Replica(name, Upstream(Address.from_url("http://127.0.0.1:1")), CircuitBreaker())


@pytest.fixture
def model():
    capacity = Capacity(4, 1000, 1000, Provenance.REPORTED)
    gate = Gate(Admission(capacity, QueueLimits()), lambda: 0.0)
    replicas = [make_replica("one"), make_replica("two")]
    return ServedModel(
        name="big", gate=gate, replicas=replicas, fallback=make_replica("fallback:host")
    )


@pytest.fixture
def metrics(model, tmp_path):
    return GatewayMetrics([model], Ledger(tmp_path, lambda rows: None), lambda: 7.0)


def series(metrics):
    """Values by name and labels in the order of their names, without `carpool_gateway_`."""

    async def read():
        return generate_latest(metrics.registry).decode()

    return {
        (sample.name.removeprefix("carpool_gateway_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(asyncio.run(read()))
        for sample in family.samples
    }


def test_a_request_counts_for_the_models_own_name(metrics):
    metrics.ended("big", ROW)
    metrics.ended("big", replace(ROW, outcome="queue_full", ttft_ms=None, tpot_ms=None))
    found = series(metrics)
    assert found["requests_total", "big", "completed"] == 1
    assert found["requests_total", "big", "queue_full"] == 1
    assert found["tokens_total", "cached", "big"] == 8
    assert found["time_to_first_token_seconds_sum", "big"] == pytest.approx(0.2)
    assert found["time_per_output_token_seconds_sum", "big"] == pytest.approx(0.04)
    assert found["request_duration_seconds_count", "big"] == 2
    assert not any("an-alias" in labels for labels in found)


def test_what_the_fallback_answered_is_counted(metrics):
    metrics.ended("big", replace(ROW, is_fallback=True))
    metrics.ended("big", ROW)
    assert series(metrics)["fallback_requests_total", "big"] == 1


def test_who_reached_no_model_is_counted_without_one(metrics):
    metrics.refused(Outcome.BAD_KEY)
    assert series(metrics)["requests_total", "", "bad_key"] == 1


def test_every_engine_is_in_one_state(metrics, model):
    one, two = model.replicas
    one.state, one.num_restarts = BackendState.LOADING, 3
    attempts = [two.breaker.attempt(0.0) for _ in range(3)]
    for attempt in attempts:
        attempt.failed(1e9)
    found = series(metrics)
    assert found["replica_restarts_total", "big", "one"] == 3
    assert found["replicas_ready", "big"] == 1
    for kind, name, state in [
        ("replica_state", "one", "loading"),
        ("replica_state", "two", "ready"),
        ("replica_state", "fallback:host", "ready"),
        ("breaker_state", "one", "closed"),
        ("breaker_state", "two", "open"),
    ]:
        states = {key[3]: value for key, value in found.items() if key[:3] == (kind, "big", name)}
        assert [word for word, value in states.items() if value] == [state]


def test_the_age_of_the_keys_is_there_where_keys_are_wanted(metrics, model, tmp_path):
    assert series(metrics)["keys_age_seconds",] == 7
    without = GatewayMetrics([model], Ledger(tmp_path, lambda rows: None))
    assert ("keys_age_seconds",) not in series(without)


def test_a_late_event_loop_is_noticed(metrics):
    async def main():
        watch = asyncio.create_task(metrics.watch_loop())
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        until = loop.time() + 0.4
        while loop.time() < until:
            pass
        for _ in range(5):
            await asyncio.sleep(0)
        watch.cancel()

    asyncio.run(main())
    found = series(metrics)
    assert found["event_loop_lag_seconds_count",] == 1
    assert found["event_loop_lag_seconds_sum",] > 0.1
