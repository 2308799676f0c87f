"""Substreams: the streams into which ``group_by`` and ``window`` divide a stream.

A substream holds elements until its one subscriber (the *reader*) takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import FusedRun, Latch, RunStatus
from rstreams_fast.errors import AlreadySubscribedError
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.parking import signallers_of_thread
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.engine.boundary import StagesSource
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.defaults import BURST
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.inner_subscriber import InnerSubscriber
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.not_picklable import is_internal
from rstreams_fast.streams.engine.signals import refuse, report_late
from rstreams_fast.streams.engine.stages import Stages

__all__ = ["CommonError", "Substream", "ToStream"]

ToStream = Callable[[PublisherSource], Publisher[Any]]
_NO_STAGES = Stages()


class _Owner(Protocol):
    """Interface: the attributes of a ``Divider`` that a substream uses."""

    custody: Custody | None

    @property
    def shares_capacity(self) -> bool: ...
    @property
    def takes_no_more(self) -> bool: ...
    def signals_here(self) -> bool: ...
    def count_taken(self, n: int) -> None: ...
    def request_more(self) -> None: ...
    def close_substream(self, substream: Substream) -> None: ...
    def drop_abandoned(self) -> None: ...
    def metrics(self) -> tuple[BoundaryMetrics, ...]: ...


class CommonError:
    """An error that ends several substreams. It is reported, once, if no subscriber receives it."""

    __slots__ = ("_settled", "_waiting", "error")

    def __init__(self, error: BaseException, substreams: list[Substream], delivered: bool) -> None:
        self.error = error
        self._waiting = set(substreams)
        self._settled = Latch()  # a flag, set when the error is delivered or reported
        if delivered:
            self._settled.win()

    def settle(self, substream: Substream, delivered: bool) -> None:
        """Record whether the subscriber of ``substream`` has received this error.

        ``delivered`` is false if the subscriber will never receive this error. After the calls for
        all substreams, if no subscriber has received the error, report it to ``on_dropped_error``.
        """
        if delivered:
            self._settled.win()
        self._waiting.discard(substream)
        if not self._waiting and self._settled.win():
            report_late(self.error)


class Substream:
    """Holds elements, and then the terminal signal, until the one subscriber takes them.

    ``owner`` is the operator's subscription, which fills the substream. A thread that takes
    elements out passes their number to ``owner.count_taken``, because this makes room.
    """

    __slots__ = ("abandoned", "elements", "error", "key", "over", "owner", "reader", "removed")

    def __init__(self, owner: _Owner, key: Hashable) -> None:
        self.elements: deque[Any] = deque()
        self.owner = owner
        self.key = key
        self.reader: _SubstreamSubscription | None = None
        self.abandoned = False  # true if nobody has subscribed, and nobody can subscribe any more
        self.over = False
        self.removed = Latch()  # a flag, set when the substream is removed from ``Divider.open``
        self.error: CommonError | None = None

    def published_as(self, name: str, to_stream: ToStream) -> Publisher[Any]:
        """Return a stream of the elements. The substream keeps no reference to the stream."""
        return to_stream(PublisherSource(_SubstreamPublisher(self), name, trusted=True))

    def wake(self) -> None:
        """Deliver the held elements to the subscriber, as many as the subscriber has requested."""
        if self.reader is not None:
            self.reader._enter()
        elif self.abandoned and self.owner.takes_no_more:
            self.discard()

    def end(self, error: CommonError | None) -> None:
        """End the substream after the held elements. ``error=None`` means completion."""
        self.error = error
        self.over = True
        self.wake()

    def discard(self) -> None:
        """Drop the elements and the error that the subscriber has not received."""
        count = 0
        with suppress(IndexError):  # another thread may take the last element out
            while self.elements:
                self.elements.popleft()
                count += 1
        if count:
            self.owner.count_taken(count)
        self._drop_error()

    def abandon(self) -> None:
        """Record that nobody can subscribe any more: the publisher was garbage-collected."""
        self.abandoned = True
        self.owner.drop_abandoned()
        self._drop_error()

    def _drop_error(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            error.settle(self, delivered=False)


class _SubstreamPublisher(StagesSource):
    """Publishes a substream to one subscriber.

    Only user code keeps references to this object. When the last reference is gone, nobody can
    subscribe any more. So, if nobody has subscribed, the finalizer calls ``Substream.abandon``,
    which lets the elements be dropped.
    """

    __slots__ = ("__weakref__", "_latch", "_substream")

    where = "the threads that upstream signals on, and the caller of request"
    # ``is_sequence``: whether the iterator of ``open`` never waits for an element. It is true,
    # because ``open`` is called only if ``whole`` has found that all elements have arrived.
    is_sequence = True

    def __init__(self, substream: Substream) -> None:
        self._substream = substream
        self._latch = Latch()  # a flag, set by the first subscriber, or by the finalizer

    @property
    def key(self) -> Any:
        return self._substream.key

    def with_stages(self, stages: Stages) -> _SubstreamStages:
        return _SubstreamStages(self, stages)

    def whole(self) -> _SubstreamPublisher | None:
        """Return this object if ``open()`` may be iterated instead of subscribing, else ``None``.

        There are four conditions. All elements have arrived, without an error. Nobody has
        subscribed. No ``on_discard`` is downstream. No bound applies to the elements of all
        substreams together, because elements that are taken out by ``open`` are not counted.
        """
        substream = self._substream
        owner = substream.owner
        whole = not owner.shares_capacity and substream.over and substream.error is None
        return self if whole and owner.custody is None and not self._latch.won else None

    def open(self) -> Iterator[Any]:
        """Return an iterator of all elements. Call this only if ``whole`` returns this object."""
        if not self._latch.win():
            raise _already_subscribed()
        elements, self._substream.elements = self._substream.elements, deque()
        return iter(elements)

    def describe(self) -> str:
        return "a part of a stream"

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        self.subscribe_below(_NO_STAGES, subscriber)

    def subscribe_below(self, stages: Stages, subscriber: Subscriber[Any]) -> None:
        if not self._latch.win():
            refuse(subscriber, _already_subscribed())
            return
        substream = self._substream
        signals_here = substream.owner.signals_here
        if signals_here():
            signallers_of_thread().append(signals_here)
        substream.reader = reader = _SubstreamSubscription(subscriber, substream, stages)
        reader._begin()

    def __del__(self) -> None:
        # At interpreter exit ``call_from_finalizer`` may be None: module globals are cleared.
        if self._latch.win() and call_from_finalizer is not None:
            call_from_finalizer(self._substream.abandon)


def _already_subscribed() -> AlreadySubscribedError:
    return AlreadySubscribedError("§1.10: this part of a stream has had its one subscriber")


class _SubstreamStages:
    """A publisher of the results of ``stages`` (such as ``map``) on a substream's elements."""

    __slots__ = ("_publisher", "_stages")

    where = _SubstreamPublisher.where

    def __init__(self, publisher: _SubstreamPublisher, stages: Stages) -> None:
        self._publisher = publisher
        self._stages = stages

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        self._publisher.subscribe_below(self._stages, subscriber)


