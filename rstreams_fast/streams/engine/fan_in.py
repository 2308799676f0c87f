"""The fan-in: a subscription that combines several publishers for one subscriber.

There are two kinds of work, each done by one thread at a time:

* *downward work*: signals to the subscriber, made by the drain loop;
* *upward work*: calls of ``subscribe``, of ``request``, and of the user's function that makes a
  publisher.

A publisher may send elements before ``request`` returns. While the drain loop made such a call,
nobody could deliver these elements. So the drain loop calls no publisher: it only stores requests.
A thread makes the stored requests after it has left the drain loop, or when it finds another thread
in the drain loop. If a call causes more upward work, that work waits until the call has returned.
So calls do not nest, even with many synchronous publishers (§3.3).

For each publisher there is an *inner subscriber*. It appends elements in bursts (lists) to the
*mail*, a queue. The drain loop takes the bursts from the mail and delivers them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import DemandCounter, FusedRun, RunStatus, Wip
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.boundary import burst_slot
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.drain import Drain
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.pull_source import at_end
from rstreams_fast.streams.engine.signals import call_all, interrupts, report_late

__all__ = ["COMPLETED", "Ended", "FanIn", "FanInPublisher", "Prefetch", "describe_prefetch"]

A = TypeVar("A")


class Ended:
    """A queue item: a publisher failed with ``error`` or, if ``error`` is ``None``, completed."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


COMPLETED = Ended(None)
_AT_END = (RunStatus.IDLE, RunStatus.EXHAUSTED, RunStatus.ENDED)


class Prefetch:
    """Requests elements in advance from each publisher of a ``FanIn``.

    Each publisher first gets a request for ``size`` elements. When most of these elements are
    delivered, the publisher gets another request. The drain loop, which delivers the elements, only
    appends requests to ``due_requests``. A thread outside the drain loop makes these requests, but
    none before the subscriber's first request. If a turn (a time slice of 1 ms) is over before all
    elements of a request are requested, a later turn requests the rest.

    Args:
        size: The maximum number of elements held for each publisher.
        name: The operator's name and limits, for the metrics, as in ``Stream.describe()``.
        publishers: The maximum number of publishers at the same time. So up to ``publishers *
            size`` elements are held.
    """

    __slots__ = ("_begun", "_unfinished", "due_requests", "replenish_at", "size", "waits")

    def __init__(self, size: int, name: str, publishers: int) -> None:
        self.size = size
        self.replenish_at = replenish_at(size)
        self.due_requests: deque[tuple[Inner, int]] = deque()
        # ``_unfinished``: inner subscribers that have requested only a part of their elements,
        # because the turn (a time slice of 1 ms) was over. A later turn requests the rest.
        self._unfinished: deque[Inner] = deque()
        self._begun = False
        self.waits = Waits(name, publishers * size, from_first_reading=True)

    # -- methods for the thread that calls publishers (upward work) --------------------------------

    def has_begun(self, demand: DemandCounter) -> bool:
        """Return whether the subscriber has made its first request."""
        # ``_begun`` remembers the first request, because the demand may fall to 0 again later.
        if not self._begun:
            self._begun = demand.value > 0
        return self._begun

    def step(self, demand: DemandCounter) -> bool:
        """Make one request of ``due_requests``, and go on with one request that is unfinished.

        A request is unfinished if a turn (a time slice of 1 ms) has ended before all its elements
        were requested. Return false if there was neither a due nor an unfinished request.
        """
        # Read each field only once: another thread can call clear(), which replaces the deques.
        due, unfinished = self.due_requests, self._unfinished
        asked = bool(due) and self.has_begun(demand)
        if asked:
            self.request(*due.popleft())
        if unfinished and demand.value > 0:
            self.request(unfinished.popleft(), 0)
            asked = True
        return asked

    def request(self, inner: Inner, n: int) -> None:
        """Request ``n`` more elements through ``inner``, and the rest of earlier requests.

        A rest remains if a turn (a time slice of 1 ms) ends before all elements are requested. Then
        ``inner`` is stored in ``_unfinished``, and a later turn requests the rest.
        """
        inner.request_for_a_turn(n)
        if inner.due and inner not in self._unfinished:
            self._unfinished.append(inner)

    # -- methods that the drain calls --------------------------------------------------------------

    def count_delivered(self, inner: Inner, n: int) -> None:
        """Count ``n`` elements of ``inner`` as delivered.

        If ``replenish_at`` or more elements were delivered since the last request, append a request
        for the same number of elements to ``due_requests``.
        """
        inner.consumed += n
        if inner.consumed >= self.replenish_at:
            n, inner.consumed = inner.consumed, 0
            if not inner.done:
                self.due_requests.append((inner, n))

    def begin_wait(self, demand: int) -> bool:
        """Begin to measure a wait: for demand if ``demand`` is 0, otherwise for an element.

        Always return false, so that ``_work`` can return this result: no work is left for now.
        """
        self.waits.begin(for_demand=demand == 0)
        return False

    # -- methods that any thread may call ----------------------------------------------------------

    def is_due(self, demand: DemandCounter) -> bool:
        return bool(self.due_requests or (self._unfinished and demand.value > 0))

    def clear(self) -> None:
        """Drop all references. Replace the deques, because another thread may be using them."""
        self.due_requests = deque()
        self._unfinished = deque()


