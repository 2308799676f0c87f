"""``on_overflow``: a bounded buffer below a source that does not wait for demand.

The operator makes an unbounded request. Upstream signals at any time, from any thread. The
subscription holds a bounded number of elements and delivers these elements on demand. When the
buffer is full, the strategy decides: an element is dropped, or the stream ends with an error. The
terminal signal comes after the held elements, even if it is the error of an overflow. There is one
exception: ``take_last`` uses the same buffer, but signals an error of upstream immediately, and
drops the held elements.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import check_capacity, check_count, check_plain
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter, FunctionSlot, FusedRun, Latch
from rstreams_fast.errors import BufferOverflowError, check_request, report_unraisable
from rstreams_fast.runtime.executors import Resource
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import OVERFLOW_CAPACITY
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.signals import check_error_signal, report_late
from rstreams_fast.streams.engine.trampoline import OperatorPublisher

__all__ = ["Overflow", "OverflowBoundary", "OverflowSubscription"]


class Overflow(enum.Enum):
    """The strategy for elements that come faster than the subscriber asks for them.

    At most ``capacity`` elements are held. A dropped element is counted in ``metrics_of(...)`` and
    passed to ``on_drop``. When the subscriber cancels, the held elements are neither counted nor
    passed to ``on_drop``.
    """

    BUFFER = "buffer"
    """Hold up to ``capacity`` (default: 1024) elements. A further element ends the stream: the held
    elements are delivered, then a ``BufferOverflowError`` is signalled."""
    DROP_OLDEST = "drop_oldest"
    """Hold up to ``capacity`` (default: 1024) elements. A further element replaces the oldest held
    element."""
    DROP_LATEST = "drop_latest"
    """Hold up to ``capacity`` (default: 1024) elements. A further element is dropped."""
    LATEST = "latest"
    """Hold only the newest element. A further element replaces it. ``capacity`` is 1."""
    ERROR = "error"
    """Hold only elements that the subscriber has requested, at most ``capacity`` (default: 1024).
    An element that was not requested ends the stream with a ``BufferOverflowError``."""


_REPLACING = (Overflow.DROP_OLDEST, Overflow.LATEST)
_ENDING = (Overflow.BUFFER, Overflow.ERROR)


class OverflowBoundary(Boundary):
    """The options of ``Stream.on_overflow``, or of a source with an overflow strategy.

    ``at_end``: elements are delivered only after the source has completed. ``on_demand``: upstream
    gets no request before the subscriber's first request. By default upstream gets an unbounded
    request when the stream begins.
    """

    #: This boundary tolerates a publisher that breaks the rules, such as signals on several threads
    #: at a time.
    guards = True

    def __init__(
        self,
        strategy: Overflow,
        capacity: int | None = None,
        on_drop: Callable[[Any], object] | None = None,
        *,
        name: str = "on_overflow",
        argument: str = "strategy",
        at_end: bool = False,
        on_demand: bool = False,
    ) -> None:
        if not isinstance(strategy, Overflow):
            raise TypeError(
                f"{argument.rstrip('=')} must be a member of Overflow, got {strategy!r}"
            )
        if on_drop is not None:
            check_plain("on_drop", on_drop, result_used=False)
        if strategy is Overflow.LATEST:
            if capacity is not None and check_count("capacity", capacity) != 1:
                raise ValueError(
                    f"Overflow.LATEST holds one element: capacity is 1, not {capacity}"
                )
            capacity = 1
        elif capacity is None:
            capacity = OVERFLOW_CAPACITY
        self.strategy = strategy
        self.capacity = check_capacity("capacity", capacity)
        self.on_drop = on_drop
        self.name = f"{name}({strategy.name})"
        self.fails_without_demand = strategy in _ENDING
        self.at_end = at_end
        # With the strategy ERROR, an element that arrives before downstream's first request would
        # end the stream. So upstream gets no request before downstream's first request.
        self.on_demand = on_demand or strategy is Overflow.ERROR
        self._argument = argument

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(upstream, OverflowSubscription, self)

    def describe(self) -> str:
        plural = "" if self.capacity == 1 else "s"
        return f"{self.name}: at most {self.capacity} element{plural}"

    def error(self, unasked: bool) -> BufferOverflowError:
        """Return the error of an overflow, with advice for the user.

        ``unasked``: whether the element was not requested. Otherwise the buffer was full.
        """
        if unasked:
            what = "an element came that nobody had asked for"
        else:
            what = f"an element came while {self.capacity} others waited to be delivered"
        return BufferOverflowError(
            f"{self.name}: {what}; ask for more sooner, give a greater capacity=, or another "
            f"{self._argument}, such as Overflow.DROP_OLDEST or Overflow.LATEST"
        )


class OverflowSubscription(OperatorSubscriber):
    """Holds the elements of a source, which does not wait for demand, and delivers them on demand.

    The source is a publisher, or an object that calls ``offer`` and ``finish``: the emitter of
    ``create``, or the clock of ``interval``. Any thread may call these methods. The subscriber is
    signalled on ``resource`` (an executor), if given. Otherwise it is signalled on the thread that
    calls ``offer`` or ``request``. ``at_end()`` is called when the stream has ended, so that the
    source drops its references.
    """

    __slots__ = (
        "_at_end",
        "_begun",
        "_direct_slot",
        "_has_requested",
        "_held",
        "_kept",
        "_options",
        "_requested",
        "drops",
        "lock",
        "open",
    )

    def __init__(
        self,
        subscriber: Subscriber[Any],
        options: OverflowBoundary,
        resource: Resource | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(subscriber, resource)
        self._options = options
        self._at_end = at_end
        # ``offer`` holds ``lock`` while it adds an element, but not while it delivers an element.
        # The lock is reentrant: the garbage collector may run a finalizer on the thread that holds
        # the lock, and the finalizer may call ``offer``. No other user code runs under the lock.
        self.lock = threading.RLock()
        self.open = True  # whether offer() accepts elements
        self._held: deque[Any] = deque()
        self._kept = 0  # the number of delivered and held elements
        #: ``drops``: the number of dropped elements. ``offer`` changes ``drops`` under ``lock``.
        self.drops = 0
        self._requested = DemandCounter()  # the sum of all requests of downstream
        self._begun = False
        self._has_requested = Latch()  # a flag, set when the only request to upstream is made
        self._waits = Waits(options.describe(), options.capacity, from_first_reading=True)
        slot = self._slot_by_bursts(subscriber)
        self._run = FusedRun(self._held, (), slot, self._demand)
        # ``_direct_slot``: the function by which ``offer`` delivers a requested element without the
        # buffer, if no other element is held. If None, every element is put in ``_held`` first.
        direct_slot = subscriber.on_next if isinstance(slot, FunctionSlot) else slot
        direct = resource is None and not options.at_end and callable(direct_slot)
        self._direct_slot = direct_slot if direct else None

    # -- methods for the source, on any thread -----------------------------------------------------

    def offer(self, element: Any, entered: bool = False) -> bool:
        """Deliver or hold ``element``. If neither is possible, do what the strategy says.

        Return false if the stream has ended before, or ends now because of an overflow.
        ``entered``: whether ``element`` is already recorded as undelivered, so that ``on_discard``
        gets it if it is dropped. If not, this method records it, unless the stream has ended.
        """
        options = self._options
        victim: Any = None
        overflow: BufferOverflowError | None = None
        direct_slot: Callable[[Any], object] | None = None
        with self.lock:
            if not self.open:
                return False
            if self.custody is not None and not entered:
                self.custody.enter(element)
            elements = self._held
            unasked = options.strategy is Overflow.ERROR and self.unmet_demand == 0
            alone = not elements and self._direct_slot is not None and self._demand.value > 0
            if alone and not unasked and self._wip.enter():
                self._kept += 1
                direct_slot = self._direct_slot
            elif len(elements) < options.capacity and not unasked:
                elements.append(element)
                self._kept += 1
            elif options.strategy in _REPLACING:
                try:
                    victim = elements.popleft()
                except IndexError:  # another thread has just delivered all held elements
                    self._kept += 1
                elements.append(element)
            else:
                victim = element
                if options.strategy in _ENDING:
                    self.open = False
                    overflow = options.error(unasked)
            if victim is not None:
                self.drops += 1
        if direct_slot is not None:
            self._deliver(direct_slot, element)
        elif overflow is not None:
            try:
                self._upstream.cancel()
            finally:  # the stream must end even if an exception interrupts cancel()
                self._end_with(overflow)
        elif victim is None or self._demand.pending:
            # Start the delivery even if ``element`` has replaced another element. The delivering
            # thread may have stopped because it saw an empty buffer, between the calls of
            # ``popleft`` and ``append`` above.
            self._enter()
        if victim is not None:
            self._report_drop(victim)
        return overflow is None

    def finish(self, error: BaseException | None) -> bool:
        """End the stream after the held elements. ``error=None`` means completion.

        Return false if the stream has ended before.
        """
        if not (self._upstream.ended() and self._close()):
            return False
        self._end_with(error)
        return True

    @property
    def unmet_demand(self) -> int:
        """How many more elements the subscriber has requested than the source has sent.

        Dropped elements do not count as sent.
        """
        requested = self._requested.value
        return UNBOUNDED if requested == UNBOUNDED else max(0, requested - self._kept)

    def _close(self) -> bool:
        with self.lock:
            was_open, self.open = self.open, False
        return was_open

    def _end_with(self, error: BaseException | None) -> None:
        self._late_error = error
        self._completed = True
        self._enter()

    def _report_drop(self, victim: Any) -> None:
        self._discard([victim])
        on_drop = self._options.on_drop
        if on_drop is not None:
            try:
                on_drop(victim)
            except Exception as raised:
                report_unraisable(raised, "on_drop", on_drop)
            except BaseException as leaving:
                # ``on_drop`` raised an exception such as KeyboardInterrupt. It propagates to the
                # source, which may catch it. So also signal it to the subscriber by on_error.
                if self._demand.value >= 0:
                    self._fail(leaving)
                raise

    # -- signals from upstream ---------------------------------------------------------------------

    def on_next(self, element: Any, /) -> None:
        if element is None or self.custody is not None:
            self._check_element(element)
        self.offer_checked(element)

    def offer_checked(self, element: Any) -> None:
        """Do the same as ``on_next``, for a caller that has called ``_check_element`` already."""
        if not self.offer(element, entered=True):
            self._upstream.on_late_element()
            self._begin_late()

    def on_error(self, error: BaseException, /) -> None:
        """Signal the error after the held elements; for ``take_last`` immediately, without them."""
        if self._options.at_end:
            super().on_error(error)
            return
        check_error_signal(self, error)
        if not self.finish(error):
            report_late(error)
        self._begin_late()

    def on_complete(self) -> None:
        """Signal completion after the held elements."""
        self.finish(None)
        self._begin_late()

    def _begin(self) -> None:
        super()._begin()
        self._begun = True
        if not self._options.on_demand or self._requested.value > 0:
            self._request_all()

    def _request_all(self) -> None:
        if self._has_requested.win():
            self._request(UNBOUNDED)

    # -- the methods of the subscription -----------------------------------------------------------

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        try:
            n = check_request(n)  # call n.__index__ once: a second call may return another number
        except Exception as refused:
            self._bad_request(refused)
            return
        self._requested.request(n)
        super().request(n)
        if self._begun and not self._has_requested.won:
            self._request_all()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        mine = self._waits.metrics(self._demand.value, len(self._held), dropped=self.drops)
        return (mine, *super().metrics())

    # -- delivering elements -----------------------------------------------------------------------

    def _deliver(self, direct_slot: Callable[[Any], object], element: Any) -> None:
        """Deliver ``element`` by a call of ``direct_slot``, without the buffer.

        Call this method only if there is demand, no other element is held, and ``_wip.enter()`` has
        returned true, so that no other thread delivers. This method calls ``_wip.leave()``.
        """
        try:
            self._waits.end()
            try:
                direct_slot(element)
            except Exception as raised:
                self._on_next_raised(raised)
            if self._on_burst is not None:
                self._on_burst()
            self._waits.begin(for_demand=self._demand.fulfil(1) == 0)
        except BaseException as leaving:
            self._interrupted(leaving)
            raise
        if not self._wip.leave():
            self._drain()

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        run = self._run
        if run is None or (self._options.at_end and not self._completed):
            return False
        return self._deliver_from(self._held, run)

    def _stop(self) -> None:
        self._close()
        super()._stop()

    def _drop_references(self) -> None:
        # Close now. The thread that has ended the stream also calls ``_close``, but perhaps later.
        # Until then ``offer`` would accept elements, which nobody gets.
        self._close()
        self._direct_slot = None
        self._held = deque()
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()
