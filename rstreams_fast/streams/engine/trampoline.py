"""Trampolines: boundaries that keep the calls in a long chain of operators from nesting.

A publisher calls ``on_next`` of a subscriber. Within this call, the subscriber calls ``on_next`` of
the next subscriber, and so on. Calls of ``request`` nest in the same way, upwards. Python limits
the depth of such calls. So a long chain of operators has a trampoline after every
``TRAMPOLINE_EVERY`` subscribers. A trampoline makes its calls through a queue. While a thread makes
a call from the queue, the thread's further calls are only queued. They are made when the first call
has returned.

All trampolines of one chain share one queue of calls (a ``runtime.executors.Trampoline``). Each
chain has its own queue. The reason: within a call of one stream, a thread can wait for another
stream, which needs the same thread. If the two streams shared a queue, the calls of the second
stream would wait for ever.

A trampoline passes on all signals in their order. The trampoline holds the elements that come while
a call is queued. To limit the number of held elements, the trampoline requests elements in smaller
portions than downstream does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import FusedRun, SpscRing
from rstreams_fast.runtime.executors import Trampoline, WorkDroppedError
from rstreams_fast.streams.engine.boundary import InputRing, RingSubscriber
from rstreams_fast.streams.engine.chain import Chained
from rstreams_fast.streams.engine.defaults import (
    TRAMPOLINE_EVERY,
    TRAMPOLINE_PREFETCH,
    replenish_at,
)
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.signals import refuse
from rstreams_fast.streams.engine.sink_subscriber import subscribe

__all__ = ["NAME", "OperatorPublisher", "TrampolineSubscription", "subscribe_to"]

A = TypeVar("A")

NAME: Final = f"trampoline: at most {TRAMPOLINE_PREFETCH} elements"


class TrampolineSubscription(OperatorSubscriber, RingSubscriber):
    """The subscription of a trampoline, which keeps calls in a long chain from nesting.

    The trampoline makes its calls to the subscriber and to upstream through a queue. ``start``
    subscribes to upstream.
    """

    __slots__ = ("_bounce", "_input", "_requested", "ring")

    def __init__(self, subscriber: Any) -> None:
        super().__init__(subscriber, None)
        if self.trampoline is None:
            self.trampoline = Trampoline()
        self._bounce = self.trampoline.run
        self.depth = 0  # no calls nest below this object, because it queues its calls
        self._requested = 0
        self._waits = Waits(NAME, TRAMPOLINE_PREFETCH)
        self._input = InputRing(SpscRing(TRAMPOLINE_PREFETCH))
        self.ring: SpscRing | None = self._input.elements
        slot = self._slot_by_bursts(subscriber)
        self._run = FusedRun(self.ring, (), slot, self._demand)

    # -- signals from upstream -------------------------------------------------------------------

    def on_next(self, element: Any, /) -> None:
        if self._add_element(element, self._input.accept):
            self._enter()

    def on_burst(self) -> None:
        self._enter()

    def on_error(self, error: BaseException, /) -> None:
        """Signal the error after the elements in the ring."""
        self._keep_error(error)

    # -- calls that are made through the queue -----------------------------------------------------

    def start(self, upstream: Publisher[Any]) -> None:
        self._bounce(lambda: subscribe(upstream, self))

    def _begin(self) -> None:
        self._bounce(super()._begin)

    def _start_drain(self) -> None:
        self._bounce(self._drain)

    def _stop(self) -> None:
        self._bounce(super()._stop)

    # -- the drain: delivering elements ------------------------------------------------------------

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        run = self._run
        if run is None:
            return False
        if self._deliver_from(self._input.elements, run):
            return True
        if self._run is not None:  # the stream has not ended: its end would set _run to None
            self._replenish(self._requested - run.pulled)
        return False

    def _replenish(self, coming: int) -> None:
        """Request the elements that downstream has requested, but no more than the ring can take.

        ``coming`` is the number of elements that are requested from upstream but not delivered yet.
        If ``coming`` is greater than ``_FEW``, request nothing.
        """
        missing = min(self._demand.pending, TRAMPOLINE_PREFETCH) - coming
        if missing > 0 and coming <= _FEW:
            self._requested += missing
            self._request(missing)

    def _drop_references(self) -> None:
        self.ring = None
        self._input.drop()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        mine = self._waits.metrics(self._demand.value, len(self._input.elements))
        return (mine, *self._upstream.metrics_further_up())


_FEW = TRAMPOLINE_PREFETCH - replenish_at(TRAMPOLINE_PREFETCH)
"""A trampoline (an operator that queues elements and calls) makes a new request when at most this
many requested elements are undelivered."""


def subscribe_to(upstream: Publisher[Any], subscriber: Chained) -> None:
    """Subscribe ``subscriber`` to ``upstream``. Signal an exception by ``on_error`` (§1.9).

    If many internal subscribers are below ``subscriber``, put a trampoline above ``subscriber``. So
    calls do not nest too deep in a long chain of operators, or in streams nested in each other.
    """
    if subscriber.depth < TRAMPOLINE_EVERY:
        subscribe(upstream, cast("Subscriber[Any]", subscriber))
    else:
        TrampolineSubscription(subscriber).start(upstream)


class OperatorPublisher(Generic[A]):
    """The publisher of an operator with one upstream.

    For each subscriber, ``make(subscriber, argument)`` makes the operator's subscription, which
    subscribes to ``upstream``. ``where`` names the threads on which the subscription works.
    """

    def __init__(
        self,
        upstream: Publisher[Any],
        make: Callable[[Subscriber[Any], A], Chained],
        argument: A,
        where: str = "",
    ) -> None:
        self._upstream = upstream
        self._make = make
        self._argument = argument
        self.where = where

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        try:
            subscription = self._make(subscriber, self._argument)
        except (MemoryError, WorkDroppedError) as error:
            # The operator could not make its subscription. For example, there was no memory for a
            # large ring, or the event loop was closed.
            refuse(subscriber, error)
        else:
            subscribe_to(self._upstream, subscription)
