"""The gateway's figures for Prometheus. Labels have a closed set of values: outcomes, and the
names of the models that are served."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from carpool.gateway.ledger import Ledger
from carpool.gateway.outcome import Outcome
from carpool.gateway.served_model import ServedModel

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)


class GatewayMetrics:
    """Counted as requests end; gauges are read at scrape time."""

    def __init__(self, models: Iterable[ServedModel], ledger: Ledger) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "carpool_gateway_requests",
            "Requests that ended, by model and outcome",
            ["model", "outcome"],
            registry=self.registry,
        )
        self._queue_time = Histogram(
            "carpool_gateway_queue_time_seconds",
            "From arrival in the queue to a seat",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._ttft = Histogram(
            "carpool_gateway_time_to_first_byte_seconds",
            "From arrival to the first byte of the engine's answer",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "carpool_gateway_tokens",
            "Tokens of requests that ended, by kind",
            ["kind"],
            registry=self.registry,
        )
        self._prompt = self._tokens.labels("prompt")
        self._output = self._tokens.labels("output")
        self._by_outcome: dict[tuple[str, Outcome], Counter] = {}
        self.registry.register(_Gauges(list(models), ledger))

    def ended(self, model: str, outcome: Outcome) -> None:
        """`model` is a served model's name, or "" where none was reached."""
        key = (model, outcome)
        counter = self._by_outcome.get(key)
        if counter is None:
            counter = self._by_outcome[key] = self._requests.labels(model, outcome.value)
        counter.inc()

    def queued(self, seconds: float) -> None:
        self._queue_time.observe(seconds)

    def answered(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def used(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self._prompt.inc(num_prompt_tokens)
        self._output.inc(num_output_tokens)


class _Gauges(Collector):
    def __init__(self, models: list[ServedModel], ledger: Ledger) -> None:
        self._models = models
        self._ledger = ledger

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "carpool_gateway_requests_waiting", "Requests in the queue", labels=["model"]
        )
        in_flight = GaugeMetricFamily(
            "carpool_gateway_requests_in_flight", "Requests at the engine", labels=["model"]
        )
        seats = GaugeMetricFamily(
            "carpool_gateway_seats", "Requests that may be at the engine", labels=["model"]
        )
        ready = GaugeMetricFamily(
            "carpool_gateway_replicas_ready", "Engines that take requests", labels=["model"]
        )
        for model in self._models:
            admission = model.gate.admission
            waiting.add_metric([model.name], admission.num_waiting)
            in_flight.add_metric([model.name], admission.num_in_flight)
            seats.add_metric([model.name], admission.capacity.max_num_seqs)
            ready.add_metric([model.name], sum(replica.is_ready for replica in model.replicas))
        yield from (waiting, in_flight, seats, ready)
        yield GaugeMetricFamily(
            "carpool_gateway_database_away",
            "1 while usage cannot be written to the database",
            value=int(self._ledger.is_database_away),
        )
