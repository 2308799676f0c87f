"""The fan-in: several publishers above, one subscriber below.

There are two kinds of work, each done by one thread at a time:

* *downward work*, the drain: signals to the subscriber;
* *upward work*: calls of ``subscribe``, of ``request``, and of the user's function that makes a
  publisher.

A publisher may send elements before ``request`` returns. So the drain calls no publisher: it stores
the requests to make. The thread that leaves the drain, or finds another thread in it, does the
upward work. If a call causes more upward work, that work waits until the call has returned. So
calls do not nest, even with many synchronous publishers (§3.3). The elements of a slow publisher
are delivered as they come.

An *inner* is the subscriber to one of the publishers. Elements come in bursts (lists): an inner
appends a burst to the *mail*, the queue of the drain, and the drain delivers the burst.
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
from rstreams_fast.streams.engine.signals import report_late

__all__ = ["COMPLETED", "Ended", "FanIn", "FanInPublisher", "Prefetch", "describe_prefetch"]

A = TypeVar("A")


class Ended:
    """The end of one publisher, queued after its elements. ``error=None`` means completion."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


COMPLETED = Ended(None)
_AT_END = (RunStatus.IDLE, RunStatus.EXHAUSTED, RunStatus.ENDED)


class Prefetch:
    """Requests elements in advance from each publisher of a fan-in.

    Each publisher gets a request for ``size`` elements. When most of these elements are consumed,
    the publisher gets the next request. The drain, which delivers elements, stores each request in
    ``due_requests``. The thread that does the upward work (the calls to publishers) makes the
    requests. No request is made before the subscriber's first request. On an event loop, some
    elements of a request can be requested in a later turn (a millisecond).

    Args:
        size: How many elements of each publisher may be held.
        name: The name of the boundary, with its bounds, for its metrics.
        publishers: The most publishers at a time. So ``publishers * size`` elements may be held.
    """

    __slots__ = ("_begun", "_unfinished", "due_requests", "replenish_at", "size", "waits")

    def __init__(self, size: int, name: str, publishers: int) -> None:
        self.size = size
        self.replenish_at = replenish_at(size)
        self.due_requests: deque[tuple[Inner, int]] = deque()
        # Inners that have not requested all elements yet, because their turn (a millisecond on the
        # event loop) was over. They request the other elements in a later turn.
        self._unfinished: deque[Inner] = deque()
        self._begun = False
        self.waits = Waits(name, publishers * size, from_first_reading=True)

    # -- for the thread that calls publishers (upward work) ----------------------------------------

    def has_begun(self, demand: DemandCounter) -> bool:
        """Whether the subscriber has made its first request."""
        # Remember the first request in ``_begun``, because the demand may fall to 0 again later.
        if not self._begun:
            self._begun = demand.value > 0
        return self._begun

    def step(self, demand: DemandCounter) -> bool:
        """Make one due request to a publisher, and one request that an earlier turn left over.

        Return false if there is no request to make.
        """
        # Read each field once: clear(), on another thread, can replace it between two reads.
        due, unfinished = self.due_requests, self._unfinished
        asked = bool(due) and self.has_begun(demand)
        if asked:
            self.request(*due.popleft())
        if unfinished and demand.value > 0:
            self.request(unfinished.popleft(), 0)
            asked = True
        return asked

    def request(self, inner: Inner, n: int) -> None:
        """Request ``n`` more elements through ``inner``, and elements that earlier calls left over.

        If the turn on the event loop ends before all are requested, this call leaves elements
        over, too. Then ``_unfinished`` keeps ``inner`` for a later turn.
        """
        inner.request_for_a_turn(n)
        if inner.due and inner not in self._unfinished:
            self._unfinished.append(inner)

    # -- methods that the drain calls --------------------------------------------------------------

    def count_delivered(self, inner: Inner, n: int) -> None:
        """Count ``n`` elements of ``inner`` as delivered.

        When ``replenish_at`` elements were delivered since the last request, add a request for the
        same number of elements to ``due_requests``.
        """
        inner.consumed += n
        if inner.consumed >= self.replenish_at:
            n, inner.consumed = inner.consumed, 0
            if not inner.done:
                self.due_requests.append((inner, n))

    def begin_wait(self, demand: int) -> bool:
        """Begin a wait in the metrics: for demand if ``demand`` is 0, otherwise for an element.

        Always return false. ``_work`` can return this result: there is nothing to do at once.
        """
        self.waits.begin(for_demand=demand == 0)
        return False

    # -- methods that any thread may call ----------------------------------------------------------

    def is_due(self, demand: DemandCounter) -> bool:
        return bool(self.due_requests or (self._unfinished and demand.value > 0))

    def clear(self) -> None:
        """Drop the references. Replace the deques, because another thread may be using them."""
        self.due_requests = deque()
        self._unfinished = deque()


