"""Alerts as figures for Prometheus: what fires, and whether it can be told."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from carpool.watch.alert import AlertState
from carpool.watch.alert_watch import AlertWatch
from carpool.watch.outbox import DestinationState


class AlertMetrics(Collector):
    def __init__(self, watch: AlertWatch) -> None:
        self._watch = watch

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        view = self._watch.view()
        firing = _gauge("alerts_firing", "Alerts that fire", "rule")
        numbers = Counter(each.rule for each in view.alerts if each.state is AlertState.FIRING)
        for rule in self._watch.rules:
            firing.add_metric([rule], numbers[rule])
        messages = CounterMetricFamily(
            "carpool_gateway_alert_messages",
            "Messages about alerts, by what became of them",
            labels=("destination", "outcome"),
        )
        waiting = _gauge("alert_messages_waiting", "Messages not delivered yet", "destination")
        failing = _gauge("alert_destination_failing", "1 while it takes none", "destination")
        for status in view.destinations:
            name, outbox = status.name, status.outbox
            for outcome in ("delivered", "failed", "dropped"):
                messages.add_metric([name, outcome], getattr(outbox, outcome))
            waiting.add_metric([name], outbox.waiting)
            failing.add_metric([name], outbox.state is DestinationState.FAILING)
        yield from (firing, messages, waiting, failing)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"carpool_gateway_{name}", meaning, labels=labels)
