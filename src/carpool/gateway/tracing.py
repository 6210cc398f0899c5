"""One OpenTelemetry trace per request, for those who have a collector.

Names are those of the semantic conventions for generative AI (OpenTelemetry,
semantic-conventions-genai, 2026), which have the model and the tokens; `carpool.*` has what they
have no name for. Never the text of a prompt or an answer.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from carpool import __version__
from carpool.errors import CarpoolError
from carpool.gateway.api_kind import ApiKind
from carpool.gateway.exchange import Exchange
from carpool.gateway.headers import Headers
from carpool.gateway.outcome import HTTP_STATUS, Outcome
from carpool.gateway.routing import Replica
from carpool.store.usage_row import UsageRow

EXPORT_TIMEOUT_S = 3.0
_PATH = "/v1/traces"
_OPERATIONS = {
    ApiKind.CHAT: "chat",
    ApiKind.RESPONSES: "chat",
    ApiKind.MESSAGES: "chat",
    ApiKind.COMPLETIONS: "text_completion",
    ApiKind.EMBEDDINGS: "embeddings",
    ApiKind.OTHER: "tokenize",
}
_REQUEST_FIELDS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
}
_W3C = TraceContextTextMapPropagator()
_W3C_HEADERS = frozenset(name.encode() for name in _W3C.fields)


class Tracing:
    """Sends spans to the collector at `endpoint` (OTLP over HTTP) from a thread of its own, in
    batches; what it does not take in time is dropped."""

    def __init__(self, endpoint: str) -> None:
        """Raises CarpoolError for an endpoint that is none."""
        exporter = OTLPSpanExporter(endpoint=_traces_url(endpoint), timeout=EXPORT_TIMEOUT_S)
        resource = Resource.create({"service.name": "carpool", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("carpool.gateway", __version__)

    def begin(self, exchange: Exchange) -> "RequestTrace":
        """A part of the client's trace, if it sent a traceparent."""
        return RequestTrace(self._tracer, exchange)

    def stop(self) -> None:
        """Send what is left, in at most about EXPORT_TIMEOUT_S seconds."""
        self._provider.shutdown()


class RequestTrace:
    """The span of one request, and those of its wait and its engine under it."""

    def __init__(self, tracer: Tracer, exchange: Exchange) -> None:
        self._tracer = tracer
        age_s = asyncio.get_running_loop().time() - exchange.arrived_at
        self._start_ns = _before(time.time_ns(), age_s)
        self._name = f"{_OPERATIONS[exchange.kind]} {exchange.asked_name}"
        self._span = tracer.start_span(
            self._name,
            _W3C.extract(_carrier(exchange.headers), Context()),
            kind=SpanKind.SERVER,
            attributes=_request_attributes(exchange),
            start_time=self._start_ns,
        )
        self._context = set_span_in_context(self._span, Context())
        self._upstream: Span | None = None

    def queued(self, seconds: float) -> None:
        """It has waited for its seat, until now."""
        end_ns = time.time_ns()
        start_ns = max(self._start_ns, _before(end_ns, seconds))
        self._tracer.start_span("queue", self._context, start_time=start_ns).end(end_ns)

    def sent(self, replica: Replica, headers: Headers) -> Headers:
        """It goes to that engine, with these headers: those of the client, its place in the
        trace replaced by ours."""
        self._upstream = self._tracer.start_span(
            self._name,
            self._context,
            kind=SpanKind.CLIENT,
            attributes={
                "server.address": replica.upstream.address.authority,
                "carpool.replica": replica.name,
            },
        )
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self._upstream, Context()))
        ours = [(name.encode(), value.encode()) for name, value in carrier.items()]
        return [header for header in headers if header[0] not in _W3C_HEADERS] + ours

    def answered(self, status: int, error: str | None = None) -> None:
        """The engine is done with it; `error` says how it failed."""
        span, self._upstream = self._upstream, None
        if span is None:
            return
        if status:
            span.set_attribute("http.response.status_code", status)
        if error is not None or status >= 400:
            span.set_attribute("error.type", error or str(status))
            span.set_status(StatusCode.ERROR)
        span.end()

    def ended(self, exchange: Exchange, row: UsageRow) -> None:
        self.answered(0)
        self._span.set_attributes(_answer_attributes(exchange, row))
        outcome = Outcome(row.outcome)
        if outcome is not Outcome.COMPLETED:
            self._span.set_attribute("error.type", row.outcome)
            if HTTP_STATUS[outcome] >= 500:
                self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _request_attributes(exchange: Exchange) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": _OPERATIONS[exchange.kind],
        "gen_ai.provider.name": "carpool",
        "gen_ai.request.model": exchange.asked_name,
        "url.path": exchange.path,
        "user.id": exchange.caller.person.person_id,
        "carpool.key_id": exchange.caller.key.key_id,
        "carpool.lane": exchange.caller.key.lane.value,
        "carpool.request_id": exchange.request_id,
    }
    if exchange.is_stream:
        attributes["gen_ai.request.stream"] = True
    for field, name in _REQUEST_FIELDS.items():
        value = exchange.fields.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[name] = value
    return attributes


def _answer_attributes(exchange: Exchange, row: UsageRow) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "http.response.status_code": row.status,
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": row.output_tokens,
        "carpool.outcome": row.outcome,
        "carpool.queue.position": exchange.position,
        "carpool.is_fallback": row.is_fallback,
        "carpool.usage.source": row.usage_source,
    }
    if row.cached_tokens:
        attributes["gen_ai.usage.cache_read.input_tokens"] = row.cached_tokens
    if exchange.forwarded is not None:
        attributes["gen_ai.response.model"] = exchange.forwarded.model
    if row.is_stream and row.ttft_ms is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = 1e-3 * row.ttft_ms
    return attributes


def _before(moment_ns: int, seconds: float) -> int:
    return moment_ns - int(1e9 * seconds)


def _carrier(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode(): headers[name].decode("latin-1") for name in _W3C_HEADERS if name in headers
    }


def _traces_url(endpoint: str) -> str:
    """With the path that the protocol gives it, unless it has one."""
    try:
        url = urlsplit(endpoint)
        is_usable = url.scheme in ("http", "https") and bool(url.hostname)
        _ = url.port
    except ValueError:
        is_usable = False
    if not is_usable:
        raise CarpoolError(
            f"--otlp-endpoint {endpoint.rpartition('@')[2]} is no collector's address; write "
            "http://127.0.0.1:4318"
        )
    if url.username is not None or url.password is not None:
        raise CarpoolError(
            "--otlp-endpoint holds credentials, which would be seen in the list of processes; "
            "set OTEL_EXPORTER_OTLP_HEADERS instead"
        )
    return endpoint if url.path.strip("/") else f"{endpoint.rstrip('/')}{_PATH}"
