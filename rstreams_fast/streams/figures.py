"""What the boundaries of a running stream hold and wait for, readable at any moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BoundaryFigures", "figures_of"]


@dataclass(frozen=True, slots=True)
class BoundaryFigures:
    """One boundary at one moment. Read without stopping it, so figures may be a moment apart."""

    name: str
    """What it is, with its bounds, as ``describe()`` says it."""
    held: int
    """Elements in the ring; the one being delivered has left it."""
    max_held: int
    """The bound on ``held``."""
    held_bytes: int | None
    """Bytes of those and of the one being delivered, by the weigher; ``None`` without one."""
    demand: int
    """Elements requested from below and not delivered yet."""
    waited_for_upstream: float
    """Seconds there was demand, but nothing to deliver."""
    waited_for_demand: float
    """Seconds something was, or might have been, there to be delivered, but was not asked for."""


def figures_of(subscription: Any) -> tuple[BoundaryFigures, ...]:
    """The figures of the boundaries above ``subscription``, the nearest first.

    ``subscription`` is what ``on_subscribe`` was given. Any thread, any time; one that is none of
    ours, or has ended, has none.
    """
    figures = getattr(subscription, "figures", None)
    return tuple(figures()) if callable(figures) else ()
