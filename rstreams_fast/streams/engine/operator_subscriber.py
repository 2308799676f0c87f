"""The base class of subscriptions of operators that subscribe to one publisher.

If the publisher breaks a rule of Reactive Streams, the stream fails, or the wrong signal has no
effect. So the subscriber below the operator never sees that a rule was broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Final, TypeVar

from rstreams_fast.api import Subscriber, Subscription
from rstreams_fast.core import FusedRun, RunStatus
from rstreams_fast.errors import DemandExceededError, NoneSignalError, OverlappingCallsError
from rstreams_fast.runtime.executors import Resource
from rstreams_fast.runtime.parking import running_loop
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.signals import check_error_signal, report_late
from rstreams_fast.streams.engine.upstream import Upstream

__all__ = ["TOO_MANY", "OperatorSubscriber"]

A = TypeVar("A")

TOO_MANY: Final = "§1.1: more elements came than had been asked for"


class OperatorSubscriber(Drain):
    """Subscribes to upstream, and is the subscription of downstream. Subclasses add ``on_next``.

    ``_upstream`` makes the requests, and cancels upstream. ``on_error`` signals an error
    immediately. A subclass that holds elements can override ``on_error`` and call ``_keep_error``
    or ``_fail_after_elements``, which signal the error after the held elements. A subclass that
    holds elements must also set ``_waits``, which measures waits for elements and for demand.
    """

    __slots__ = ("_completed", "_upstream", "_waits")

    _only_downstream_calls = False
    _waits: Waits

    def __init__(self, subscriber: Subscriber[Any], resource: Resource | None) -> None:
        super().__init__(subscriber, resource)
        self._upstream = Upstream()
        self._completed = False  # whether upstream has ended; elements may still wait for delivery

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Keep the first subscription, and signal ``on_subscribe``. Cancel later ones (§2.5)."""
        if self._upstream.attach(subscription):
            self._begin()

    def on_next(self, element: Any, /) -> None:
        raise NotImplementedError

    def on_error(self, error: BaseException, /) -> None:
        """Signal the error immediately (§4.2), even without demand (§2.10)."""
        check_error_signal(self, error)
        self._upstream.ended()
        self._fail(error)

    def _keep_error(self, error: BaseException) -> None:
        """Signal an error of upstream after the waiting elements.

        If upstream has already ended, this second end breaks a rule. Then the stream fails
        immediately.
        """
        check_error_signal(self, error)
        if self._completed:
            self._fail(error)
        else:
            self._fail_after_elements(error)

    def _fail_after_elements(self, error: BaseException) -> None:
        """Signal ``error`` after the waiting elements.

        If upstream has already ended, report ``error`` to ``on_dropped_error`` instead.
        """
        if self._upstream.ended():
            self._late_error = error
            self._completed = True
            self._enter()
        else:
            report_late(error)
        self._begin_late()

    def on_complete(self) -> None:
        """Signal ``on_complete`` when all elements are delivered, even without demand (§2.9)."""
        if self._upstream.ended():
            self._completed = True
            self._enter()
            self._begin_late()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return self._upstream.metrics()

    @property
    def works_in_request(self) -> bool:
        return super().works_in_request and self._upstream.works_in_request

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._begin_late()

    def _begin_late(self) -> None:
        """Signal ``on_subscribe`` (§1.9) if upstream ended or failed without ``on_subscribe``."""
        if self._upstream.never_attached():
            self._begin()

    def _check_element(self, element: Any) -> None:
        """If ``element`` is ``None``, fail the stream, and raise a ``TypeError`` (§2.13)."""
        if element is None:
            error = NoneSignalError("§2.13: the publisher signalled on_next(None)")
            self._fail(error)
            raise error
        custody = self.custody
        if custody is not None and not self._upstream.in_custody:
            custody.enter(element)

    def _takes(self, element: Any) -> bool:
        """Check ``element``, and return whether it may be delivered.

        Return false if the stream has ended (§2.8), or if upstream has not called ``on_subscribe``
        yet (§1.9).
        """
        self._check_element(element)
        takes = not self._completed and self._demand.value >= 0
        if not takes:
            self._upstream.on_late_element()
        elif not self._upstream.attached:
            self._too_early()
            return False
        return takes

    def _add_element(self, element: Any, accept: Callable[[Any], bool]) -> bool:
        """Check ``element``, and pass it to the function ``accept``, which stores it.

        Return false if the element was not stored: it came after the end of the stream, or upstream
        has broken a rule. A broken rule also fails the stream.
        """
        if not self._takes(element):
            return False
        try:
            if accept(element):
                return True
        except OverlappingCallsError as overlap:
            self._fail(overlap)  # upstream's signals overlapped, which breaks §1.3
            return False
        self._fail(DemandExceededError(TOO_MANY))
        return False

    def _too_early(self) -> None:
        self._fail(DemandExceededError("§1.9: the publisher called on_next before on_subscribe"))

    def _begin_turns(self, *, on_threads: bool = True) -> None:
        """Limit how long synchronous publishers upstream work without a break.

        A synchronous publisher works within ``request``. So requests that this subscription's
        executor makes are limited to one turn (a time slice of 1 ms) at a time. On a thread without
        an event loop, they are limited only if ``on_threads`` is true. Pass false if the executor
        is the thread that calls ``request``, because no other work waits for this thread.
        """
        if self._resource is not None:
            self.turns = Turns(self._enter, on_threads=on_threads)
            loop = running_loop()
            if loop is not None:  # limit requests that are made now, on this event loop, too
                self.turns.begin(loop)

    def _work_for_a_turn(self) -> bool:
        turns = self.turns
        if turns is None:
            return super()._work_for_a_turn()
        turns.begin(running_loop())
        more = super()._work_for_a_turn()
        turns.leave()
        return more

    def _deliver_from(self, held: Sized, run: FusedRun) -> bool:
        """Deliver elements from the buffer ``held``. Return whether work is left.

        ``run`` takes the elements from ``held``, and passes them through stages to the subscriber.
        If upstream has ended and ``held`` is empty, end the stream. The subclass must have set
        ``_waits``, which measures how long the operator waits for elements and for demand.
        """
        self._waits.end()
        # Read _completed before ``held``. Upstream sets _completed after the last element. So if
        # _completed is true here, ``held`` contains all elements that are left.
        completed = self._completed
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return True
        if status is not RunStatus.IDLE and status is not RunStatus.EXHAUSTED:
            return self._end_with_status(status, run)
        if completed and not held:
            if self._late_error is not None:
                return self._end_late()
            return self._finish_run(run)
        self._waits.begin(for_demand=status is RunStatus.IDLE)
        return False

    def _request(self, n: int) -> None:
        """Request ``n`` elements from upstream. Only one thread at a time may call this (§2.7)."""
        try:
            self._upstream.request(n)
        except Exception as raised:
            self._upstream.request_raised(raised, self._fail)

    def _request_for_a_turn(self, n: int = 0) -> bool:
        """Request ``n`` more elements in small parts. Stop when one turn is over.

        A turn is a time slice of 1 ms. If it ends before all elements are requested, a later call
        requests the rest. If operators upstream have paused at the end of an earlier turn, they use
        this turn to go on: a later call requests all ``n`` elements, and this call returns true.
        Otherwise return whether elements were requested. The caller must buffer the elements that
        come until this call returns.
        """
        turns = self.turns
        if turns is not None and self._resource is not None and turns.resume_paused():
            self._upstream.due += n
            return True
        try:
            return self._upstream.request_for_a_turn(n)
        except Exception as raised:
            self._upstream.request_raised(raised, self._fail)
            return False

    def _stop(self) -> None:
        self._upstream.cancel()

    def _drop_references(self) -> None:
        if self._resource is not None and self.turns is not None:
            self.turns.end()
