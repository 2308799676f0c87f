"""The subscription of ``group_by``, ``window`` and ``batch``: divides a stream into parts.

A part is a substream or a list of elements. Each operator gives two objects to the subscription.
The *division* puts each element in a part, by key, count or time. The *capacity rule* decides how
many elements all parts together may hold, and so how many elements to request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from threading import get_ident
from typing import Any, Protocol

from rstreams_fast.api import Subscriber
from rstreams_fast.core import DemandCounter, FusedRun, Latch, Wip
from rstreams_fast.errors import check_request
from rstreams_fast.runtime.parking import signallers_of_thread
from rstreams_fast.runtime.timers import Timer
from rstreams_fast.streams.engine.boundary import ListSubscriber
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.operators.substreams import CommonError, Substream, ToStream

__all__ = ["CapacityRule", "Divider", "Division"]


class Division(Protocol):
    """Interface: decides to which substream (for ``batch``: to which list) an element belongs."""

    def take(self, burst: list[Any], divider: Divider, /) -> None:
        """Put ``burst`` in substreams (or lists), and add its length to ``divider.received``."""


class CapacityRule(Protocol):
    """Interface: decides how many elements to request from upstream.

    So it bounds the number of elements in all parts (substreams or lists) together.
    """

    #: ``shared``: whether one bound applies to the elements of all substreams together. Then an
    #: element that leaves any substream makes room for a new element.
    shared: bool

    def room(self, divider: Divider, /) -> int:
        """Return how many more elements to request from upstream."""

    def detect_stuck(self, divider: Divider, /) -> None:
        """Fail the stream, now or later, if nobody takes the elements that the substreams hold.

        The divider calls this method when all requested elements have arrived.
        """


class Divider(OperatorSubscriber, ListSubscriber):
    """Divides upstream's elements into substreams or lists, and delivers these on demand.

    After the subscriber has cancelled, no new substream is opened, but the open substreams go on.
    Upstream is cancelled when no open substream has a subscriber or can still get a subscriber.

    The operator (such as ``group_by``) sets two attributes. ``division`` decides to which substream
    or list an element belongs. ``capacity`` decides how many elements may be held.
    """

    __slots__ = (
        "_clocks",
        "_failed",
        "_requesting",
        "burst",
        "capacity",
        "closed",
        "division",
        "lists",
        "made",
        "name",
        "open",
        "parts_requested",
        "received",
        "requested",
        "signals",
        "taken",
        "touched",
    )

    division: Division
    capacity: CapacityRule

    def __init__(self, subscriber: Subscriber[Any], name: str, max_held: int) -> None:
        super().__init__(subscriber, None)
        # Use no ``turns``, which would pause the delivery on an event loop after a millisecond. If
        # synchronous code blocked the loop until an element arrives, the pause would never end.
        self.turns = None
        # ``custody`` records the elements that the hook of ``on_discard`` gets if they are dropped.
        # Downstream's record ends with downstream's subscription. But upstream still sends elements
        # for open substreams then. So upstream gets its own record, which ends with upstream.
        if self.custody is not None:
            self.custody = self.custody.inner()
        self.name = name
        #: ``made``: new substreams and full lists that are not delivered to the subscriber yet.
        self.made: deque[Any] = deque()
        self._run = FusedRun(self.made, (), self._slot_by_bursts(subscriber), self._demand)
        #: ``open``: the substreams that still take elements, by key.
        self.open: dict[Hashable, Substream] = {}
        #: ``closed``: substreams that get no more elements, but may still hold elements.
        self.closed: list[Substream] = []
        #: ``lists``: the lists that still take elements. A list is delivered when it is full, or
        #: when upstream completes.
        self.lists: deque[list[Any]] = deque()
        #: ``touched``: substreams that got elements in the current call of ``on_burst``. At the end
        #: of the call these elements are delivered to the substreams' subscribers.
        self.touched: dict[Substream, None] = {}
        self.burst: list[Any] = []
        self._clocks: list[Deadline] = []
        self._failed = False
        # ``parts_requested``: how many substreams or lists downstream has requested. ``requested``:
        # how many elements were requested from upstream. ``received``: how many elements have
        # arrived. ``taken``: how many elements have left substreams, or were dropped (elements of
        # lists are not counted). ``_requesting`` lets one thread at a time make requests to
        # upstream, and no thread before downstream's on_subscribe has returned.
        self.parts_requested = DemandCounter()
        self.requested = 0
        self.received = 0
        self.taken = DemandCounter()
        self._requesting = Wip(held=True)
        #: ``signals``: the id of the thread on which upstream now signals elements; 0 if none.
        self.signals = 0
        self._waits = Waits(name, max_held)

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more substreams or lists (§3.8)."""
        try:
            n = check_request(n)
        except Exception as refused:
            self._bad_request(refused)
            return
        self.parts_requested.request(n)
        super().request(n)
        self.request_elements()

    def cancel(self) -> None:
        """Open no more substreams (§3.12). The open substreams go on."""
        super().cancel()
        self.request_more()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        held = sum(len(each.elements) for each in list(self.open.values()))
        mine = self._waits.metrics(self._demand.value, held)
        return (mine, *super().metrics())

    # -- signals from upstream ---------------------------------------------------------------------

    def _begin(self) -> None:
        if self._signal_on_subscribe():
            self._start_drain()
            self._make_requests()

    def on_next(self, element: Any, /) -> None:
        self._check_element(element)
        self.burst.append(element)
        self.on_burst()

    def on_burst(self) -> None:
        """Put each element of ``burst`` in the substreams (for ``batch``: lists) it belongs to."""
        burst = self.burst.copy()
        self.burst.clear()
        signals, self.signals = self.signals, get_ident()
        here = signallers_of_thread()
        before = len(here)
        try:
            self._signal(burst)
        finally:
            self.signals = signals
            del here[before:]
        if self.received == self.requested:
            self.request_elements()
            self.capacity.detect_stuck(self)

    def _signal(self, burst: list[Any]) -> None:
        try:
            if self._upstream.over:
                self._upstream.on_late_element()
            elif self.custody is None:
                self.division.take(burst, self)
            else:
                for element in burst:
                    # Remove the element from the record: the hook of ``on_discard`` gets no
                    # elements of windows or groups, because several may hold the same element.
                    # If the record is closed, the hook has got the element already.
                    if self._upstream.over or self.custody.claim(element) is None:
                        break
                    self.division.take([element], self)
        except Exception as raised:
            self._fail(raised)
        finally:
            burst.clear()  # drop the elements: an error's traceback would keep them alive (§3.13)
            element = None
        if self.made:
            self._enter()
        touched, self.touched = self.touched, {}
        for substream in touched:
            substream.wake()
        if self._failed:  # end the substreams that were opened after the call of ``_fail``
            error = RuntimeError("the stream that this was a part of has failed")
            self._end_all(error, delivered=True)
        self.cancel_if_unused()

    def on_error(self, error: BaseException, /) -> None:
        """Signal the error downstream, and to the subscribers of the open substreams."""
        if self._demand.cancelled and self._upstream.ended():
            self._fail(error)
        else:
            super().on_error(error)

    def on_complete(self) -> None:
        """Complete the open substreams, deliver the open lists, and then signal completion."""
        if not self._upstream.over:
            lists, self.lists = self.lists, deque()
            self.made += lists
            self._end_all(None)
        super().on_complete()
        self.cancel_if_unused()

    def _fail(self, error: BaseException) -> None:
        # Do not store ``error``: its traceback would keep subscribers in memory (§3.13).
        self._failed = True
        # ``alone``: downstream has cancelled. Only subscribers of open substreams get the error.
        alone = self._demand.cancelled and bool(self.open)
        if not alone:
            super()._fail(error)
        self._end_all(error, delivered=not alone)
        self.cancel_if_unused()

    def _end_all(self, error: BaseException | None, *, delivered: bool = False) -> None:
        ending = list(self.open.values())
        common = None if error is None else CommonError(error, ending, delivered)
        for substream in ending:
            self.remove(substream)
            substream.end(common)

    def remove(self, substream: Substream) -> None:
        """Remove ``substream`` from ``open``. A newer substream with the same key stays."""
        if self.open.get(substream.key) is substream and substream.removed.win():
            self.open.pop(substream.key, None)

    # -- methods for ``division`` (fills the substreams) and ``capacity`` (bounds their elements) --

    def open_substream(self, key: Hashable, to_stream: ToStream) -> Substream:
        """Return a new substream for ``key``, to be delivered at the end of ``on_burst``."""
        self.open[key] = substream = Substream(self, key)
        self.made.append(substream.published_as(self.name, to_stream))
        return substream

    def push(self, substream: Substream, elements: list[Any]) -> None:
        """Put ``elements`` in ``substream``, to be delivered at the end of ``on_burst``."""
        substream.elements.extend(elements)
        self.touched[substream] = None

    def add_clock(
        self, timer: Timer | None, due: Callable[[], float | None], work: Callable[[], None]
    ) -> Deadline:
        """Return a ``Deadline``, which calls ``work`` at the time that ``due()`` returns.

        When upstream has ended or is cancelled, the deadline is closed, and makes no more calls.
        """
        clock = Deadline(timer, due, work, self._fail)
        self._clocks.append(clock)
        return clock

    @property
    def latch(self) -> Latch:
        """A latch, closed when upstream ends or is cancelled. Later elements are ignored."""
        return self._upstream.latch

    @property
    def holding(self) -> list[Substream]:
        """The substreams that may hold elements."""
        return [*self.closed, *self.open.values()]

    # -- methods that substreams call --------------------------------------------------------------

    @property
    def shares_capacity(self) -> bool:
        """Whether all substreams share one bound on the number of elements that they hold."""
        return self.capacity.shared

    @property
    def takes_no_more(self) -> bool:
        """Whether downstream's subscription is over, so that no new substream is opened."""
        return self._demand.value < 0

    def signals_here(self) -> bool:
        """Return whether the calling thread is inside a signal of upstream.

        If so, upstream sends nothing until the signal has returned. So the calling thread must not
        wait for an element.
        """
        return self.signals == get_ident()

    def count_taken(self, n: int) -> None:
        """Count ``n`` elements that have left a substream."""
        if n:
            self.taken.request(n)

    def request_more(self) -> None:
        """If one bound applies to the elements in all substreams together, request more."""
        if self.capacity.shared:
            self.request_elements()

    def close_substream(self, substream: Substream) -> None:
        """Add no more elements to ``substream``. The next element with its key opens a new one."""
        self.remove(substream)
        self.cancel_if_unused()

    def cancel_if_unused(self) -> None:
        """If downstream's subscription is over, drop substreams that can get no subscriber.

        Then, if no open substream is left, cancel upstream. If upstream has ended or is cancelled,
        pass the elements that wait above to the hook of ``on_discard``. Then also close the timers
        that ``add_clock`` has made: no time limit matters any more.
        """
        try:
            if self.takes_no_more:
                for substream in self.holding:
                    if substream.abandoned:
                        self.remove(substream)
                        substream.discard()
                if not self.open:
                    self._upstream.cancel()
        finally:
            if self._upstream.over:
                if self.custody is not None:
                    self.custody.close()
                for clock in self._clocks:
                    clock.close()

    def drop_abandoned(self) -> None:
        """Drop abandoned substreams if downstream's subscription is over. Then request elements.

        A substream is abandoned if nobody has subscribed to it, and nobody can subscribe any more.
        Its elements are dropped, too. So there may be room for elements of other substreams.
        """
        self.cancel_if_unused()
        self.request_more()

    # -- delivering substreams, and requests to upstream -------------------------------------------

    def _work(self) -> bool:
        run = self._run
        if self._demand.value < 0 or run is None:
            self.made.clear()
            return self._act_on_end()
        return self._deliver_from(self.made, run)

    def request_elements(self) -> None:
        """Request as many elements as there is room for.

        Do not call this method during a delivery: upstream's ``request`` may take long.
        """
        if self._requesting.enter():
            self._make_requests()

    def _make_requests(self) -> None:
        while True:
            missed = self._requesting.missed
            room = self.capacity.room(self)
            if room > 0 and not self._upstream.over:
                self.requested += room
                self._request(room)
            if self._requesting.leave(missed):
                return

    def _stop(self) -> None:
        if self._demand.cancelled:
            self.cancel_if_unused()
        else:
            try:
                super()._stop()
            finally:
                if self.custody is not None:
                    self.custody.close()

    def _drop_references(self) -> None:
        self.made.clear()
        self.lists = deque()
