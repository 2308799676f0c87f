"""Interfaces of boundaries, the parts of a stream between two fused runs of stages.

A *run* carries out neighbouring stages in one loop. A *burst* is a list of elements that is
delivered at once. Some internal subscribers take bursts in place of single elements.
"""

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

    A boundary subscribes to the publisher above, decides how many elements to request, and
    publishes to the subscriber below.
    """

    #: Whether the boundary sends one element for each element of upstream. Then the boundary needs
    #: only as many elements as the parts below.
    one_to_one: ClassVar[bool] = False
    #: Whether the stream fails if an element comes and there is no demand.
    fails_without_demand: bool = False
    #: Whether the boundary tolerates a publisher that breaks the rules of Reactive Streams.
    guards: ClassVar[bool] = False

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return a publisher that subscribes to ``upstream`` anew for each of its subscribers."""
        raise NotImplementedError

    def attach_within(self, upstream: Publisher[Any], need: Need, /) -> Publisher[Any]:  # noqa: ARG002
        """Return the publisher of ``attach``, for parts below that use at most ``need`` elements.

        A subclass may use ``need`` to request fewer elements. The default ignores ``need``.
        """
        return self.attach(upstream)

    def resource_above(self) -> Any:
        """Return the executor on which a source directly above this boundary is iterated.

        The default is ``...``: the boundary chooses no executor, and subscribes to the source.
        """
        return ...

    def describe(self) -> str:
        """Return one line: the boundary's name, and how many elements (and bytes) it may hold."""
        raise NotImplementedError


class StagesBoundary(Boundary):
    """A boundary that itself carries out the stages (such as ``map``) directly below it."""

    guards = True

    def attach_stages(self, upstream: Publisher[Any], stages: Stages, need: Need) -> Any:
        """Return a publisher that passes the elements of ``upstream`` through ``stages``.

        The parts below use at most ``need`` elements. The attribute ``where`` of the publisher is a
        text that names the threads on which the publisher works.
        """
        raise NotImplementedError

    def describe_within(self, need: Need) -> str:  # noqa: ARG002 - by default it changes nothing
        """Return the line of ``describe``, for parts below that use at most ``need`` elements.

        With a small ``need``, a boundary may hold fewer elements. The default ignores ``need``.
        """
        return self.describe()


class StagesSource:
    """A publisher that can also carry out the stages (such as ``map``) directly below it."""

    __slots__ = ()

    #: A text that names the threads on which the publisher works.
    where: ClassVar[str]

    def with_stages(self, stages: Stages) -> Publisher[Any]:
        """Return a publisher that passes the elements of this publisher through ``stages``."""
        raise NotImplementedError

    def whole(self) -> PullSource | None:
        """Return a source that a subscriber may iterate in place of subscribing.

        The default is ``None``: the publisher does not have all elements yet. Then the subscriber
        must subscribe.
        """
        return None


class RingSubscriber:
    """A subscriber with a ring. Runs of stages put elements in the ring.

    The run does not call ``on_next``. After some elements, and before any terminal signal, the run
    calls ``on_burst``. The ring has room for all requested elements. ``ring`` is ``None`` if runs
    must call ``on_next`` instead.
    """

    __slots__ = ()

    ring: SpscRing | None

    def on_burst(self) -> None:
        """Process the elements that a run of stages has put in the ring."""
        raise NotImplementedError


class _DiscardingRing:
    """Replaces an ``InputRing``'s ring at the end of the stream, and drops late elements (§2.8)."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def offer(self, _element: Any, /) -> bool:
        return True


_DISCARDING_RING = _DiscardingRing()


class InputRing:
    """Holds the elements of upstream until the drain, which delivers elements, takes them out.

    Args:
        ring: An ``SpscRing``, or a ``RecordRing``.
        accept: A function that adds an element to the ring. It returns false if the ring is full,
            because upstream has sent too many elements. Only the thread on which upstream signals
            may call it. Default: ``ring.offer``.

    Attributes:
        elements: The ring, from which the drain takes elements.
        accept: The argument ``accept``.
    """

    __slots__ = ("accept", "elements")

    def __init__(self, ring: Any, accept: Callable[[Any], bool] | None = None) -> None:
        self.elements = ring
        self.accept: Callable[[Any], bool] = ring.offer if accept is None else accept

    def drop(self) -> None:
        """Drop the ring and its elements. Elements that come later are dropped, too."""
        self.elements.disarm()
        self.elements = _DISCARDING_RING
        self.accept = _DISCARDING_RING.offer


class ListSubscriber:
    """A subscriber with a list ``burst``. Runs of stages append elements to the list.

    The run does not call ``on_next``. After some elements the run calls ``on_burst``. If elements
    come slowly, the run calls ``on_burst`` after fewer elements, so that no element waits long.
    """

    __slots__ = ()

    #: Whether ``on_burst`` must be called before the source waits for the next element. Then no
    #: element stays in the list while the source waits.
    prompt: ClassVar[bool] = False

    #: Whether runs may append to ``burst``. If false, as for a user's subclass that has its own
    #: ``on_next``, runs must call ``on_next``.
    takes_bursts: ClassVar[bool] = True

    burst: list[Any]

    def on_burst(self) -> None:
        """Process and remove the elements that a run of stages has appended to ``burst``."""
        raise NotImplementedError


class FunctionSubscriber:
    """A subscriber with a function ``slot``, which runs of stages call in place of ``on_next``."""

    __slots__ = ()

    @property
    def slot(self) -> FunctionSlot | None:
        """The function that runs of stages call, or ``None`` if runs must call ``on_next``."""
        raise NotImplementedError


def burst_slot(subscriber: Subscriber[Any]) -> Callable[[list[Any]], None] | None:
    """Return a function that gives ``subscriber`` a list of elements in one call.

    Return ``None`` if ``subscriber`` takes elements only by ``on_next``.
    """
    # Read ``subscriber.ring`` only once: another thread can set it to ``None`` at any time.
    if isinstance(subscriber, RingSubscriber) and (ring := subscriber.ring) is not None:
        return partial(_offer_all, ring, subscriber.on_burst)
    if isinstance(subscriber, ListSubscriber) and subscriber.takes_bursts:
        return partial(_append_all, subscriber.burst, subscriber.on_burst)
    return None


def _offer_all(ring: SpscRing, on_burst: Callable[[], None], burst: list[Any]) -> None:
    if ring.offer_many(burst) < len(burst):
        raise BufferOverflowError("the ring that takes the results is full")
    on_burst()


def _append_all(taken: list[Any], on_burst: Callable[[], None], burst: list[Any]) -> None:
    taken += burst
    on_burst()
