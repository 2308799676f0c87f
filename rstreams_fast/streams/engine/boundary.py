"""Boundaries between two runs of stages: their interface, their ring, and bursts of elements."""

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
    """A part of a stream that is not a stage of a fused run.

    A boundary subscribes to the publisher above, decides how many elements to ask it for, and
    publishes to the subscriber below.
    """

    #: Whether each output is an input: then the need of the parts below bounds the demand.
    one_to_one: ClassVar[bool] = False
    #: Whether the stream fails if more elements come than were asked for.
    fails_unasked: bool = False
    #: Whether the boundary tolerates a publisher that breaks the rules.
    guards: ClassVar[bool] = False

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return a publisher that subscribes to ``upstream`` anew for each of its subscribers."""
        raise NotImplementedError

    def attach_within(self, upstream: Publisher[Any], need: Need, /) -> Publisher[Any]:  # noqa: ARG002
        """Do the same as ``attach``, where the parts below can use ``need`` only."""
        return self.attach(upstream)

    def resource_above(self) -> Any:
        """Return the executor on which a source directly above is pulled. ``...``: the boundary
        does not choose that executor, and is attached below the source.
        """
        return ...

    def describe(self) -> str:
        """Name the boundary in one line, with how many elements (and bytes) it may hold."""
        raise NotImplementedError


class StagesBoundary(Boundary):
    """A boundary whose own drain carries out the stages directly below it."""

    guards = True

    def attach_stages(self, upstream: Publisher[Any], stages: Stages, need: Need) -> Any:
        """Return a publisher of the results of ``stages`` for the elements of ``upstream``.

        Its attribute ``where`` says in words on which threads the publisher works.
        """
        raise NotImplementedError

    def describe_within(self, need: Need) -> str:  # noqa: ARG002 - by default it changes nothing
        """Return the line of ``describe``, where the parts below can use ``need`` only."""
        return self.describe()


class StagesSource:
    """A publisher that carries out the stages directly below it, too."""

    __slots__ = ()

    #: The threads that the publisher works on, in words.
    where: ClassVar[str]

    def with_stages(self, stages: Stages) -> Publisher[Any]:
        """Return a publisher of the results of ``stages`` for its elements."""
        raise NotImplementedError

    def whole(self) -> PullSource | None:
        """Return a source of all elements, if they are there already; a subscriber may use that."""
        return None


class RingSubscriber:
    """A subscriber whose ``on_next`` our runs may bypass: they offer to ``ring`` directly.

    After each burst of offers, and before any terminal signal, a run calls ``on_burst``. The ring
    has room for all requested elements, so an offer never fails. ``ring`` is ``None`` while
    elements must come one by one.
    """

    __slots__ = ()

    ring: SpscRing | None

    def on_burst(self) -> None:
        """Act on elements that a run has put in the ring."""
        raise NotImplementedError


class _Dropped:
    """Replaces a ring at the end of its stream, and drops each element that comes later (§2.8)."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def offer(self, _element: Any, /) -> bool:
        return True


_DROPPED = _Dropped()


class InputRing:
    """Holds elements until the drain of the subscription takes them out.

    Args:
        ring: An ``SpscRing``, or a ``RecordRing``.
        accept: Adds an element to the ring; returns false if upstream has sent too many elements.
            For the thread that upstream signals on. Default: ``ring.offer``.

    Attributes:
        elements: The ring. The drain, its ``FusedRun`` or its window of calls takes from it.
        accept: The argument.
    """

    __slots__ = ("accept", "elements")

    def __init__(self, ring: Any, accept: Callable[[Any], bool] | None = None) -> None:
        self.elements = ring
        self.accept: Callable[[Any], bool] = ring.offer if accept is None else accept

    def drop(self) -> None:
        """Drop the ring and its elements. An element that comes later is accepted and dropped."""
        self.elements.disarm()
        self.elements = _DROPPED
        self.accept = _DROPPED.offer


class ListSubscriber:
    """Like ``RingSubscriber``, but unbounded: a run of the package appends to the list ``burst``.

    Such a run makes its bursts short if elements are slow, so that no element is late.
    """

    __slots__ = ()

    #: Whether each element must arrive before its source waits for the next element.
    prompt: ClassVar[bool] = False

    burst: list[Any]

    def on_burst(self) -> None:
        """Take out the elements that a run has appended to ``burst``."""
        raise NotImplementedError


class FunctionSubscriber:
    """A subscriber whose ``on_next`` our runs may bypass: they call its function directly."""

    __slots__ = ()

    @property
    def slot(self) -> FunctionSlot | None:
        """The function; ``None`` if elements must be sent to ``on_next``."""
        raise NotImplementedError


def burst_slot(subscriber: Subscriber[Any]) -> Callable[[list[Any]], None] | None:
    """The receiver of bursts; ``None`` if elements must come one by one."""
    # Read ``ring`` once: the subscriber may drop it at any time.
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
