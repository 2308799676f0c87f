"""Sources that do not wait to be asked: what becomes of elements that nobody has asked for yet.

Upstream is asked for everything at once (with ``ERROR``: when the subscriber first asks), and
signals when it likes, from any thread. What has come is held, at most so many elements, and
delivered as downstream asks. What finds no room is dropped, or drops another, or ends the stream,
as the strategy says. Every end, an overflow too, comes after what is held.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import check_capacity, check_count, check_plain
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter, FunctionSlot, FusedRun, RunStatus
from rstreams_fast.errors import (
    BufferOverflowError,
    check_request,
    report_unraisable,
)
from rstreams_fast.runtime.executors import Resource
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import OVERFLOW_CAPACITY
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.signals import check_error_signal, report_late
from rstreams_fast.streams.engine.subscribing import Below

__all__ = ["Overflow", "OverflowBoundary", "OverflowSubscription"]


class Overflow(enum.Enum):
    """What becomes of elements that come faster than they are asked for.

    ``capacity`` is always the most elements that are held. Each element that is not delivered is
    counted, in ``metrics_of(...)``, and given to ``on_drop``; elements that are held when the
    subscriber cancels are not.
    """

    BUFFER = "buffer"
    """Hold up to ``capacity`` (1024). One more ends the stream: ``BufferOverflowError``, after what
    is held was delivered."""
    DROP_OLDEST = "drop_oldest"
    """Hold up to ``capacity`` (1024). One more takes the place of the one held longest."""
    DROP_LATEST = "drop_latest"
    """Hold up to ``capacity`` (1024). One more is dropped."""
    LATEST = "latest"
    """Hold the newest only: ``capacity`` is 1."""
    ERROR = "error"
    """Hold what is asked for only, as long as its delivery takes, and of that up to ``capacity``
    (1024). One that was not asked for ends the stream: ``BufferOverflowError``."""


_REPLACING = (Overflow.DROP_OLDEST, Overflow.LATEST)
_ENDING = (Overflow.BUFFER, Overflow.ERROR)


class OverflowBoundary(Boundary):
    """The boundary of ``Stream.on_overflow``, and what is common to sources with a strategy."""

    #: It takes signals as they come, so what is above it need not be guarded.
    guards = True

    def __init__(
        self,
        strategy: Overflow,
        capacity: int | None = None,
        on_drop: Callable[[Any], object] | None = None,
        *,
        name: str = "on_overflow",
        argument: str = "strategy",
    ) -> None:
        if not isinstance(strategy, Overflow):
            raise TypeError(
                f"{argument.rstrip('=')} must be a member of Overflow, got {strategy!r}"
            )
        if on_drop is not None:
            check_plain("on_drop", on_drop)
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
        self.fails_unasked = strategy in _ENDING
        self._argument = argument

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, OverflowSubscription, self)

    def describe(self) -> str:
        plural = "" if self.capacity == 1 else "s"
        return f"{self.name}: at most {self.capacity} element{plural}"

    def error(self, unasked: bool) -> BufferOverflowError:
        """Say what found no room, and what to do."""
        if unasked:
            what = "an element came that nobody had asked for"
        else:
            what = f"an element came while {self.capacity} others waited to be delivered"
        return BufferOverflowError(
            f"{self.name}: {what}; ask for more sooner, give a greater capacity=, or another "
            f"{self._argument}, such as Overflow.DROP_OLDEST or Overflow.LATEST"
        )


class OverflowSubscription(OperatorSubscriber):
    """Between a source that does not wait and a subscriber that does.

    ``offer`` and ``finish`` are for any thread. With a resource the subscriber is signalled there;
    without, on the thread that offers or requests.
    """

    __slots__ = (
        "_asked",
        "_begun",
        "_dropped",
        "_hand_on",
        "_held",
        "_kept",
        "_lock",
        "_open",
        "_options",
        "_requested",
        "_waits",
    )

    def __init__(
        self,
        subscriber: Subscriber[Any],
        options: OverflowBoundary,
        resource: Resource | None = None,
    ) -> None:
        super().__init__(subscriber, resource)
        self._options = options
        # Among those who offer; the drain takes without it. Reentrant, for the collector may run
        # anything anywhere. Nobody's code is called under it.
        self._lock = threading.RLock()
        self._open = True  # whether an offer counts
        self._held: deque[Any] = deque()
        self._kept = 0  # elements delivered or held
        self._dropped = 0
        self._requested = DemandCounter()  # in all
        self._begun = False  # on_subscribe has returned
        self._asked = DemandCounter()  # terminated by the first caller that asks upstream
        self._waits = Waits(on_look=True)
        slot = self._slot_by_bursts(subscriber)
        self._run = FusedRun(self._held, (), slot, self._demand)
        # What takes an element that nothing is before; a ring is given its elements by the run.
        hand_on = subscriber.on_next if isinstance(slot, FunctionSlot) else slot
        self._hand_on = hand_on if resource is None and callable(hand_on) else None

    # -- the source's side, any thread -----------------------------------------------------------

    def offer(self, element: Any, entered: bool = False) -> bool:
        """Take an element, or do with it what the strategy says; ``False`` if all is over: then it
        is still the caller's, unless it has ``entered`` the scope of an ``on_discard``.
        """
        options = self._options
        victim: Any = None
        overflow: BufferOverflowError | None = None
        hand_on: Callable[[Any], object] | None = None
        with self._lock:
            if not self._open:
                return False
            if self.custody is not None and not entered:
                self.custody.enter(element)
            elements = self._held
            unasked = options.strategy is Overflow.ERROR and self.uncovered == 0
            alone = not elements and self._hand_on is not None and self._demand.value > 0
            if alone and not unasked and self._wip.request(1) == 0:
                self._kept += 1
                hand_on = self._hand_on
            elif len(elements) < options.capacity and not unasked:
                elements.append(element)
                self._kept += 1
            elif options.strategy in _REPLACING:
                try:
                    victim = elements.popleft()
                except IndexError:  # the drain has just taken it
                    self._kept += 1
                elements.append(element)
            else:
                victim = element
                if options.strategy in _ENDING:
                    self._open = False
                    overflow = options.error(unasked)
            if victim is not None:
                self._dropped += 1
        if hand_on is not None:
            self._deliver(hand_on, element)
        elif overflow is not None:
            self._upstream.cancel()
            self._end_with(overflow)
        elif victim is None or self._demand.pending:
            # For a victim, who brought it does, or did; but while its place was empty the drain may
            # have looked, and gone.
            self._enter()
        if victim is not None:
            self._tell(victim)
        return overflow is None

    def finish(self, error: BaseException | None) -> bool:
        """End, after what is held; ``False`` if that was decided before."""
        if not (self._upstream.ended() and self._close()):
            return False
        self._end_with(error)
        return True

    @property
    def uncovered(self) -> int:
        """How many elements have been asked for that have not been sent yet."""
        requested = self._requested.value
        return UNBOUNDED if requested == UNBOUNDED else max(0, requested - self._kept)

    def _close(self) -> bool:
        with self._lock:
            was_open, self._open = self._open, False
        return was_open

    def _end_with(self, error: BaseException | None) -> None:
        self._late_error = error
        self._completed = True
        self._enter()

    def _tell(self, victim: Any) -> None:
        self._discard([victim])
        on_drop = self._options.on_drop
        if on_drop is not None:
            try:
                on_drop(victim)
            except Exception as raised:
                report_unraisable(raised, "on_drop", on_drop)
            except BaseException as leaving:  # to the sender, so the subscriber gets it as well
                if self._demand.value >= 0:
                    self._fail(leaving)
                raise

    # -- signals from upstream -------------------------------------------------------------------

    def on_next(self, element: Any, /) -> None:
        """Take an element, or do with it what the strategy says."""
        if element is None or self.custody is not None:
            self._check_element(element)
        self._offer_checked(element)

    def _offer_checked(self, element: Any) -> None:
        if not self.offer(element, entered=True):
            self._upstream.unwanted()
            self._introduce_late()

    def on_error(self, error: BaseException, /) -> None:
        """Pass the error on after what is held."""
        check_error_signal(self, error)
        if not self.finish(error):
            report_late(error)
        self._introduce_late()

    def on_complete(self) -> None:
        """Complete after what is held."""
        self.finish(None)
        self._introduce_late()

    def _begin(self) -> None:
        super()._begin()
        self._begun = True
        # With ERROR, an element before the subscriber has asked could only end the stream.
        if self._options.strategy is not Overflow.ERROR or self._requested.value > 0:
            self._ask_for_all()

    def _ask_for_all(self) -> None:
        if self._asked.terminate():
            self._request(UNBOUNDED)

    # -- the subscription's face -----------------------------------------------------------------

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        try:
            n = check_request(n)  # one look at it: __index__ may answer differently next time
        except Exception as refused:
            self._bad_request(refused)
            return
        self._requested.request(n)
        super().request(n)
        if self._begun and self._asked.value >= 0:
            self._ask_for_all()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """What this boundary holds, has dropped and waits for, then those above."""
        mine = self._waits.metrics(
            self._demand,
            name=self._options.describe(),
            held=len(self._held),
            max_held=self._options.capacity,
            dropped=self._dropped,
        )
        return (mine, *super().metrics())

    # -- the drain -------------------------------------------------------------------------------

    def _deliver(self, hand_on: Callable[[Any], object], element: Any) -> None:
        """As the run would, but for one element: for the holder of the drain only, who leaves it.

        It is asked for, and nothing is before it.
        """
        try:
            self._waits.end()
            try:
                hand_on(element)
            except RecursionError:
                raise
            except Exception as raised:
                self._on_next_raised(raised)
            if self._on_burst is not None:
                self._on_burst()
            self._waits.begin(for_demand=self._demand.fulfil(1) == 0)
        except BaseException as leaving:
            self._interrupted(leaving)
            raise
        if self._wip.fulfil(1) != 0:
            self._drain()

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        run = self._run
        if run is None:
            return False
        self._waits.end()
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return True
        if status is not RunStatus.IDLE and status is not RunStatus.EXHAUSTED:
            return self._answer(status, run)
        if self._completed and not self._held:
            if self._late_error is not None:
                return self._end_late()
            return self._answer(self._flush(run), run)
        self._waits.begin(for_demand=status is RunStatus.IDLE)
        return False

    def _stop(self) -> None:
        self._close()
        super()._stop()

    def _drop_references(self) -> None:
        self._close()  # who cancels may not have closed it yet
        self._hand_on = None
        self._held = deque()
