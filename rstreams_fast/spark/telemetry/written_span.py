"""``WrittenSpan``, which workers write to files for the driver, and the options for spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Attributes", "SpanOptions", "WrittenSpan"]

Attributes = dict[str, Any]


@dataclass(frozen=True)
class SpanOptions:
    """The hexadecimal ids of the parent of a worker's spans, and how many calls have spans."""

    trace_id: str
    parent_id: str
    sample: float
    most: float
    """The most spans of a partition per second, on average."""


@dataclass
class WrittenSpan:
    """The span of a call, as a worker writes it. Times are in nanoseconds since the epoch."""

    name: str
    span_id: str
    start: int
    attributes: Attributes
    events: list[tuple[int, str, Attributes]]
    end: int = 0
    error: str = ""
    """The name of the type of the exception that the call raised; empty after a success."""
