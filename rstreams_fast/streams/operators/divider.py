"""The subscription of ``group_by``, ``window`` and ``batch``: it divides a stream into parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from threading import get_ident
from typing import Any, Protocol

from rstreams_fast.api import Subscriber
from rstreams_fast.core import DemandCounter, FusedRun, Latch, RunStatus, Wip
from rstreams_fast.errors import check_request
from rstreams_fast.runtime.parking import signallers_here
from rstreams_fast.runtime.timers import Timer
from rstreams_fast.streams.engine.boundary import ListSubscriber
from rstreams_fast.streams.engine.deadline import Deadline
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.operators.substreams import CommonError, Substream, ToStream

__all__ = ["Divider", "Division", "Places"]


class Division(Protocol):
    """The rule that says to which substream or list an element belongs."""

    def take(self, burst: list[Any], divider: Divider, /) -> None:
        """Put elements in their substreams or lists, and count them in ``divider.came``."""


class Places(Protocol):
    """The rule that says how many elements may be held, and so how many to ask for."""

    #: The most elements that are held.
    most: int
    #: Whether an element that leaves a substream makes room for another element.
    shared: bool

    def room(self, divider: Divider, /) -> int:
        """Return how many more elements to ask for."""

    def watch(self, divider: Divider, /) -> None:
        """Look whether the stream is stuck. Called when all requested elements have come."""


class Divider(OperatorSubscriber, ListSubscriber):
    """Divides upstream's elements into substreams or lists, and publishes these on demand.

    After a cancel no substream is opened. Upstream is cancelled when no open substream has a
    reader. The operator sets ``division`` and ``places``.
    """

    __slots__ = (
        "_asking",
        "_clocks",
        "_failed",
        "_waits",
        "asked",
        "burst",
        "came",
        "closed",
        "division",
        "lists",
        "made",
        "name",
        "open",
        "places",
        "requested",
        "signals",
        "taken",
        "touched",
    )

    division: Division
    places: Places

    def __init__(self, subscriber: Subscriber[Any], name: str) -> None:
        super().__init__(subscriber, None)
        # Plain code on the loop may read a substream, and cannot wait for another turn of the loop.
        self.turns = None
        self.name = name
        #: Substreams and lists that wait for demand.
        self.made: deque[Any] = deque()
        self._run = FusedRun(self.made, (), self._slot_by_bursts(subscriber), self._demand)
        #: The substreams that still take elements, by key.
        self.open: dict[Hashable, Substream] = {}
        #: Substreams that take no more elements, but may hold some. Their division keeps this list.
        self.closed: list[Substream] = []
        #: Lists that are published when they are full, or when upstream completes.
        self.lists: deque[list[Any]] = deque()
        #: Substreams with new elements: they are woken when the whole burst has been taken.
        self.touched: dict[Substream, None] = {}
        self.burst: list[Any] = []
        self._clocks: list[Deadline] = []
        self._failed = False
        self.requested = DemandCounter()  # the sum of all requests of downstream
        self.asked = 0  # elements; written by the thread that asks
        self.came = 0  # elements; written by upstream
        self.taken = DemandCounter()  # elements that have left their substreams
        self._asking = Wip(held=True)  # held until on_subscribe has returned
        #: The thread on which upstream is signalling; 0: none.
        self.signals = 0
        self._waits = Waits()

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more substreams or lists (§3.8)."""
        try:
            n = check_request(n)
        except Exception as refused:
            self._bad_request(refused)
            return
        self.requested.request(n)
        super().request(n)
        self.ask()

    def cancel(self) -> None:
        """Take no more substreams (§3.12). Elements without a possible reader then make room."""
        super().cancel()
        self.ask_again()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return the metrics of the open substreams, then those of the boundaries above."""
        held = sum(len(each.elements) for each in list(self.open.values()))
        mine = self._waits.metrics(
            self._demand, name=self.name, held=held, max_held=self.places.most
        )
        return (mine, *super().metrics())

    # -- signals from upstream -------------------------------------------------------------------

    def _begin(self) -> None:
        if self._introduce():
            self._go()
            self._ask_now()

    def on_next(self, element: Any, /) -> None:
        """Divide a burst of one element."""
        self._check_element(element)
        self.burst.append(element)
        self.on_burst()

    def on_burst(self) -> None:
        """Divide the elements in ``burst``."""
        burst = self.burst.copy()
        self.burst.clear()
        signals, self.signals = self.signals, get_ident()
        here = signallers_here()
        before = len(here)
        try:
            self._signal(burst)
        finally:
            self.signals = signals
            del here[before:]
        if self.came == self.asked:
            self.ask()
            self.places.watch(self)

    def _signal(self, burst: list[Any]) -> None:
        try:
            if self._upstream.over:
                self._upstream.unwanted()
            elif self.custody is None:
                self.division.take(burst, self)
            else:
                for element in burst:
                    if self._upstream.over:
                        break
                    self.custody.claim(element)  # it may go to several windows, or to none
                    self.division.take([element], self)
        except Exception as raised:
            self._fail(raised)
        finally:
            burst.clear()  # a traceback keeps this frame (§3.13)
            element = None
        if self.made:
            self._enter()
        touched, self.touched = self.touched, {}
        for substream in touched:
            substream.wake()
        if self._failed:  # substreams opened meanwhile have not received the error
            error = RuntimeError("the stream that this was a part of has failed")
            self._end_all(error, delivered=True)
        self.look_for_readers()

    def on_error(self, error: BaseException, /) -> None:
        """Pass the error on, also to the open substreams."""
        if self._demand.cancelled and self._upstream.ended():
            self._fail(error)
        else:
            super().on_error(error)

    def on_complete(self) -> None:
        """Complete after the open substreams and lists."""
        if not self._upstream.over:
            lists, self.lists = self.lists, deque()
            self.made += lists
            self._end_all(None)
        super().on_complete()
        self.look_for_readers()

    def _fail(self, error: BaseException) -> None:
        self._failed = True  # not the error, whose traceback would keep subscribers (§3.13)
        alone = self._demand.cancelled and bool(self.open)  # only readers can receive the error
        if not alone:
            super()._fail(error)
        self._end_all(error, delivered=not alone)
        self.look_for_readers()

    def _end_all(self, error: BaseException | None, *, delivered: bool = False) -> None:
        ending = list(self.open.values())
        common = None if error is None else CommonError(error, ending, delivered)
        for substream in ending:
            self.remove(substream)
            substream.end(common)

    def remove(self, substream: Substream) -> None:
        """Remove ``substream`` from ``open``, once: a newer substream may have its key by now."""
        if self.open.get(substream.key) is substream and substream.removed.win():
            self.open.pop(substream.key, None)

    # -- for the division and the places ---------------------------------------------------------

    def open_substream(self, key: Hashable, to_stream: ToStream) -> Substream:
        """Open a substream. Its stream is delivered after the burst."""
        self.open[key] = substream = Substream(self, key)
        self.made.append(substream.published_as(self.name, to_stream))
        return substream

    def push(self, substream: Substream, elements: list[Any]) -> None:
        """Put ``elements`` in ``substream``, whose reader is woken after the burst."""
        substream.elements.extend(elements)
        self.touched[substream] = None

    def add_clock(
        self, timer: Timer | None, due: Callable[[], float | None], work: Callable[[], None]
    ) -> Deadline:
        """Return a deadline that is closed when upstream is over."""
        clock = Deadline(timer, due, work, self._fail)
        self._clocks.append(clock)
        return clock

    @property
    def latch(self) -> Latch:
        """Won when upstream has ended, or is cancelled: later elements are ignored."""
        return self._upstream.latch

    @property
    def holding(self) -> list[Substream]:
        """The substreams that may hold elements."""
        return [*self.closed, *self.open.values()]

    # -- for the substreams ----------------------------------------------------------------------

    @property
    def shares_places(self) -> bool:
        """Whether an element that leaves a substream makes room for another element."""
        return self.places.shared

    @property
    def takes_no_more(self) -> bool:
        """Whether no further substreams are opened."""
        return self._demand.value < 0

    def signals_here(self) -> bool:
        """Whether this thread is in a signal of upstream: no element comes until it returns."""
        return self.signals == get_ident()

    def took(self, n: int) -> None:
        """Count ``n`` elements that have left a substream."""
        if n:
            self.taken.request(n)

    def ask_again(self) -> None:
        """Ask upstream, if elements that left substreams make room. Not within a drain."""
        if self.places.shared:
            self.ask()

    def close_substream(self, substream: Substream) -> None:
        """Take no more elements in ``substream``: the next element of its key opens a new one."""
        self.remove(substream)
        self.look_for_readers()

    def look_for_readers(self) -> None:
        """Cancel upstream if no substream will be opened, and no open substream has a reader."""
        if self.takes_no_more:
            for substream in self.holding:
                if substream.abandoned:
                    self.remove(substream)
                    substream.discard()
            if not self.open:
                self._upstream.cancel()
        if self._upstream.over:
            for clock in self._clocks:
                clock.close()

    def forget_abandoned(self) -> None:
        """Look for readers. Elements without a possible reader make room: ask for as many."""
        self.look_for_readers()
        self.ask_again()

    # -- the drain, and asking upstream ----------------------------------------------------------

    def _work(self) -> bool:
        run = self._run
        if self._demand.value < 0 or run is None:
            self.made.clear()
            return self._act_on_end()
        self._waits.end()
        completed = self._completed  # read before ``made``: then an empty queue is the end
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return True
        if status is not RunStatus.IDLE and status is not RunStatus.EXHAUSTED:
            return self._answer(status, run)
        if completed and not self.made:
            return self._answer(self._flush(run), run)
        self._waits.begin(for_demand=status is RunStatus.IDLE)
        return False

    def ask(self) -> None:
        """Ask upstream for as many elements as there is room for. Not within a drain."""
        if self._asking.enter():
            self._ask_now()

    def _ask_now(self) -> None:
        while True:
            missed = self._asking.missed
            room = self.places.room(self)
            if room > 0 and not self._upstream.over:
                self.asked += room
                self._request(room)
            if self._asking.leave(missed):
                return

    def _stop(self) -> None:
        if self._demand.cancelled:
            self.look_for_readers()
        else:
            super()._stop()

    def _drop_references(self) -> None:
        self.made.clear()
        self.lists = deque()
