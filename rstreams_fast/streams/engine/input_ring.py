"""The ring between the thread that elements come on and the drain that takes them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["InputRing"]


class _Dropped:
    """Replaces a ring at the end of its stream. It forgets each element that comes later (§2.8)."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def offer(self, _element: Any, /) -> bool:
        return True


_DROPPED = _Dropped()


class InputRing:
    """Holds the elements that have come until the drain of the subscription takes them out.

    Args:
        ring: An ``SpscRing``, or a ``RecordRing``.
        accept: Adds an element to the ring; returns false if upstream has sent too many elements.
            For the thread that upstream signals on. Default: ``ring.offer``.

    Attributes:
        elements: The ring. The drain, its ``FusedRun`` or its window of calls takes from there.
        accept: The argument.
    """

    __slots__ = ("accept", "elements")

    def __init__(self, ring: Any, accept: Callable[[Any], bool] | None = None) -> None:
        self.elements = ring
        self.accept: Callable[[Any], bool] = ring.offer if accept is None else accept

    def drop(self) -> None:
        """Drop the ring and its elements. An element that comes later is accepted and forgotten."""
        self.elements.disarm()
        self.elements = _DROPPED
        self.accept = _DROPPED.offer
