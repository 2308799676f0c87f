"""Inner subscribers: an operator with several publishers has one inner subscriber for each.

The *owner* of an inner subscriber is the operator's subscription: a ``FanIn``, or its subclass
``SubscriptionArbiter``. An ``InnerSubscriber`` subscribes to any publisher. An ``_InnerSequence``
iterates a sequence, such as a list, without a subscription. Both derive from ``Inner``, and pass
lists of elements to the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from time import perf_counter
from typing import Any, Protocol

from rstreams_fast.api import UNBOUNDED, Publisher, Subscription
from rstreams_fast.core import DemandCounter, FusedRun, RunStatus
from rstreams_fast.errors import (
    DemandExceededError,
    NoneSignalError,
    OverlappingCallsError,
)
from rstreams_fast.runtime.turns import TURN_SECONDS, Turns
from rstreams_fast.streams.engine.boundary import ListSubscriber
from rstreams_fast.streams.engine.chain import Link, take_over_attributes
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.defaults import BURST, next_burst
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.pipeline import sequence_of
from rstreams_fast.streams.engine.pull_source import PullSource, at_end, take_burst
from rstreams_fast.streams.engine.signals import check_error_signal, report_late
from rstreams_fast.streams.engine.stages import Stages
from rstreams_fast.streams.engine.trampoline import subscribe_to
from rstreams_fast.streams.engine.upstream import Upstream

__all__ = ["Inner", "InnerOwner", "InnerSubscriber", "Sequence", "new_inner"]


Sequence = tuple[Iterator[Any], tuple[tuple[Any, ...], ...], DemandCounter]
"""An iterator, the stages for its elements, and the demand for the results of the stages."""


class InnerOwner(Protocol):
    """The methods that an inner subscriber calls on its owner, the operator's subscription.

    The calls are made on the thread on which the publisher signals.
    """

    custody: Custody | None
    turns: Turns | None

    def _inner_attached(self, inner: Any, /) -> None:
        """Make the first request through ``inner``, now or later: ``inner`` has subscribed."""

    def _inner_burst(self, inner: Any, burst: list[Any], over: bool = False, /) -> None:
        """Take ``burst``, a list of elements of ``inner``. All these elements were requested.

        If ``over`` is true, ``inner`` has also completed, and does not call ``_inner_ended``.
        """

    def _inner_ended(self, inner: Any, error: BaseException | None, /) -> None:
        """Handle the end of ``inner``. This is the last call that ``inner`` makes.

        ``error`` is ``None`` if the publisher has completed.
        """

    def _inner_paused(self, inner: Any, /) -> None:
        """Call ``inner.request_for_a_turn()`` later, until ``inner.due`` is false.

        ``inner.request`` calls this if ``turns`` limits its time, and the time did not suffice.
        """

    def _lacking_for(self, inner: Any, /) -> list[Any]:
        """Return the other inner subscribers from which the owner still lacks elements.

        Until these elements have come, the owner cannot use the elements of ``inner``. For example,
        ``zip_`` needs one element of each publisher to make a tuple.
        """


class Inner(Link):
    """An inner subscriber: the subscriber to one of the publishers of the operator ``owner``.

    Attributes:
        requested: How many elements were requested. Only the requesting thread changes this number.
        received: How many elements have come. Only the signalling thread changes this number.
        attached: Whether this object accepts requests. Only some owners set this attribute.
        queue: The elements that wait for delivery. Only the thread that delivers uses ``queue``,
            ``consumed`` and ``done``.
        consumed: How many elements were delivered since the last request.
        done: Whether the publisher has ended.
    """

    __slots__ = (
        "attached",
        "consumed",
        "done",
        "owner",
        "queue",
        "received",
        "requested",
    )

    def __init__(self, owner: InnerOwner) -> None:
        self.owner: InnerOwner | None = owner
        below = owner.custody
        self.custody = None if below is None else below.inner()
        self.requested = 0
        self.received = 0
        self.attached = False
        self.queue: list[Any] | None = None
        self.consumed = 0
        self.done = False

    def subscribe(self) -> None:
        """Subscribe to the publisher. This leads to a call of ``owner._inner_attached``.

        If the publisher is empty or fails, ``owner._inner_ended`` may be called instead.
        """
        raise NotImplementedError

    def request(self, n: int) -> None:
        """Request ``n`` more elements. Only one thread at a time may call this (§2.7).

        If the owner has ``turns``, a sequence (such as a list) gives its elements for at most one
        turn (a time slice of 1 ms). Then it calls ``owner._inner_paused``.
        """
        raise NotImplementedError

    def request_for_a_turn(self, n: int = 0) -> bool:
        """Request ``n`` more elements in small parts. Stop when one turn is over.

        A turn is a time slice of 1 ms. If it ends before all elements are requested, a later call
        requests the rest. Return whether any elements were requested. The owner must buffer the
        elements that come until this call returns.
        """
        raise NotImplementedError

    @property
    def due(self) -> bool:
        """Whether ``request_for_a_turn`` ran out of time (1 ms), and must be called again."""
        raise NotImplementedError

    def hand_over(self) -> Sequence | None:
        """Return the publisher's sequence (such as a list), so that the owner itself iterates it.

        The owner calls this instead of ``request(UNBOUNDED)``. The result is ``None`` if the
        publisher is no sequence, has already got a request, or must register elements for
        ``on_discard``. Then the owner must call ``request``.
        """
        return None

    def cancel(self) -> None:
        """Cancel upstream, unless it has ended. Drop the reference to the owner (§3.13)."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop the references to the owner and to the waiting elements (§3.13)."""
        self.owner = None
        self.queue = None
        if self.custody is not None:
            self.custody.close()

    def _report_end(self, error: BaseException | None) -> None:
        """Tell the owner that the publisher has failed with ``error``, or has completed.

        After ``cancel`` there is no owner. Then report ``error`` to ``on_dropped_error``.
        """
        owner = self.owner
        if owner is not None:
            owner._inner_ended(self, error)
        elif error is not None:
            report_late(error)

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return ()


