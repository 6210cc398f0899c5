"""A collector of traces as OTLP over HTTP has them, in a thread."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {1: "internal", 2: "server", 3: "client"}


@dataclass(frozen=True)
class CollectedSpan:
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """`spans`: what came so far, from whatever process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[CollectedSpan] = []
        self.paths: list[str] = []

    def of(self, request_id: str) -> list[CollectedSpan]:
        """The trace of a request: its own span first, then those under it as they ended. Empty
        until its own is there."""
        for span in self.spans:
            if span.attributes.get("carpool.request_id") == request_id:
                under = [each for each in self.spans if each.parent_id == span.span_id]
                return [span, *sorted(under, key=lambda each: each.end_ns)]
        return []


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            collector.paths.append(self.path)
            collector.spans += _spans(ExportTraceServiceRequest.FromString(raw))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def _spans(request: Any) -> list[CollectedSpan]:
    return [
        CollectedSpan(
            name=span.name,
            kind=KINDS[span.kind],
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            is_error=span.status.code == 2,
            attributes=_attributes(span.attributes),
            resource=_attributes(of_resource.resource.attributes),
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
