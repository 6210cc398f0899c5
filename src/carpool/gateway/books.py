"""Where it is written down what became of requests: ledger, metrics, series, log, traces."""

import asyncio
from typing import TYPE_CHECKING

from carpool.gateway.access_log import AccessLog
from carpool.gateway.exchange import Exchange
from carpool.gateway.ledger import Ledger
from carpool.gateway.metrics import GatewayMetrics
from carpool.gateway.refusal import Refusal
from carpool.gateway.request_recorder import RequestRecorder
from carpool.store.usage_row import UsageRow
from carpool.watch.accumulator import Accumulators

if TYPE_CHECKING:
    from carpool.gateway.tracing import Tracing


class Books:
    """Every request for a model comes here as it begins and ends. Quick; never waits."""

    def __init__(
        self,
        ledger: Ledger,
        metrics: GatewayMetrics,
        access_log: AccessLog | None = None,
        tracing: "Tracing | None" = None,
        sums: Accumulators | None = None,
        recorder: RequestRecorder | None = None,
    ) -> None:
        self.metrics = metrics
        self._ledger = ledger
        self._access_log = access_log
        self._tracing = tracing
        self._sums = sums or Accumulators()
        self._recorder = recorder

    def began(self, exchange: Exchange) -> None:
        if self._tracing is not None:
            exchange.trace = self._tracing.begin(exchange)

    def queued(self, exchange: Exchange, seconds: float) -> None:
        """It has waited for its seat, and has it."""
        self.metrics.queued(exchange.model.name, seconds)
        if exchange.trace is not None:
            exchange.trace.queued(seconds)

    def refused(self, request_id: str, refusal: Refusal) -> None:
        """A request that reached no model: there may be nobody to have a row in the ledger."""
        self.metrics.refused(refusal.outcome)
        self._sums.refused(refusal.outcome.value)
        if self._access_log is not None:
            self._access_log.refused(request_id, refusal)

    def ended(self, exchange: Exchange) -> None:
        row = usage_row(exchange, asyncio.get_running_loop().time())
        self._ledger.record(row)
        self.metrics.ended(exchange.model.name, row)
        self._sums.ended(exchange.model.name, row)
        if self._access_log is not None:
            self._access_log.ended(exchange, row)
        if exchange.trace is not None:
            exchange.trace.ended(exchange, row)
        if self._recorder is not None:
            self._recorder.note(exchange)


def usage_row(exchange: Exchange, now: float) -> UsageRow:
    """`now`: loop time, in seconds, at which the exchange ended."""
    forwarded, first = exchange.forwarded, exchange.first_byte_at
    usage = forwarded.usage if forwarded else None
    num_output = usage.output_tokens if usage else 0
    tpot = None
    if exchange.is_stream and first is not None and forwarded is not None and num_output > 1:
        tpot = 1e3 * (forwarded.ended_at - first) / (num_output - 1)
    return UsageRow(
        request_id=exchange.request_id,
        started_at=exchange.started_at,
        person_id=exchange.caller.person.person_id,
        key_id=exchange.caller.key.key_id,
        model=exchange.asked_name,
        backend=exchange.replica.name if exchange.replica else "",
        api=exchange.kind.value,
        lane=exchange.caller.key.lane,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        cached_tokens=usage.cached_tokens if usage else 0,
        output_tokens=num_output,
        usage_source=usage.source if usage else "estimated",
        queue_ms=1e3 * exchange.queue_s,
        ttft_ms=None if first is None else 1e3 * (first - exchange.arrived_at),
        tpot_ms=tpot,
        total_ms=1e3 * (now - exchange.arrived_at),
        outcome=exchange.outcome.value,
        status=exchange.status,
        is_stream=exchange.is_stream,
        is_fallback=exchange.is_fallback,
    )
