"""The ring between the thread that elements come on and the drain that takes them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast.core import SpscRing

__all__ = ["DROPPED", "InputRing"]


class _Dropped:
    """Replaces a ring at the end of its stream. It forgets each element that comes later (§2.8)."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def offer(self, _element: Any, /) -> bool:
        return True


DROPPED = _Dropped()


class InputRing:
    """Holds the elements that have come until the drain of the subscription takes them out.

    ``elements`` is the ring, from which a ``FusedRun`` or a window of calls takes. A subscription
    that is a ``RingSubscriber`` shows the same ring as its attribute ``ring``.
    ``accept(element)`` adds an element; false: the ring is full. For the thread that upstream
    signals on.
    """

    __slots__ = ("accept", "elements")

    def __init__(self, capacity: int) -> None:
        ring: SpscRing[Any] = SpscRing(capacity)
        self.elements: Any = ring
        self.accept: Callable[[Any], bool] = ring.offer

    def drop(self) -> None:
        """Drop the ring and its elements. An element that comes later is accepted and forgotten."""
        self.elements.disarm()
        self.elements = DROPPED
        self.accept = DROPPED.offer