def describe_prefetch(operator: str, publishers: int, size: int) -> str:
    """Return a text that says how many elements of each publisher, and in all, are held at most."""
    return (
        f"{operator} of {publishers} publishers: at most {size} elements of each, "
        f"{publishers * size} in all"
    )


NO_PREFETCH: Final = Prefetch(0, "", 0)
"""A ``Prefetch`` that makes no requests, for subclasses of ``FanIn`` that make their own."""


class FanIn(Drain):
    """A subscription that combines several publishers, with an inner subscriber for each publisher.

    By default, elements are delivered in the order in which they come. A subclass with another
    order overrides ``_work`` or ``_take``. By default, the object ``prefetch`` requests elements in
    advance. A subclass that makes other requests overrides ``_upward`` (makes a request),
    ``_upward_is_due`` (says whether a request is due), ``_inner_attached`` (called when a publisher
    accepts requests) and ``metrics``.

    After the end of the stream, ``_demand.value`` is negative, and a subclass's ``_work`` must call
    ``_act_on_end``. Before the end, ``_work`` takes bursts (lists of elements) and ``Ended``
    objects (the ends of publishers) from the queue ``_mail``. ``_work`` may keep and change a
    burst. A burst can be empty if an ``Ended`` follows. ``_work`` passes at most as many elements
    to ``_deliver`` as downstream has requested, and then calls ``Prefetch.count_delivered``. To end
    the stream, ``_work`` calls ``_complete`` or ``_fail``.
    """

    __slots__ = (
        "_delivering",
        "_inners",
        "_mail",
        "_on_next",
        "_open",
        "_paused_inners",
        "_prefetch",
        "_take_burst",
        "_unsubscribed",
        "_upward_wip",
    )

    _only_downstream_calls = False

    def __init__(self, subscriber: Subscriber[Any], prefetch: Prefetch = NO_PREFETCH) -> None:
        super().__init__(subscriber, None)
        self._prefetch = prefetch
        #: ``_unsubscribed``: inner subscribers that have not subscribed yet. All must subscribe
        #: before the next request: otherwise one publisher could send all its elements first.
        self._unsubscribed: deque[Inner] = deque()
        self._on_next: Callable[[Any], object] | None = subscriber.on_next
        self._take_burst: Callable[[list[Any]], None] | None = None
        self._inners: set[Inner] = set()  # inner subscribers to cancel at the end of the stream
        #: ``_paused_inners``: sequences (such as lists) that must go on with a request in the next
        #: turn (a time slice of 1 ms). Only the thread that calls publishers adds and removes them.
        self._paused_inners: list[Inner] = []
        self._mail: deque[tuple[Inner, list[Any] | Ended]] = deque()
        self._open = True
        self._delivering: list[Any] | None = None
        # ``_upward_wip`` lets one thread at a time call publishers. ``held=True`` lets no thread do
        # so before on_subscribe has returned.
        self._upward_wip = Wip(held=True)

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        inners = self._inners.copy()
        held = sum(len(what) for _, what in self._mail.copy() if isinstance(what, list))
        held += sum(len(inner.queue or ()) for inner in inners)
        mine = self._prefetch.waits.metrics(self._demand.value, held)
        return (mine, *(metrics for inner in inners for metrics in inner.metrics()))

    def start(self) -> None:
        if self._signal_on_subscribe():
            subscriber = self._subscriber
            if subscriber is not None:
                self._take_burst = burst_slot(subscriber)
            self._start_drain()
            self._run_upward()

    # -- calls to publishers (upward work) ---------------------------------------------------------

    def _upward(self) -> bool:
        """Make a due call to a publisher, such as ``request``. Return false if no call is due."""
        return self._prefetch.step(self._demand)

    def _end_upward(self) -> None:
        """Drop references to publishers. Called at the end, by the thread that calls publishers."""
        self._forget_upward()

    def _forget_upward(self) -> None:
        """Drop the references that are kept for the calls to publishers.

        Called at the end of the stream. The thread that calls publishers may then still store new
        references. So this method is called again when that thread has noticed the end.
        """
        self._prefetch.clear()

    def _enter_upward(self) -> None:
        """Make the due calls to publishers. At most one thread at a time does so.

        If another thread is making calls now, that thread also makes the due calls. Never call this
        method within a delivery: a publisher may send elements before the call to it returns.
        """
        if self._upward_wip.enter():
            self._run_upward()

    def _run_upward(self) -> None:
        up, turns = self._upward_wip, self.turns
        try:
            while True:
                missed = up.missed
                while self._demand.value >= 0:
                    # Read the field once: another thread can replace the deque at the end.
                    unsubscribed = self._unsubscribed
                    if unsubscribed:
                        self._subscribe(unsubscribed.popleft())
                    else:
                        more = self._upward()
                        if not (self._paused_inners and self._go_on()) and not more:
                            break
                    if turns is not None and turns.is_over():
                        self._pause(up, turns)
                        return
                if self._demand.value < 0:
                    self._end_upward()
                if up.leave(missed):
                    return
        except BaseException as leaving:
            # The exception (such as KeyboardInterrupt) propagates to the caller, perhaps a
            # publisher, but not to the subscriber. So also signal the exception by on_error.
            if self._demand.value >= 0:
                self._fail(leaving)
            raise

    def _go_on(self) -> bool:
        """Let one paused sequence (such as a list) work for a turn (a time slice of 1 ms).

        Return false if none has worked. Without demand none works: the consumer would resume this
        object in each turn, and so would have no time for its next request.
        """
        paused = self._paused_inners  # read the field once: _drop_references() may replace the list
        if not paused or self._demand.value <= 0:
            return False
        inner = paused.pop(0)
        inner.request_for_a_turn()
        if inner.due:
            self._inner_paused(inner)
        return True

    def resume(self) -> None:
        super().resume()
        self._enter_upward()

    def _subscribe_to(self, publisher: Publisher[Any]) -> Inner:
        """Subscribe to ``publisher``, unless the stream has ended. Return the inner subscriber."""
        inner = new_inner(self, publisher)
        self._subscribe(inner)
        return inner

    def _subscribe(self, inner: Inner) -> None:
        if self._add(inner):
            inner.subscribe()

    def _add(self, inner: Inner) -> bool:
        """Register ``inner``, so that ``_stop`` cancels it at the end of the stream.

        If the stream has already ended, cancel ``inner`` now, and return false.
        """
        self._inners.add(inner)
        if self._demand.value >= 0:
            return True
        # The stream has ended. If _stop() ran before ``inner`` was added, it missed ``inner``.
        self._inners.discard(inner)
        inner.cancel()
        return False

    # -- signals from the inner subscribers, on any thread -----------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        self._prefetch.due_requests.append((inner, self._prefetch.size))
        self._enter_upward()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        self._mail.append((inner, burst))
        if over:
            self._mail.append((inner, COMPLETED))
        del burst  # so that the traceback of an exception keeps no element alive (§3.13)
        self._enter()

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if error is not None and not self._delays(inner, error):
            self._fail(error)
            return
        self._mail.append((inner, COMPLETED if error is None else Ended(error)))
        self._enter()

    def _delays(self, inner: Inner, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether ``error`` must wait in ``_mail``, behind earlier elements. Default: no."""
        return False

    def _inner_paused(self, inner: Inner, /) -> None:
        # This thread makes the calls to publishers. So it calls _go_on() after this call.
        if inner not in self._paused_inners:
            self._paused_inners.append(inner)

    def _lacking_for(self, inner: Inner, /) -> list[Inner]:  # noqa: ARG002 - by default, none
        return []

    # -- the drain: delivering elements ------------------------------------------------------------

    def _enter(self) -> None:
        if self._wip.enter():
            self._drain()
        # Another thread may be in the drain loop for long. So this thread makes the due requests.
        if self._upward_is_due():
            self._enter_upward()

    def _upward_is_due(self) -> bool:
        """Return whether a call to a publisher, such as a request, is due."""
        return self._prefetch.is_due(self._demand)

    def _work(self) -> bool:
        mail = self._mail
        while mail and self._demand.value >= 0:
            self._take(*mail.popleft())
        return self._demand.value < 0 and self._act_on_end()

    def _take(self, inner: Inner, what: list[Any] | Ended) -> None:  # noqa: ARG002
        """Handle one item of ``_mail``: deliver a list of elements, or end the stream."""
        if isinstance(what, list):
            self._deliver(what)
        elif what.error is None:
            self._complete()
        else:
            self._fail(what.error)

    def _deliver(self, burst: list[Any]) -> None:
        """Deliver all elements of ``burst``, and empty the list. Downstream has requested them."""
        count = len(burst)
        take_burst = self._take_burst
        on_next = self._on_next
        if on_next is None or not self._open:
            return
        try:
            if take_burst is not None:
                take_burst(burst)
            else:
                self._delivering = burst
                # Test _open again. If _stop() ran on another thread before _delivering was set,
                # _stop() did not find this delivery, and did not stop it.
                if self._open:
                    for element in burst:
                        on_next(element)
        except Exception as raised:
            if interrupts(raised, on_next):
                raise
            try:
                self.cancel()
            finally:
                report_dropped(raised, "§2.13: on_next raised")
        finally:
            self._delivering = None
            burst.clear()  # so that the traceback of an exception keeps no element alive (§3.13)
            on_next = take_burst = element = None
        self._demand.fulfil(count)

    def _cut_short(self) -> None:
        """Stop the current delivery of a list of elements, and drop the rest of the list."""
        delivering = self._delivering
        if delivering is not None:
            delivering.clear()  # this ends the loop over the list in _deliver

    def _deliver_through(
        self,
        iterator: Iterator[Any],
        stages: tuple[tuple[Any, ...], ...],
        demand: DemandCounter,
    ) -> RunStatus | Ended:
        """Pass elements of ``iterator`` through ``stages``, and deliver the results.

        Take at most ``_burst`` elements of ``iterator``, and deliver at most ``demand`` results.
        Return an ``Ended`` if ``iterator`` or a stage has ended or has raised an exception.
        Otherwise return the status of ``_run``, the loop that carries out the stages.
        """
        run = self._run
        if run is None:
            if self._subscriber is None:
                return RunStatus.CANCELLED
            slot = self._slot_by_bursts(self._subscriber)
            self._run = run = FusedRun(iterator, stages, slot, demand)
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return status
        try:
            if status is RunStatus.IDLE and not at_end(iterator):
                return status
        except Exception as raised:
            end = Ended(raised)
        else:
            if status in _AT_END:
                status = self._flush(run)
            if status is RunStatus.SLOT_FAILED:
                self._end_with_status(status, run)
            if status is not RunStatus.DONE and status is not RunStatus.FAILED:
                return status
            end = Ended(run.error)
        self._drop_run()
        return end

    def _drop_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.clear()

    def _report_undelivered(self) -> None:
        super()._report_undelivered()
        mail = self._mail
        while mail:  # the stream has ended: drop the elements, and report the errors
            _, what = mail.popleft()
            if isinstance(what, Ended) and what.error is not None:
                report_late(what.error)

    def _stop(self) -> None:
        self._open = False
        self._cut_short()
        call_all(inner.cancel for inner in self._inners.copy())

    def _drop_references(self) -> None:
        self._open = False
        self._on_next = self._take_burst = None
        unsubscribed, self._unsubscribed = self._unsubscribed, deque()
        inners = (*self._inners.copy(), *unsubscribed.copy())
        try:
            # _stop() on another thread may have missed an inner subscriber.
            call_all(inner.cancel for inner in inners)
        finally:
            for inner in inners:
                inner.forget()
            self._inners.clear()
            self._paused_inners = []
            self._forget_upward()


class FanInPublisher(Generic[A]):
    """A publisher that makes a new ``FanIn`` for each subscriber.

    ``make(subscriber, upstream, argument)`` must return the new ``FanIn``, which then subscribes to
    ``upstream``. ``argument`` is any object that ``make`` needs, such as the operator's options.
    """

    def __init__(
        self,
        upstream: Publisher[Any],
        make: Callable[[Subscriber[Any], Publisher[Any], A], FanIn],
        argument: A,
    ) -> None:
        self._upstream = upstream
        self._make = make
        self._argument = argument

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        self._make(subscriber, self._upstream, self._argument).start()