def describe_prefetch(operator: str, publishers: int, size: int) -> str:
    """Return a text that says how many elements of the publishers may be held."""
    return (
        f"{operator} of {publishers} publishers: at most {size} elements of each, "
        f"{publishers * size} in all"
    )


NO_PREFETCH: Final = Prefetch(0, "", 0)
"""A ``Prefetch`` that makes no requests, for fan-ins that request elements themselves."""


class FanIn(Drain):
    """A subscription that combines several publishers. An *inner* is the subscriber to one of them.

    By default the drain delivers elements in the order in which they come. A subclass with another
    order overrides ``_work`` or ``_take``. By default ``prefetch`` requests elements in advance. A
    subclass with other requests overrides ``_upward``, ``_upward_is_due``, ``_inner_attached`` and
    ``metrics``.

    An overriding ``_work`` calls ``_act_on_end`` if the demand is negative. Otherwise ``_work``
    takes bursts (lists of elements) and ``Ended`` objects from the queue ``_mail``. ``_work`` may
    keep and change a burst. A burst can be empty if an ``Ended`` follows. ``_work`` passes at most
    as many elements to ``_deliver`` as the demand allows. ``_deliver`` lowers the demand. Then
    ``_work`` calls ``Prefetch.count_delivered``. ``_work`` ends the stream by ``_complete`` or
    ``_fail``.
    """

    __slots__ = (
        "_delivering",
        "_inners",
        "_mail",
        "_on_next",
        "_open",
        "_prefetch",
        "_take_burst",
        "_unsubscribed",
        "_upward_wip",
    )

    _only_downstream_calls = False

    def __init__(self, subscriber: Subscriber[Any], prefetch: Prefetch = NO_PREFETCH) -> None:
        super().__init__(subscriber, None)
        self._prefetch = prefetch
        #: Inner subscribers that have not subscribed yet. All of them subscribe before any request
        #: is made.
        self._unsubscribed: deque[Inner] = deque()
        self._on_next: Callable[[Any], object] | None = subscriber.on_next
        self._take_burst: Callable[[list[Any]], None] | None = None
        self._inners: set[Inner] = set()  # inner subscribers to cancel at the end of the stream
        self._mail: deque[tuple[Inner, list[Any] | Ended]] = deque()
        self._open = True
        self._delivering: list[Any] | None = None
        # Lets one thread at a time call publishers, and no thread before on_subscribe has returned.
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
        """Make one call to a publisher. Return false if no call is due."""
        return self._prefetch.step(self._demand)

    def _end_upward(self) -> None:
        """Clean up the upward work (the calls to publishers) after the end of the stream."""
        self._forget_upward()

    def _forget_upward(self) -> None:
        """Drop the references that the upward work (the calls to publishers) keeps.

        Called at the end of the stream. The upward work can store new references after that. So
        this is called again when that work has seen the end.
        """
        self._prefetch.clear()

    def _enter_upward(self) -> None:
        """Make the due calls to publishers, or leave them to a thread that is making calls now.

        Never called while this thread delivers: a publisher may signal before a call returns.
        """
        if self._upward_wip.enter():
            self._run_upward()

    def _run_upward(self) -> None:
        up, turns = self._upward_wip, self.turns
        try:
            while True:
                missed = up.missed
                while self._demand.value >= 0:
                    # Read _unsubscribed once: _drop_references(), on another thread, can replace it
                    # between two reads.
                    unsubscribed = self._unsubscribed
                    if unsubscribed:
                        self._subscribe(unsubscribed.popleft())
                    elif not self._upward():
                        break
                    if turns is not None and turns.is_over():
                        self._pause(up, turns)
                        return
                if self._demand.value < 0:
                    self._end_upward()
                if up.leave(missed):
                    return
        except BaseException as leaving:
            # An exception such as KeyboardInterrupt propagates to the caller. The caller can be a
            # publisher above. So signal the exception to the subscriber by on_error, too.
            if self._demand.value >= 0:
                self._fail(leaving)
            raise

    def resume(self) -> None:
        super().resume()
        self._enter_upward()

    def _subscribe_to(self, publisher: Publisher[Any]) -> Inner:
        """Return a new inner, which subscribes to ``publisher`` now, unless the stream is over."""
        inner = new_inner(self, publisher)
        self._subscribe(inner)
        return inner

    def _subscribe(self, inner: Inner) -> None:
        if self._add(inner):
            inner.subscribe()

    def _add(self, inner: Inner) -> bool:
        """Register ``inner``, so that ``_stop`` cancels it at the end of the stream.

        If the stream is over already, cancel ``inner`` now, and return false.
        """
        self._inners.add(inner)
        if self._demand.value >= 0:
            return True
        # The stream is over. If _stop() ran before ``inner`` was added, _stop() has not cancelled
        # ``inner``. So cancel it here.
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
        del burst  # without this line, an error's traceback keeps elements alive (§3.13)
        self._enter()

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if error is not None and not self._delays(inner, error):
            self._fail(error)
            return
        self._mail.append((inner, COMPLETED if error is None else Ended(error)))
        self._enter()

    def _delays(self, inner: Inner, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether ``error`` must wait for the delivery of earlier elements. Default: no."""
        return False

    def _lacking_for(self, inner: Inner, /) -> list[Inner]:  # noqa: ARG002 - by default, none
        return []

    # -- the drain: delivering elements ------------------------------------------------------------

    def _enter(self) -> None:
        if self._wip.enter():
            self._drain()
        if self._upward_is_due():  # call publishers even while another thread delivers
            self._enter_upward()

    def _upward_is_due(self) -> bool:
        """Whether a call to a publisher, such as a request, is due."""
        return self._prefetch.is_due(self._demand)

    def _work(self) -> bool:
        mail = self._mail
        while mail and self._demand.value >= 0:
            self._take(*mail.popleft())
        return self._demand.value < 0 and self._act_on_end()

    def _take(self, inner: Inner, what: list[Any] | Ended) -> None:  # noqa: ARG002
        """Handle the item ``what`` of ``_mail``: deliver its elements, or end the stream."""
        if isinstance(what, list):
            self._deliver(what)
        elif what.error is None:
            self._complete()
        else:
            self._fail(what.error)

    def _deliver(self, burst: list[Any]) -> None:
        """Deliver the elements of ``burst``, which were all requested, and empty the list."""
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
                # Test _open again: _stop() may have run on another thread before _delivering was
                # set. Then _stop() has not cleared ``burst``.
                if self._open:
                    for element in burst:
                        on_next(element)
        except RecursionError:
            raise
        except Exception as raised:
            self.cancel()
            report_dropped(raised, "§2.13: on_next raised")
        finally:
            self._delivering = None
            burst.clear()  # without this line, an error's traceback keeps elements alive (§3.13)
            on_next = take_burst = element = None
        self._demand.fulfil(count)

    def _cut_short(self) -> None:
        """Stop the delivery of the current list of elements, and drop the rest of the list."""
        delivering = self._delivering
        if delivering is not None:
            delivering.clear()  # an empty list ends the loop in _deliver

    def _deliver_through(
        self,
        iterator: Iterator[Any],
        stages: tuple[tuple[Any, ...], ...],
        demand: DemandCounter,
    ) -> RunStatus | Ended:
        """Deliver at most one burst of the elements of ``iterator``, through ``stages``.

        Returns an ``Ended`` if the iterator or a stage has ended, or has raised. Otherwise returns
        the status of the fused run.
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
        while mail:  # after the end, drop the elements and report the errors
            _, what = mail.popleft()
            if isinstance(what, Ended) and what.error is not None:
                report_late(what.error)

    def _stop(self) -> None:
        self._open = False
        self._cut_short()
        for inner in self._inners.copy():
            inner.cancel()

    def _drop_references(self) -> None:
        self._open = False
        self._on_next = self._take_burst = None
        unsubscribed, self._unsubscribed = self._unsubscribed, deque()
        for inner in (*self._inners.copy(), *unsubscribed.copy()):
            inner.cancel()  # _stop(), on another thread, may have missed this inner
            inner.forget()
        self._inners.clear()
        self._forget_upward()


class FanInPublisher(Generic[A]):
    """A publisher that makes a new ``FanIn`` for each subscriber.

    ``make(subscriber, upstream, argument)`` returns the ``FanIn``, which subscribes to
    ``upstream``.
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
