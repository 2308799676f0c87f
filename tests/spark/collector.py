"""A collector of OpenTelemetry that keeps what it gets by OTLP over HTTP, for tests to read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def plain(value: Any) -> Any:
    """Return the value of an attribute as Python has it."""
    return getattr(value, value.WhichOneof("value"))


def attributes(holder: Any) -> dict[str, Any]:
    return {pair.key: plain(pair.value) for pair in holder.attributes}


class Collector:
    """Keeps the requests; a ``hangs`` event lets each answer wait until it is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.hangs: threading.Event | None = None
        self.url = ""

    def of(self, path: str) -> list[bytes]:
        return [body for where, _, body in list(self.requests) if where == path]

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the latest request, by name."""
        latest = ExportMetricsServiceRequest.FromString(self.of("/v1/metrics")[-1])
        (found,) = latest.resource_metrics
        return {each.name: each for scope in found.scope_metrics for each in scope.metrics}

    @property
    def resource(self) -> dict[str, Any]:
        latest = ExportMetricsServiceRequest.FromString(self.of("/v1/metrics")[-1])
        return attributes(latest.resource_metrics[0].resource)

    def values(self, name: str, label: str = "rstreams.stage") -> dict[str, float]:
        """Return the values of a metric, by the value of an attribute."""
        metric = self.metrics[name]
        points = getattr(metric, metric.WhichOneof("data")).data_points
        return {
            attributes(point)[label]: getattr(point, point.WhichOneof("value")) for point in points
        }

    @property
    def spans(self) -> list[Any]:
        requests = map(ExportTraceServiceRequest.FromString, self.of("/v1/traces"))
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests.append((self.path, dict(self.headers), body))
            if collector.hangs is not None:
                collector.hangs.wait()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        if collector.hangs is not None:
            collector.hangs.set()
        server.shutdown()
        server.server_close()
        thread.join()
