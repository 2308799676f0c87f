"""The span of a call, as workers write it for the driver, and the options for spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Attributes", "SpanOptions", "WrittenSpan"]

Attributes = dict[str, Any]


@dataclass(frozen=True)
class SpanOptions:
    """The ids of the parent span, in hexadecimal digits, and how many calls have spans."""

    trace_id: str
    parent_id: str
    sample: float
    most: float
    """The most spans of a partition in a second, on average."""


@dataclass
class WrittenSpan:
    """A span that has ended. Times are in nanoseconds since the epoch."""

    name: str
    span_id: str
    start: int
    attributes: Attributes
    events: list[tuple[int, str, Attributes]]
    end: int = 0
    error: str = ""
    """The type of the exception with which the call failed."""
