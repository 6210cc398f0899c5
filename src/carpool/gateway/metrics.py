"""The gateway's figures for Prometheus, as docs/metrics.md explains them.

Labels have a closed set of values: outcomes, states, and the names of the models and engines that
are served. What is counted is counted by the event loop alone, as plain numbers; series are made
when somebody looks.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from carpool.backends.backend import BackendState
from carpool.gateway.circuit_breaker import BreakerState
from carpool.gateway.ledger import Ledger
from carpool.gateway.outcome import Outcome
from carpool.gateway.routing import Replica
from carpool.gateway.served_model import ServedModel
from carpool.serving.histogram import Histogram
from carpool.store.usage_row import UsageRow

LATENCY_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
TOKEN_BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
LAG_SAMPLE_S = 0.25
NO_MODEL = ""
"""The label of requests that were turned away before they reached a model."""


class ModelFigures:
    """What the requests of one model came to."""

    __slots__ = (
        "duration",
        "num_cached_tokens",
        "num_fallback",
        "num_output_tokens",
        "num_prompt_tokens",
        "outcomes",
        "queue_time",
        "tpot",
        "ttft",
    )

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.queue_time = Histogram(LATENCY_BOUNDS)
        self.ttft = Histogram(LATENCY_BOUNDS)
        self.tpot = Histogram(TOKEN_BOUNDS)
        self.duration = Histogram(LATENCY_BOUNDS)
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_fallback = 0

    def add(self, row: UsageRow) -> None:
        self.outcomes[row.outcome] = self.outcomes.get(row.outcome, 0) + 1
        self.num_prompt_tokens += row.prompt_tokens
        self.num_cached_tokens += row.cached_tokens
        self.num_output_tokens += row.output_tokens
        self.num_fallback += row.is_fallback
        self.duration.observe(1e-3 * row.total_ms)
        if row.is_stream and row.ttft_ms is not None:
            self.ttft.observe(1e-3 * row.ttft_ms)
        if row.tpot_ms is not None:
            self.tpot.observe(1e-3 * row.tpot_ms)


class GatewayMetrics(Collector):
    """`keys_age_s`: seconds since the keys were last known to be those of the database; None
    where no keys are wanted."""

    def __init__(
        self,
        models: Iterable[ServedModel],
        ledger: Ledger,
        keys_age_s: Callable[[], float] | None = None,
        are_counters_away: Callable[[], bool] = lambda: False,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._models = list(models)
        self._figures = {model.name: ModelFigures() for model in self._models}
        self._refused: dict[Outcome, int] = {}
        self._loop_lag = Histogram(LAG_BOUNDS)
        self._ledger = ledger
        self._keys_age_s = keys_age_s
        self._are_counters_away = are_counters_away

    def queued(self, model: str, seconds: float) -> None:
        """A request of that model has waited for its seat, and has it."""
        self._figures[model].queue_time.observe(seconds)

    def ended(self, model: str, row: UsageRow) -> None:
        """A request of that model has ended."""
        self._figures[model].add(row)

    def refused(self, outcome: Outcome) -> None:
        """A request was turned away before it reached a model."""
        self._refused[outcome] = self._refused.get(outcome, 0) + 1

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SAMPLE_S
            await asyncio.sleep(LAG_SAMPLE_S)
            self._loop_lag.observe(max(0.0, loop.time() - due))

    # ------------------------------------------------------------------ for Prometheus

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._latencies()
        yield from self._admission()
        yield from replica_families(self._models, asyncio.get_running_loop().time())
        yield from self._process()

    def _requests(self) -> Iterator[Metric]:
        requests = _counter("requests", "Requests that ended", "model", "outcome")
        tokens = _counter("tokens", "Tokens of requests that ended", "model", "kind")
        fallback = _counter("fallback_requests", "Requests that the fallback answered", "model")
        for outcome, number in self._refused.items():
            requests.add_metric([NO_MODEL, outcome.value], number)
        for name, figures in self._figures.items():
            for word, number in figures.outcomes.items():
                requests.add_metric([name, word], number)
            tokens.add_metric([name, "prompt"], figures.num_prompt_tokens)
            tokens.add_metric([name, "cached"], figures.num_cached_tokens)
            tokens.add_metric([name, "output"], figures.num_output_tokens)
            fallback.add_metric([name], figures.num_fallback)
        yield from (requests, tokens, fallback)

    def _latencies(self) -> Iterator[Metric]:
        queue = _histogram("queue_time_seconds", "From the queue to a seat", "model")
        ttft = _histogram(
            "time_to_first_token_seconds", "From arrival to a stream's first event", "model"
        )
        tpot = _histogram(
            "time_per_output_token_seconds", "Between a stream's tokens after the first", "model"
        )
        duration = _histogram("request_duration_seconds", "From arrival to the end", "model")
        for name, figures in self._figures.items():
            figures.queue_time.snapshot().add_to(queue, [name])
            figures.ttft.snapshot().add_to(ttft, [name])
            figures.tpot.snapshot().add_to(tpot, [name])
            figures.duration.snapshot().add_to(duration, [name])
        yield from (queue, ttft, tpot, duration)

    def _admission(self) -> Iterator[Metric]:
        waiting = _gauge("requests_waiting", "Requests in the queue", "model")
        tokens_waiting = _gauge("tokens_waiting", "Tokens that they are expected to take", "model")
        in_flight = _gauge("requests_in_flight", "Requests at the engines", "model")
        seats = _gauge("seats", "Requests that may be there at once", "model")
        reserved = _gauge("kv_tokens_reserved", "Tokens of KV memory that are spoken for", "model")
        memory = _gauge("kv_tokens", "Tokens of KV memory there are", "model")
        for model in self._models:
            admission, labels = model.gate.admission, [model.name]
            waiting.add_metric(labels, admission.num_waiting)
            tokens_waiting.add_metric(labels, admission.waiting.num_tokens)
            in_flight.add_metric(labels, admission.num_in_flight)
            seats.add_metric(labels, admission.capacity.max_num_seqs)
            reserved.add_metric(labels, admission.in_flight_tokens)
            memory.add_metric(labels, admission.capacity.kv_tokens)
        yield from (waiting, tokens_waiting, in_flight, seats, reserved, memory)

    def _process(self) -> Iterator[Metric]:
        ledger = self._ledger
        gauges: dict[str, tuple[str, float]] = {
            "database_away": ("1 while usage cannot be written", ledger.is_database_away),
            "counters_away": (
                "1 while shared limits and seats cannot be reached",
                self._are_counters_away(),
            ),
            "ledger_rows_waiting": ("Rows that the next flush takes", ledger.num_waiting),
            "ledger_rows_spooled": ("Rows kept on disk for a database", ledger.num_spooled),
        }
        if self._keys_age_s is not None:
            meaning = "Since the keys were last known to be those of the database"
            gauges["keys_age_seconds"] = (meaning, self._keys_age_s())
        for name, (meaning, value) in gauges.items():
            family = _gauge(name, meaning)
            family.add_metric([], value)
            yield family
        lag = _histogram("event_loop_lag_seconds", "How late the event loop is")
        self._loop_lag.snapshot().add_to(lag)
        yield lag


def replica_families(models: Iterable[ServedModel], now: float) -> Iterator[Metric]:
    """What there is to say of engines."""
    labels = ("model", "replica")
    ready = _gauge("replicas_ready", "Engines that take requests", "model")
    state = _gauge("replica_state", "1 for the state it is in", *labels, "state")
    breaker = _gauge("breaker_state", "1 for the state it is in", *labels, "state")
    in_flight = _gauge("replica_requests_in_flight", "Requests at this engine", *labels)
    restarts = _counter("replica_restarts", "Times it was started again", *labels)
    for model in models:
        ready.add_metric([model.name], sum(replica.is_ready for replica in model.replicas))
        for replica in _all_replicas(model):
            names = [model.name, replica.name]
            _one_of(state, names, BackendState, replica.state)
            _one_of(breaker, names, BreakerState, replica.breaker.state(now))
            in_flight.add_metric(names, replica.num_in_flight)
            restarts.add_metric(names, replica.num_restarts)
    yield from (ready, state, breaker, in_flight, restarts)


def _all_replicas(model: ServedModel) -> list[Replica]:
    return model.replicas if model.fallback is None else [*model.replicas, model.fallback]


def _one_of(
    family: GaugeMetricFamily, names: list[str], states: type[StrEnum], state: StrEnum
) -> None:
    for each in states:
        family.add_metric([*names, each.value], int(each is state))


def _counter(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"carpool_gateway_{name}", meaning, labels=labels)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"carpool_gateway_{name}", meaning, labels=labels)


def _histogram(name: str, meaning: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"carpool_gateway_{name}", meaning, labels=labels)
