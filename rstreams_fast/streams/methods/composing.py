"""Functions with which a method of ``Stream`` makes the next stream.

The classes of this package are base classes of ``Stream``. So the type checker does not let them
use attributes of ``Stream``. The functions in this file may use the attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from rstreams_fast.streams.engine.assembly import Part
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.sources.iterable import IterableSource

if TYPE_CHECKING:
    from rstreams_fast.streams.stream import Stream

__all__ = ["USE_MAP_ASYNC", "as_stream", "publisher_of", "with_part"]

S = TypeVar("S")
A = TypeVar("A")

#: The end of the error message for a function that must not be ``async``.
USE_MAP_ASYNC: Final = "; use map_async, which awaits such functions"


def as_stream(methods: object) -> Stream[Any]:
    """Return ``methods``, which is a stream, with the type ``Stream`` for the type checker."""
    return methods  # type: ignore[return-value]


def with_part(stream: S, part: Part) -> S:
    """Return ``stream`` with ``part`` at the end. ``part`` must not change the elements' type."""
    longer: S = as_stream(stream).with_part(part)  # type: ignore[assignment]
    return longer


def publisher_of(operator: str, *elements: A) -> Pipeline[A]:
    """Return a publisher of ``elements``. For ``None`` raise an error that names ``operator``."""
    if any(element is None for element in elements):
        raise TypeError(f"{operator}: None is not an element (§2.13)")
    return Pipeline(IterableSource(elements, f"{len(elements)} elements"))
