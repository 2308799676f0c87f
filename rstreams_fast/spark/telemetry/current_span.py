"""Makes the span of a call OpenTelemetry's current span, while the call runs in a Spark worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import Token
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)

from rstreams_fast.spark.telemetry.written_span import SpanOptions, WrittenSpan

__all__ = ["enter", "leave", "sampled_context"]


class _CurrentSpan(NonRecordingSpan):
    """The current span during a call. What the user's code adds to it is stored in ``span``."""

    def __init__(self, context: SpanContext, span: WrittenSpan) -> None:
        super().__init__(context)
        self._span = span

    def is_recording(self) -> bool:
        return True

    def set_attribute(self, key: str, value: Any) -> None:
        self._span.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._span.attributes.update(attributes)

    def add_event(
        self,
        name: str,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
    ) -> None:
        self._span.events.append((timestamp or time.time_ns(), name, dict(attributes or {})))

    def update_name(self, name: str) -> None:
        self._span.name = name


def sampled_context(trace_id: int, span_id: int) -> SpanContext:
    """Return a ``SpanContext`` with the flag *sampled*, so that the span is exported."""
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags)


def enter(span: WrittenSpan, options: SpanOptions) -> Token[Context]:
    """Make ``span`` the current span, and return a token. ``leave(token)`` undoes this."""
    context = sampled_context(int(options.trace_id, 16), int(span.span_id, 16))
    return attach(set_span_in_context(_CurrentSpan(context, span)))


def leave(token: Token[Context]) -> None:
    detach(token)
