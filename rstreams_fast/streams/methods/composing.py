"""How a method of ``Stream`` makes the next stream.

``Stream`` derives from the classes of this package, so these classes cannot refer to attributes of
``Stream``. The functions here can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from rstreams_fast.streams.engine.assembly import Part
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.sources.iterable import IterableSource

if TYPE_CHECKING:
    from rstreams_fast.streams.stream import Stream

__all__ = ["USE_MAP_ASYNC", "extended", "given", "whole"]

S = TypeVar("S")
A = TypeVar("A")

#: The advice in the error for a function that is ``async``.
USE_MAP_ASYNC: Final = "; use map_async, which awaits such functions"


def whole(methods: object) -> Stream[Any]:
    """Return ``methods``, typed as a stream. Streams made from it may have any element type."""
    return methods  # type: ignore[return-value]


def extended(stream: S, part: Part) -> S:
    """Return ``stream`` with ``part`` at the end; ``part`` keeps the type of the elements."""
    longer: S = whole(stream).with_part(part)  # type: ignore[assignment]
    return longer


def given(operator: str, *elements: A) -> Pipeline[A]:
    """Return a publisher of the elements that a user gave to ``operator``; ``None`` is refused."""
    if any(element is None for element in elements):
        raise TypeError(f"{operator}: None is not an element (§2.13)")
    return Pipeline(IterableSource(elements, f"{len(elements)} elements"))
