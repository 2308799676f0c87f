"""Figures and spans as OTLP, through OpenTelemetry's exporters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast._third_parties import importing

with importing("opentelemetry", "OpenTelemetry", "'rstreams_fast[otel]'"):
    import requests
    from opentelemetry.context import attach, detach, set_value
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        HistogramDataPoint,
        Metric,
        MetricExportResult,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Histogram as HistogramData
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rstreams_fast.spark.telemetry.figures import (
    BOUNDS,
    DURATION,
    Figure,
    Histogram,
    Point,
    Reading,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

__all__ = ["Client"]

LABELS: Final = {"type": "error.type"}
"""The names of attributes in OpenTelemetry's own conventions, by our labels."""

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


class _Headers(requests.auth.AuthBase):
    """Asks a function for the headers of each request, so that tokens may expire."""

    def __init__(self, headers: Callable[[], Mapping[str, str]]) -> None:
        self._headers = headers

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(self._headers())
        return request


class Client:
    """Sends figures and spans to a collector. One thread uses it; any thread may ``stop`` it."""

    def __init__(
        self,
        endpoint: str | None,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None,
        timeout: float | None,
        resource: Mapping[str, Any],
        version: str,
    ) -> None:
        """Without a word the environment counts, as OpenTelemetry says."""
        words: dict[str, Any] = {"timeout": timeout}
        if callable(headers):
            words["session"] = requests.Session()
            words["session"].auth = _Headers(headers)
        elif headers is not None:
            words["headers"] = dict(headers)
        base = None if endpoint is None else endpoint.rstrip("/")
        self._metrics = OTLPMetricExporter(base and f"{base}/v1/metrics", **words)
        self._spans = OTLPSpanExporter(base and f"{base}/v1/traces", **words)
        made = Resource.create(dict(resource))
        if str(made.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            made = made.merge(Resource({SERVICE_NAME: "rstreams_fast"}))
        self._resource = made
        self._scope = InstrumentationScope("rstreams_fast", version)
        self._since = time.time_ns()

    def stop(self) -> None:
        """Make no more attempts for a request that fails."""
        self._metrics.shutdown()
        self._spans.shutdown()

    def send_figures(self, reading: Reading) -> bool:
        """Send figures; return whether the collector has taken them."""
        now = time.time_ns()
        metrics = [self._metric(figure, points, now) for figure, points in reading.figures]
        metrics.append(self._histogram(reading.durations, now))
        scoped = ScopeMetrics(self._scope, metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scoped], "")])
        with _quietly():
            return self._metrics.export(data) is MetricExportResult.SUCCESS

    def _metric(self, figure: Figure, points: Sequence[Point], now: int) -> Metric:
        numbers = [
            NumberDataPoint(
                _attributes(point.stage, figure.label, point.label), self._since, now, point.value
            )
            for point in points
        ]
        data = Sum(numbers, _CUMULATIVE, is_monotonic=True) if figure.grows else Gauge(numbers)
        return Metric(figure.name, figure.text, figure.unit, data)

    def _histogram(self, histograms: Sequence[Histogram], now: int) -> Metric:
        unknown: Any = None  # the least and the most seconds; the protocol may lack them
        points = [
            HistogramDataPoint(
                _attributes(each.stage),
                self._since,
                now,
                sum(each.counts),
                each.seconds,
                each.counts,
                BOUNDS,
                unknown,
                unknown,
            )
            for each in histograms
        ]
        data = HistogramData(points, _CUMULATIVE)
        return Metric(DURATION.name, DURATION.text, DURATION.unit, data)


def _attributes(stage: str, label: str = "", value: str = "") -> dict[str, str]:
    found = {"rstreams.stage": stage}
    if label:
        found[LABELS.get(label, f"rstreams.{label}")] = value
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    """Let nobody trace or log the requests of this thread: the caller warns, once."""
    import logging

    thread = threading.get_ident()

    def is_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [
        logging.getLogger(module)
        for module in (OTLPMetricExporter.__module__, OTLPSpanExporter.__module__)
    ]
    token = attach(set_value("suppress_instrumentation", True))
    for logger in loggers:
        logger.addFilter(is_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_others)
        detach(token)
