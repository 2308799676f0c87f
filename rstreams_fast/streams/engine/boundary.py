"""What is between two runs of stages: the face of a boundary, its ring, and bursts of elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import FunctionSlot, SpscRing
from rstreams_fast.errors import BufferOverflowError
from rstreams_fast.streams.engine.pull_source import PullSource
from rstreams_fast.streams.engine.stages import Need, Stages

__all__ = [
    "Boundary",
    "FunctionSubscriber",
    "InputRing",
    "ListSubscriber",
    "RingSubscriber",
    "StagesBoundary",
    "StagesSource",
    "burst_slot",
]


class Boundary:
    """A part of a stream that is no stage of a fused run.

    It subscribes to what is above it, asks it for elements as it sees fit, and publishes to what
    is below.
    """

    #: Whether each element that leaves is one that has come: then what is below bounds the demand.
    one_to_one: ClassVar[bool] = False
    #: Whether the stream fails if fewer elements are asked for than come.
    fails_unasked: bool = False
    #: Whether it bears a publisher that breaks the rules.
    guards: ClassVar[bool] = False

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return a publisher that subscribes to ``upstream`` anew for each of its subscribers."""
        raise NotImplementedError

    def attach_within(self, upstream: Publisher[Any], need: Need, /) -> Publisher[Any]:  # noqa: ARG002
        """Do the same, where what is below can make use of ``need`` only."""
        return self.attach(upstream)

    def resource_above(self) -> Any:
        """The executor on which a source directly above is pulled; ``...`` if that stays as it
        is, and this is attached to it.
        """
        return ...

    def describe(self) -> str:
        """Say in one line what this is and how many elements (and bytes) it may hold."""
        raise NotImplementedError


class StagesBoundary(Boundary):
    """A boundary whose own drain carries out the stages directly below it, with which it is
    attached.
    """

    guards = True

    def attach_stages(self, upstream: Publisher[Any], stages: Stages, need: Need) -> Any:
        """Return a publisher of what ``stages`` make of the elements of ``upstream``.

        It has an attribute ``where``: the threads that it works on, in words.
        """
        raise NotImplementedError

    def describe_within(self, need: Need) -> str:  # noqa: ARG002 - by default it changes nothing
        """Say the same as ``describe``, where what is below can make use of ``need`` only."""
        return self.describe()


class StagesSource:
    """A publisher that carries out the stages directly below it, too."""

    __slots__ = ()

    #: The threads that it works on, in words.
    where: ClassVar[str]

    def with_stages(self, stages: Stages) -> Publisher[Any]:
        """Return a publisher of what ``stages`` make of its elements."""
        raise NotImplementedError

    def whole(self) -> PullSource | None:
        """The source of its elements, if they are all there: a subscriber may as well take them."""
        return None


class RingSubscriber:
    """A subscriber whose ``on_next`` our runs may bypass: they offer to ``ring`` directly.

    After each burst of offers, and before any terminal signal, a run calls ``on_burst``. The ring
    takes everything that was requested, so an offer never fails. ``ring`` is ``None`` while
    elements must come one by one.
    """

    __slots__ = ()

    ring: SpscRing | None

    def on_burst(self) -> None:
        """Notice that elements were put in the ring."""
        raise NotImplementedError


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


class ListSubscriber:
    """The same where there is no bound: a run of the package appends to ``burst``.

    Its bursts are short, as on a resource: what the subscriber makes of slow elements is not late.
    """

    __slots__ = ()

    #: Whether no element may be held back by a source that waits for the next one.
    prompt: ClassVar[bool] = False

    burst: list[Any]

    def on_burst(self) -> None:
        """Notice that elements were appended, and take them out."""
        raise NotImplementedError


class FunctionSubscriber:
    """A subscriber whose ``on_next`` our runs may bypass: they call its function directly."""

    __slots__ = ()

    @property
    def slot(self) -> FunctionSlot | None:
        """The function; ``None``: its elements must be sent to ``on_next``."""
        raise NotImplementedError


def burst_slot(subscriber: Subscriber[Any]) -> Callable[[list[Any]], None] | None:
    """The receiver of bursts; ``None`` if elements must come one by one."""
    # One look at the ring: the subscriber may drop it at any time.
    if isinstance(subscriber, RingSubscriber) and (ring := subscriber.ring) is not None:
        return partial(_offer_all, ring, subscriber.on_burst)
    if isinstance(subscriber, ListSubscriber):
        return partial(_append_all, subscriber.burst, subscriber.on_burst)
    return None


def _offer_all(ring: SpscRing, on_burst: Callable[[], None], burst: list[Any]) -> None:
    if ring.offer_many(burst) < len(burst):
        raise BufferOverflowError("the ring that takes the results is full")
    on_burst()


def _append_all(taken: list[Any], on_burst: Callable[[], None], burst: list[Any]) -> None:
    taken += burst
    on_burst()