def new_inner(owner: InnerOwner, publisher: Publisher[Any]) -> Inner:
    """Return a new inner subscriber for ``publisher``. It has not subscribed yet."""
    sequence = sequence_of(publisher)
    if sequence is not None:
        return _InnerSequence(owner, *sequence)
    return InnerSubscriber(owner, publisher)


class InnerSubscriber(Inner, ListSubscriber):
    """An inner subscriber that tolerates a publisher that breaks the rules of Reactive Streams.

    The publisher may signal ``None``, too many elements, or elements after its end. The publisher
    may signal from several threads at the same time, send a second subscription, or raise. The
    owner still gets only elements that it requested, and at most one end.
    """

    __slots__ = ("_publisher", "_upstream", "burst")

    prompt = True

    def __init__(self, owner: InnerOwner, publisher: Publisher[Any]) -> None:
        take_over_attributes(self, owner)
        super().__init__(owner)
        self._publisher: Publisher[Any] | None = publisher
        self._upstream = Upstream()
        self.burst: list[Any] = []

    @property
    def lacking(self) -> list[Inner]:
        """The other inner subscribers from which the owner still lacks elements.

        Until these elements have come, the owner cannot use the elements of this object.
        """
        owner = self.owner
        return [] if owner is None else owner._lacking_for(self)

    # -- methods that the owner calls --------------------------------------------------------------

    def subscribe(self) -> None:
        """Subscribe to the publisher. If its ``subscribe`` raises, call ``on_error`` (§1.9)."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            subscribe_to(publisher, self)

    def request(self, n: int) -> None:
        self.requested += n
        try:
            self._upstream.request(n)
        except Exception as raised:
            self._upstream.request_raised(raised, self._break)

    def request_for_a_turn(self, n: int = 0) -> bool:
        self.requested += n
        try:
            return self._upstream.request_for_a_turn(n)
        except Exception as raised:
            self._upstream.request_raised(raised, self._break)
            return False

    @property
    def due(self) -> bool:
        return self._upstream.due > 0 and not self._upstream.over

    def cancel(self) -> None:
        self.owner = None
        self._publisher = None
        try:
            self._upstream.cancel()
        finally:
            if self.custody is not None:
                self.custody.close()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return self._upstream.metrics()

    # -- signals from the publisher --------------------------------------------------------------

    def on_subscribe(self, subscription: Subscription, /) -> None:
        if self._upstream.attach(subscription):
            owner = self.owner
            if owner is not None:
                owner._inner_attached(self)

    def on_next(self, element: Any, /) -> None:
        if element is None:
            error = NoneSignalError("§2.13: the publisher signalled on_next(None)")
            self._break(error)
            raise error
        owner, custody = self.owner, self.custody
        if custody is not None and not self._upstream.in_custody:
            custody.enter(element)
        if owner is None or self._upstream.over:  # drop an element that comes after the end (§2.8)
            self._upstream.on_late_element()
        elif self.received >= self.requested:
            self._break(DemandExceededError("§1.1: more elements came than had been asked for"))
        else:
            self.received += 1
            burst = [element] if custody is None else custody.pass_on([element])
            del element  # so that the traceback of an exception keeps no element alive (§3.13)
            owner._inner_burst(self, burst)

    def on_burst(self) -> None:
        """Pass the elements in ``burst`` to the owner. A run of fused stages has appended them.

        The elements need no checks, because the run keeps the rules of Reactive Streams.
        """
        burst = self.burst[:]
        self.burst.clear()  # do not replace the list: the run of fused stages still appends to it
        owner = self.owner
        if burst and owner is not None:
            self.received += len(burst)
            if self.custody is not None:
                burst = self.custody.pass_on(burst)
            owner._inner_burst(self, burst)

    def on_error(self, error: BaseException, /) -> None:
        check_error_signal(self, error)
        if not self._end(error):
            report_late(error)

    def on_complete(self) -> None:
        self._end(None)

    def _end(self, error: BaseException | None) -> bool:
        if not self._upstream.ended():
            return False
        self._upstream.never_attached()  # _upstream.attach() now cancels any later subscription
        if self.custody is not None:
            self.custody.close()
        self._report_end(error)
        return True

    def _break(self, error: BaseException) -> None:
        """Cancel upstream, and tell the owner that the publisher has failed with ``error``."""
        owner, first = self.owner, True  # only the first call of _upstream.cancel() can raise
        try:
            first = self._upstream.cancel()
        finally:
            self.cancel()
            if owner is not None and first:
                owner._inner_ended(self, error)


class _InnerSequence(Inner):
    """An inner subscriber for a sequence, such as a list. ``request`` iterates the sequence.

    If stages are below the sequence, the elements pass through the stages. The iterator of a
    sequence never waits and needs no closing. So ``cancel`` only ends the loop over the iterator.
    """

    __slots__ = (
        "_burst",
        "_demand",
        "_ended",
        "_iterator",
        "_results",
        "_run",
        "_source",
        "_stages",
    )

    def __init__(self, owner: InnerOwner, source: PullSource, stages: Stages) -> None:
        super().__init__(owner)
        self._source: PullSource | None = source
        self._stages: Stages | None = stages
        self._iterator: Any = None
        self._run: FusedRun | None = None
        self._demand: DemandCounter | None = None
        self._burst = 1
        self._ended = False

    def subscribe(self) -> None:
        owner, source, stages = self.owner, self._source, self._stages
        self._source = None
        if owner is None or source is None or stages is None:
            return
        try:
            self._iterator = iterator = source.open()
            self._ended = at_end(iterator)
        except Exception as raised:
            self._end(raised)
            return
        if stages.stages:
            self._demand = DemandCounter()
            self._results: list[Any] = []
            program, custody = stages.stages, self.custody
            if custody is not None:
                program = custody.wrap_stages(program, enters=True)
            self._run = FusedRun(iterator, program, self._results.append, self._demand)
        # If cancel() ran on another thread before ``_run`` (the loop of stages) was set, clear it.
        if self.owner is None:
            self._close()
        elif not (self._ended and self._finish()):
            owner._inner_attached(self)

    def request(self, n: int) -> None:
        owner = self.owner
        forever = owner is None or owner.turns is None
        self._request(n, forever=forever)
        if owner is not None and not forever and self.due:
            owner._inner_paused(self)

    def request_for_a_turn(self, n: int = 0) -> bool:
        return self._request(n, forever=False)

    @property
    def due(self) -> bool:
        demand = self._demand
        if self._iterator is None:
            return False
        return self.requested > self.received if demand is None else demand.value > 0

    def _request(self, n: int, *, forever: bool) -> bool:
        self.requested += n
        if self.owner is None or self._iterator is None:  # this object is cancelled, or has ended
            return False
        demand = self._demand
        if demand is None:
            left = self.requested - self.received
            self._take(left, forever=forever)
            return left > 0
        if n:
            demand.request(n)
        if demand.value <= 0:
            return False
        self._run_stages(forever=forever)
        return True

    def hand_over(self) -> Sequence | None:
        iterator, stages = self._iterator, self._stages
        if self.requested or self.custody is not None or iterator is None or stages is None:
            return None
        self._demand = demand = DemandCounter(UNBOUNDED)
        # If cancel() ran on another thread before ``_demand`` was set, cancel ``_demand`` now.
        if self.owner is None:
            demand.cancel()
        self._close()
        return iterator, stages.stages, demand

    def cancel(self) -> None:
        self.owner = None
        self._source = None
        if self._demand is not None:
            self._demand.cancel()
        self._close()

    def _take(self, n: int, *, forever: bool) -> None:
        """Pass ``n`` elements to the owner. If ``forever`` is false, stop after one turn (1 ms)."""
        iterator = self._iterator
        # Few elements are quick. So they do without the look at the clock.
        until = inf if forever or n <= BURST else perf_counter() + TURN_SECONDS
        while n > 0 and (owner := self.owner) is not None:
            burst, self._ended, error = take_burst(iterator, min(n, BURST))
            if error is not None:
                self._give(owner, burst)
                self._end(error)
                return
            n -= len(burst)
            if self._ended and not burst:  # the user has shortened the sequence meanwhile
                self._end(None)
                return
            if self._ended:
                self.received += len(burst)
                if self.custody is not None:
                    burst = self._pass_on(burst, self.custody)
                self._close()
                owner._inner_burst(self, burst, True)
                return
            self._give(owner, burst)
            if until < inf and perf_counter() >= until:
                return

    def _pass_on(self, burst: list[Any], custody: Custody) -> list[Any]:
        # Register the elements, so that ``on_discard`` gets those that are not delivered. But with
        # stages (``_demand`` is not None) ``burst`` has their results, which they registered.
        if self._demand is None:
            for element in burst:
                custody.enter(element)
        return custody.pass_on(burst)

    def _give(self, owner: InnerOwner, burst: list[Any]) -> None:
        if burst:
            self.received += len(burst)
            if self.custody is not None:
                burst = self._pass_on(burst, self.custody)
            owner._inner_burst(self, burst)

    def _run_stages(self, *, forever: bool) -> None:
        """Pass elements of the sequence (such as a list) through the stages, to the owner.

        Stop when the demand is met. If ``forever`` is false, also stop after one turn (a time slice
        of 1 ms). The first burst has one element, because the functions of the stages can be slow.
        If these functions are quick, later bursts have more elements.
        """
        until = perf_counter() + TURN_SECONDS
        while not self._ended:
            run = self._run
            if run is None:
                return
            started = perf_counter()
            status = self._step(run.drain, self._burst)
            self._hand_over()
            took = perf_counter() - started
            self._burst = next_burst(self._burst, took)
            if status is RunStatus.EXHAUSTED or status is RunStatus.ENDED:
                self._ended = True
            elif status is RunStatus.IDLE or (
                status is RunStatus.MORE and not forever and started + took >= until
            ):
                try:
                    self._ended = at_end(self._iterator)
                except Exception as raised:
                    self._end(raised)
                    return
                if not self._ended:
                    return
            elif status is not RunStatus.MORE:
                self._end(run.error)
                return
        self._finish()

    def _finish(self) -> bool:
        """Pass on elements that stages hold at the end of the sequence, such as a partial batch.

        Then tell the owner (the operator's subscription) that the sequence has ended. But if the
        demand is too small for all elements, only return false: the next request calls this again.
        """
        run = self._run
        if run is not None:
            status = self._step(run.finish)
            self._hand_over()
            if status is RunStatus.IDLE:
                return False
            self._end(None if status is RunStatus.DONE else run.error)
        else:
            self._end(None)
        return True

    def _step(self, step: Callable[..., RunStatus], *args: int) -> RunStatus:
        """Call ``step``, a method of ``_run``, and return the resulting status.

        Return ``CANCELLED`` if another thread has called ``cancel`` meanwhile.
        """
        try:
            return step(*args)
        except OverlappingCallsError:
            if self.owner is None:
                return RunStatus.CANCELLED
            raise

    def _hand_over(self) -> None:
        results, owner = self._results, self.owner
        if results:
            burst = results[:]
            results.clear()
            if owner is not None:
                self._give(owner, burst)

    def _end(self, error: BaseException | None) -> None:
        self._close()
        self._report_end(error)

    def _close(self) -> None:
        self._iterator = self._stages = None  # drop stages: ``reduce`` may hold an element (§3.13)
        run, self._run = self._run, None
        if run is not None:
            run.clear()
        if self.custody is not None:
            self.custody.close()