class _SubstreamSubscription(Drain):
    """The subscription of a substream's one subscriber. Delivers the substream's elements."""

    __slots__ = ("_ended", "_pulled", "_substream")

    _only_downstream_calls = False

    def __init__(self, subscriber: Subscriber[Any], substream: Substream, program: Stages) -> None:
        super().__init__(subscriber, None)
        self._substream = substream
        self._pulled = 0
        self._ended = program.takes_nothing  # whether the stages need no more elements
        slot = self._slot_by_bursts(subscriber)
        stages = self._wrap_stages(program.stages)
        self._run = run = FusedRun(substream.elements, stages, slot, self._demand)
        if not program.stages or run.ratio == UNBOUNDED:
            # Deliver many elements at a time (``BURST``) from the start. This delays no result:
            # there are no stages, or the stages give their results only at the end.
            self._grows = False
            self._burst = BURST

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return self._substream.owner.metrics()

    @property
    def waiting(self) -> Subscriber[Any] | None:
        """The subscriber, if it has demand and the substream is empty; otherwise ``None``."""
        return self._subscriber if self._demand.value > 0 and not self._substream.elements else None

    def sleeps(self, waiting: set[int]) -> bool:
        """Return whether the subscriber has no demand, and may never make a request again.

        For a subscriber from outside this package, the result is true if there is no demand. A
        subscriber of this package may have no demand for a while, because it is slow. So the result
        is true only if this subscriber waits for one of those in ``waiting``. Example: ``zip``
        combines the substreams a and b. It has elements of a, and requests no more of them before b
        has sent an element. If the subscriber of b is in ``waiting``, the subscriber of a sleeps.

        Args:
            waiting: The ids of the subscribers that have demand, but whose substream is empty.
        """
        subscriber = self._subscriber
        if self._demand.value != 0 or self._wip.missed != 0 or subscriber is None:
            return False
        if isinstance(subscriber, InnerSubscriber):
            return any(id(other) in waiting for other in subscriber.lacking)
        return not is_internal(subscriber)

    def _drain(self) -> None:
        super()._drain()
        # Request more elements after the delivery, because upstream's ``request`` may take long.
        self._substream.owner.request_more()

    def _work(self) -> bool:
        substream, run = self._substream, self._run
        if self._demand.value < 0:
            self._drop_references()  # drop elements that arrived after the stream's end
            return self._act_on_end()
        if run is None:
            return False
        if self._ended:
            return self._end(run)
        # Read ``over`` before the elements. In the other order, elements and the end could arrive
        # between the two reads, and these elements would be lost.
        over = substream.over
        if not self._demand.value and (substream.elements or not over):
            return False
        status = self._burst_on(run)
        substream.owner.count_taken(run.pulled - self._pulled)
        self._pulled = run.pulled
        if status is RunStatus.MORE:
            return True
        if status is RunStatus.ENDED:
            return self._end(run)
        if status is not RunStatus.IDLE and status is not RunStatus.EXHAUSTED:
            return self._end_with_status(status, run)
        if over and not substream.elements:
            error = substream.error
            if error is None:
                return self._end(run)
            error.settle(substream, delivered=self.end_with(error.error))
            return self._act_on_end()
        return False

    def _end(self, run: FusedRun) -> bool:
        """Close the substream, deliver the elements that stages still hold, and complete."""
        self._ended = True
        self._stop()
        self._substream.discard()
        return self._finish_run(run)

    def _stop(self) -> None:
        self._substream.owner.close_substream(self._substream)

    def _drop_references(self) -> None:
        self._substream.discard()
