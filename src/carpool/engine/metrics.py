"""The engine's figures for Prometheus. Read at scrape time; the step loop knows nothing of it."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from carpool.engine.client import EngineClient, EngineState
from carpool.engine.stats import EngineStats
from carpool.scheduling.request import FinishReason, WaitingReason
from carpool.serving.histogram import HistogramSnapshot

_LOADED = (EngineState.READY, EngineState.DRAINING)


def create_registry(engine: EngineClient) -> CollectorRegistry:
    """A registry of this engine's own, so that two of them can live in one process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine))
    return registry


class EngineCollector(Collector):
    """Metrics are named like vLLM's, with `carpool_` in front. Labels have a closed set of
    values: finish reasons, waiting reasons, engine states and the model's name."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield _states(self._engine.state)
        if self._engine.state in _LOADED:
            yield from self._engine_metrics(self._engine.stats())

    def _engine_metrics(self, stats: EngineStats) -> Iterator[Metric]:
        yield from self._gauges(stats)
        yield from self._counters(stats)
        yield from self._histograms(stats)
        yield _by_reason(
            GaugeMetricFamily(
                "carpool_waiting_reason",
                "Requests that wait, by what they wait for",
                labels=["reason"],
            ),
            {
                reason.value: stats.scheduler.waiting_reasons.get(reason, 0)
                for reason in WaitingReason
            },
        )
        yield _by_reason(
            CounterMetricFamily(
                "carpool_request_success",
                "Requests that ended, by how",
                labels=["finish_reason"],
            ),
            {reason.value: stats.num_finished.get(reason, 0) for reason in FinishReason},
        )

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        scheduler = stats.scheduler
        gauges = (
            ("num_requests_running", "Requests in the batch", scheduler.num_running),
            (
                "num_requests_waiting",
                "Requests that wait, preempted ones too",
                scheduler.num_waiting,
            ),
            ("kv_cache_blocks_used", "KV blocks held by requests", scheduler.num_used_blocks),
            (
                "kv_cache_blocks_cached",
                "KV blocks kept for prefix hits",
                scheduler.num_cached_blocks,
            ),
            ("kv_cache_blocks_total", "KV blocks there are", scheduler.num_blocks),
            (
                "kv_cache_usage_ratio",
                "Share of the KV blocks held by requests, 0 to 1",
                scheduler.num_used_blocks / scheduler.num_blocks,
            ),
        )
        for name, documentation, value in gauges:
            yield GaugeMetricFamily(f"carpool_{name}", documentation, value=value)

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        scheduler = stats.scheduler
        counters = (
            (
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache",
                scheduler.prefix_cache_queries,
            ),
            ("prefix_cache_hits", "Prompt tokens found there", scheduler.prefix_cache_hits),
            ("num_preemptions", "Times a request lost its blocks", scheduler.num_preemptions),
            ("prompt_tokens", "Prompt tokens of admitted requests", stats.num_prompt_tokens),
            ("generation_tokens", "Tokens generated", stats.num_generation_tokens),
        )
        for name, documentation, value in counters:
            yield CounterMetricFamily(f"carpool_{name}", documentation, value=value)

    def _histograms(self, stats: EngineStats) -> Iterator[Metric]:
        histograms = (
            (
                "time_to_first_token_seconds",
                "From arrival to the first token",
                stats.time_to_first_token,
            ),
            (
                "time_per_output_token_seconds",
                "Mean time between a request's tokens after the first",
                stats.time_per_output_token,
            ),
            (
                "request_queue_time_seconds",
                "From arrival to the first step",
                stats.request_queue_time,
            ),
            (
                "e2e_request_latency_seconds",
                "From arrival to the end",
                stats.e2e_request_latency,
            ),
        )
        for name, documentation, snapshot in histograms:
            yield _histogram(f"carpool_{name}", documentation, snapshot)


def _states(state: EngineState) -> Metric:
    family = GaugeMetricFamily(
        "carpool_engine_state", "1 for the state the engine is in", labels=["state"]
    )
    return _by_reason(family, {each.value: int(each is state) for each in EngineState})


def _by_reason(family: GaugeMetricFamily | CounterMetricFamily, values: dict[str, int]) -> Metric:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _histogram(name: str, documentation: str, snapshot: HistogramSnapshot) -> Metric:
    family = HistogramMetricFamily(name, documentation)
    snapshot.add_to(family)
    return family
