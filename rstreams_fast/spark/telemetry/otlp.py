"""Sends metrics and spans to a collector by OTLP, with OpenTelemetry's exporters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast._third_parties import importing

with importing("opentelemetry", "OpenTelemetry", "'rstreams_fast[otel]'"):
    import requests
    from opentelemetry import trace
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
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import (
        INVALID_SPAN_CONTEXT,
        SpanContext,
        Status,
        StatusCode,
    )

from rstreams_fast.spark.telemetry.current_span import sampled_context
from rstreams_fast.spark.telemetry.metric_reader import (
    BOUNDS,
    DURATION,
    Histogram,
    MetricSpec,
    Point,
    Reading,
)
from rstreams_fast.spark.telemetry.written_span import SpanOptions, WrittenSpan

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

__all__ = ["Client"]

LABELS: Final = {"type": "error.type"}
"""The labels of our metrics whose names differ in OpenTelemetry's conventions, with those names."""

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


class _Headers(requests.auth.AuthBase):
    """Calls ``headers`` for the headers of each request, so that an expired token is replaced."""

    def __init__(self, headers: Callable[[], Mapping[str, str]]) -> None:
        self._headers = headers

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(self._headers())
        return request


class Client:
    """Sends metrics and spans to a collector. One thread uses it; any thread may call ``stop``."""

    def __init__(
        self,
        endpoint: str | None,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None,
        timeout: float | None,
        resource: Mapping[str, Any],
        version: str,
    ) -> None:
        """If an argument is ``None``, the environment variable of OpenTelemetry is used instead."""
        arguments: dict[str, Any] = {"timeout": timeout}
        if callable(headers):
            arguments["session"] = requests.Session()
            arguments["session"].auth = _Headers(headers)
        elif headers is not None:
            arguments["headers"] = dict(headers)
        base = None if endpoint is None else endpoint.rstrip("/")
        self._metrics = OTLPMetricExporter(base and f"{base}/v1/metrics", **arguments)
        self._spans = OTLPSpanExporter(base and f"{base}/v1/traces", **arguments)
        made = Resource.create(dict(resource))
        if str(made.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            made = made.merge(Resource({SERVICE_NAME: "rstreams_fast"}))
        self._resource = made
        self._scope = InstrumentationScope("rstreams_fast", version)
        self._since = time.time_ns()
        self._parent = INVALID_SPAN_CONTEXT
        self._root: SpanContext | None = None
        self._any_span = False

    def stop(self) -> None:
        """From now on, do not repeat a request that has failed."""
        self._metrics.shutdown()
        self._spans.shutdown()

    def send_metrics(self, reading: Reading) -> bool:
        """Send the metrics in ``reading``. Return whether the collector has received them."""
        now = time.time_ns()
        metrics = [self._metric(spec, points, now) for spec, points in reading.metrics]
        metrics.append(self._histogram(reading.durations, now))
        scoped = ScopeMetrics(self._scope, metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scoped], "")])
        with _without_tracing_and_logs():
            return self._metrics.export(data) is MetricExportResult.SUCCESS

    def begin_spans(self, sample: float, most: float) -> SpanOptions | None:
        """Return the options for the spans of calls; ``None``: workers make no spans.

        The parent of all these spans is the current span. If there is no current span, the parent
        is a new root span, which ``end_spans`` ends.
        """
        parent = trace.get_current_span().get_span_context()
        if not sample or (parent.is_valid and not parent.trace_flags.sampled):
            return None
        if not parent.is_valid:
            ids = RandomIdGenerator()
            parent = sampled_context(ids.generate_trace_id(), ids.generate_span_id())
            self._root = parent
        self._parent = parent
        return SpanOptions(f"{parent.trace_id:032x}", f"{parent.span_id:016x}", sample, most)

    def end_spans(self) -> bool:
        """Send the root span, if it exists and has children. Return ``False`` if this failed."""
        root, self._root = self._root, None
        if root is None or not self._any_span:
            return True
        return self._send_spans([self._span("rstreams_fast", root, None, self._since)])

    def send_spans(self, spans: Sequence[WrittenSpan]) -> bool:
        """Send ``spans`` of calls. Return whether the collector has received them."""
        self._any_span = True
        parent = self._parent
        return self._send_spans(
            [
                self._span(
                    span.name,
                    sampled_context(parent.trace_id, int(span.span_id, 16)),
                    parent,
                    span.start,
                    end_time=span.end,
                    attributes=span.attributes,
                    events=[Event(name, about, at) for at, name, about in span.events],
                    status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                )
                for span in spans
            ]
        )

    def _send_spans(self, spans: Sequence[ReadableSpan]) -> bool:
        with _without_tracing_and_logs():
            return self._spans.export(spans) is SpanExportResult.SUCCESS

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start: int,
        *,
        end_time: int | None = None,
        **more: Any,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            start_time=start,
            end_time=end_time or time.time_ns(),
            instrumentation_scope=self._scope,
            **more,
        )

    def _metric(self, spec: MetricSpec, points: Sequence[Point], now: int) -> Metric:
        numbers = [
            NumberDataPoint(
                _attributes(point.stage, spec.label, point.label_value),
                self._since,
                now,
                point.value,
            )
            for point in points
        ]
        data = Sum(numbers, _CUMULATIVE, is_monotonic=True) if spec.grows else Gauge(numbers)
        return Metric(spec.name, spec.text, spec.unit, data)

    def _histogram(self, histograms: Sequence[Histogram], now: int) -> Metric:
        # The minimum and the maximum of the durations are not known. OTLP does not require them.
        unknown: Any = None
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
def _without_tracing_and_logs() -> Iterator[None]:
    """In the block, do not trace or log requests of this thread: ``Exporter`` logs one warning."""
    import logging

    thread = threading.get_ident()

    def is_of_other_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [
        logging.getLogger(module)
        for module in (OTLPMetricExporter.__module__, OTLPSpanExporter.__module__)
    ]
    token = attach(set_value("suppress_instrumentation", True))
    for logger in loggers:
        logger.addFilter(is_of_other_thread)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_of_other_thread)
        detach(token)
