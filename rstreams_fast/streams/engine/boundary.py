"""Interfaces of boundaries: the operators of a stream that are not fused stages.

A *run* carries out neighbouring stages, such as ``map``, in one loop. A boundary stands between two
runs. A *burst* is a list of elements that is delivered in one call. Some internal subscribers take
bursts instead of single elements.
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
    """An operator that is not a fused stage, such as ``publish_on``.

    A boundary subscribes to the publisher above, decides how many elements to request, and
    publishes to the subscriber below.
    """

    #: ``one_to_one``: whether the operator sends one element for each element of upstream. Then the
    #: operator can use only as many elements of upstream as the operators downstream can use.
    one_to_one: ClassVar[bool] = False
    #: ``fails_without_demand``: whether the operator fails the stream if an element comes while
    #: downstream has no demand.
    fails_without_demand: bool = False
    #: ``guards``: whether the operator tolerates an upstream that breaks rules of Reactive Streams.
    guards: ClassVar[bool] = False

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return a publisher that subscribes to ``upstream`` anew for each of its subscribers."""
        raise NotImplementedError

    def attach_within(self, upstream: Publisher[Any], need: Need, /) -> Publisher[Any]:  # noqa: ARG002
        """Return the operator's publisher, which subscribes to ``upstream``.

        The operators downstream use at most ``need`` elements. So a subclass may request fewer
        elements than in ``attach``. The method of this base class ignores ``need``.
        """
        return self.attach(upstream)

    def resource_above(self) -> Any:
        """Return the executor on which to iterate an iterable source directly upstream.

        ``None``: a new thread. ``...`` (Ellipsis, the default): the thread that calls ``request``.
        """
        return ...

    def describe(self) -> str:
        """Return one line: the boundary's name, and how many elements (and bytes) it may hold."""
        raise NotImplementedError


class StagesBoundary(Boundary):
    """A boundary that also carries out the stages (such as ``map``) directly below the boundary."""

    guards = True

    def attach_stages(self, upstream: Publisher[Any], stages: Stages, need: Need) -> Any:
        """Return a publisher that passes the elements of ``upstream`` through ``stages``.

        The operators downstream use at most ``need`` elements. The returned publisher has an
        attribute ``where``: a text that names the threads on which the publisher works.
        """
        raise NotImplementedError

    def describe_within(self, need: Need) -> str:  # noqa: ARG002 - by default it changes nothing
        """Return one line: the boundary's name, and how many elements (and bytes) it may hold.

        A boundary may hold fewer elements if the operators downstream use at most ``need``
        elements, such as 3 for ``take(3)``. The method of this base class ignores ``need``.
        """
        return self.describe()


class StagesSource:
    """A publisher that can also carry out the stages (such as ``map``) directly below itself."""

    __slots__ = ()

    #: ``where``: a text that names the threads on which the publisher works.
    where: ClassVar[str]

    def with_stages(self, stages: Stages) -> Publisher[Any]:
        """Return a publisher that passes the elements of this publisher through ``stages``."""
        raise NotImplementedError

    def whole(self) -> PullSource | None:
        """Return a source that a subscriber may iterate instead of subscribing to this publisher.

        The default ``None`` means that the publisher does not have all its elements yet. Then the
        subscriber must subscribe.
        """
        return None


class RingSubscriber:
    """A subscriber with a ring buffer, in which a run of fused stages puts its results.

    The run does not call ``on_next``. Instead the run calls ``on_burst`` after some results, and
    before any terminal signal. The ring has room for all requested elements. If ``ring`` is
    ``None``, the run must call ``on_next``.
    """

    __slots__ = ()

    ring: SpscRing | None

    def on_burst(self) -> None:
        """Process the elements that a run of fused stages has put in the ring."""
        raise NotImplementedError


class _DiscardingRing:
    """Replaces the ring of an ``InputRing`` at the end of a stream. Drops late elements (§2.8)."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def offer(self, _element: Any, /) -> bool:
        return True


_DISCARDING_RING = _DiscardingRing()


class InputRing:
    """A ring buffer for the elements of upstream. The drain loop takes them out and delivers them.

    Args:
        ring: An ``SpscRing``, or a ``RecordRing``.
        accept: A function that adds an element to the ring. The function returns false if the ring
            is full, because upstream has sent too many elements. Only the thread on which upstream
            signals may call ``accept``. Default: ``ring.offer``.

    Attributes:
        elements: The ring, from which the drain loop takes elements.
        accept: The argument ``accept``.
    """

    __slots__ = ("accept", "elements")

    def __init__(self, ring: Any, accept: Callable[[Any], bool] | None = None) -> None:
        self.elements = ring
        self.accept: Callable[[Any], bool] = ring.offer if accept is None else accept

    def drop(self) -> None:
        """Drop the ring and its elements. Elements that are added later are dropped, too."""
        self.elements.disarm()
        self.elements = _DISCARDING_RING
        self.accept = _DISCARDING_RING.offer


class ListSubscriber:
    """A subscriber with a list ``burst``, to which a run of fused stages appends its results.

    The run does not call ``on_next``. Instead the run calls ``on_burst`` after some results. If
    elements come slowly, the run calls ``on_burst`` after fewer results, so that no result waits
    long.
    """

    __slots__ = ()

    #: ``prompt``: whether this subscriber must get each result without delay. While a source waits
    #: for its next element, earlier results would stay in ``burst``. So if ``prompt`` is true and
    #: the source can wait, the run (loop) of fused stages calls ``on_next`` with each result.
    prompt: ClassVar[bool] = False

    #: ``takes_bursts``: whether a run of fused stages may append to ``burst``. If false, the run
    #: must call ``on_next``. False, for example, in a user's subclass that overrides ``on_next``.
    takes_bursts: ClassVar[bool] = True

    burst: list[Any]

    def on_burst(self) -> None:
        """Process and remove the elements that a run of fused stages has appended to ``burst``."""
        raise NotImplementedError


class FunctionSubscriber:
    """A subscriber whose function ``slot``, not ``on_next``, gets the results of fused stages."""

    __slots__ = ()

    @property
    def slot(self) -> FunctionSlot | None:
        """The function that gets the results of fused stages. If ``None``, ``on_next`` does."""
        raise NotImplementedError


def burst_slot(subscriber: Subscriber[Any]) -> Callable[[list[Any]], None] | None:
    """Return a function that passes a list of elements to ``subscriber`` in one call.

    Return ``None`` if ``subscriber`` takes elements only through ``on_next``.
    """
    # Read ``subscriber.ring`` only once, because another thread can set it to ``None`` at any time.
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
