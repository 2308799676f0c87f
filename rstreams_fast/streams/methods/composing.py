"""Functions with which the methods of ``Stream`` make a new stream.

The classes in the folder ``methods`` are base classes of ``Stream``. A type checker does not know
that ``self`` is a ``Stream``, and refuses attributes of ``Stream``. ``as_stream`` solves this.
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

#: The end of the error message for an ``async`` function in an operator such as ``map``.
USE_MAP_ASYNC: Final = "; use map_async, which awaits such functions"


def as_stream(methods: object) -> Stream[Any]:
    """Return ``methods``, the ``self`` of a base class of ``Stream``, typed as a ``Stream``."""
    return methods  # type: ignore[return-value]


def with_part(stream: S, part: Part) -> S:
    """Return ``stream`` with the operator ``part``, which must not change the elements' type."""
    longer: S = as_stream(stream).with_part(part)  # type: ignore[assignment]
    return longer


def publisher_of(operator: str, *elements: A) -> Pipeline[A]:
    """Return a publisher of ``elements``. If one of them is ``None``, raise a ``TypeError``.

    ``operator`` is the name of the operator in the error message.
    """
    if any(element is None for element in elements):
        raise TypeError(f"{operator}: None is not an element (§2.13)")
    return Pipeline(IterableSource(elements, f"{len(elements)} elements"))
