"""What stands between two runs of stages: the face of a boundary, and the hand-over by bursts."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from rstreams_fast.api import Publisher
from rstreams_fast.core import SpscRing

__all__ = ["Boundary", "ListSubscriber", "RingSubscriber"]


@runtime_checkable
class Boundary(Protocol):
    """A stage that is no part of a fused run: it subscribes to what is above it, asks it for
    elements as it sees fit, and publishes to what is below."""

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return a publisher that subscribes to ``upstream`` anew for each of its subscribers."""
        ...

    def describe(self) -> str:
        """Say in one line what this is and how many elements (and bytes) it may hold."""
        ...


class RingSubscriber:
    """A subscriber that a run of ours may bypass ``on_next`` of: it offers to ``ring`` directly.

    After each burst of offers, and before any terminal signal, it calls ``on_burst``. The ring
    takes everything that was requested, so an offer never fails. ``ring`` is ``None`` while
    elements must come one by one.
    """

    __slots__ = ()

    ring: SpscRing | None

    def on_burst(self) -> None:
        """Notice that elements were put in the ring."""
        raise NotImplementedError


class ListSubscriber:
    """The same where there is no bound: a run of ours appends to ``burst``.

    Its bursts are short, as on a resource: what the subscriber makes of slow elements is not late.
    """

    __slots__ = ()

    burst: list[Any]

    def on_burst(self) -> None:
        """Notice that elements were appended, and take them out."""
        raise NotImplementedError
