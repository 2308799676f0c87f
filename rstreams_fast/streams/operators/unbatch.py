"""``unbatch``: delivers the items of elements that are iterables.

One iterable is requested from upstream at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import FusedRun, RunStatus
from rstreams_fast.errors import DemandExceededError
from rstreams_fast.streams.engine.boundary import StagesBoundary
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.pull_source import at_end, close_source
from rstreams_fast.streams.engine.stages import Need, Stages
from rstreams_fast.streams.engine.trampoline import OperatorPublisher

__all__ = ["Unbatch"]


class Unbatch(StagesBoundary):
    def attach_stages(self, upstream: Publisher[Any], stages: Stages, need: Need) -> Any:  # noqa: ARG002
        where = "the threads that upstream signals on, and the caller of request"
        return OperatorPublisher(upstream, _UnbatchSubscription, stages, where)

    def describe(self) -> str:
        return "unbatch(): at most 1 iterable"


class _Items(Iterator[Any]):
    """Iterates over the items of the current iterable. ``open`` sets the next iterable."""

    __slots__ = ("_enter", "current")

    def __init__(self) -> None:
        self.current: Iterator[Any] | None = None
        self._enter: Callable[[Any], None] | None = None

    def open(self, iterable: Any, custody: Custody | None) -> None:
        self.current = iter(iterable)
        if custody is not None:
            self._enter = None if custody.enter_items(iterable) else custody.enter

    def close(self) -> Iterator[Any] | None:
        """Stop the iteration. Return the current iterator, so that the caller can close it."""
        current, self.current = self.current, None
        return current

    def over(self) -> bool:
        """Return true if there is no current iterable, or if it certainly has no item left.

        This method takes no item out of the iterable. So the result may be false although the
        iterable has no item left.
        """
        return self.current is None or at_end(self.current)

    def __next__(self) -> Any:
        current = self.current
        if current is None:
            raise StopIteration
        try:
            item = next(current)
        except StopIteration:
            self.close()
            raise
        if self._enter is not None:
            self._enter(item)
        return item


class _UnbatchSubscription(OperatorSubscriber):
    __slots__ = ("_ended", "_items", "_next", "_outstanding", "_takes_nothing")

    def __init__(self, subscriber: Subscriber[Any], program: Stages) -> None:
        super().__init__(subscriber, None)
        self._items = _Items()
        self._next: Any = None  # an iterable whose iteration has not begun
        self._outstanding = False
        self._ended = False
        self._takes_nothing = program.takes_nothing
        self._waits = Waits(Unbatch().describe(), 1)
        slot = self._slot_by_bursts(subscriber, waits=True)
        self._run = FusedRun(self._items, self._wrap_stages(program.stages), slot, self._demand)

    def on_next(self, element: Any, /) -> None:
        """Keep ``element``, an iterable, until the delivering thread iterates over it."""
        if not self._takes(element) or self._ended:
            return
        if not self._outstanding or self._next is not None:
            self._fail(DemandExceededError("§1.1: more elements came than the 1 asked for"))
            return
        self._next = element
        self._enter()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        held = int(self._next is not None or self._items.current is not None)
        mine = self._waits.metrics(self._demand.value, held)
        return (mine, *super().metrics())

    # -- delivering elements -----------------------------------------------------------------------

    def _work(self) -> bool:
        if self._demand.value < 0:
            self._next = None  # drop an iterable that arrived after _drop_references()
            return self._act_on_end()
        run = self._run
        if run is None:
            return False
        if self._ended or self._takes_nothing:
            return self._end(run)
        self._waits.end()
        # Read ``_completed`` before ``_next``. In the other order, an iterable and the completion
        # could arrive between the two reads, and this iterable would be lost.
        completed = self._completed
        if self._next is not None:
            element, self._next = self._next, None
            self._outstanding = False
            try:
                self._items.open(element, self.custody)
            except TypeError as raised:
                raised.add_note("unbatch() takes elements apart, so each must be an iterable")
                self._fail(raised)
                return self._act_on_end()
            except Exception as raised:
                self._fail(raised)
                return self._act_on_end()
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return True
        if status is RunStatus.ENDED:
            return self._end(run)
        if status is RunStatus.IDLE or status is RunStatus.EXHAUSTED:
            try:
                over = self._items.over()
            except Exception as raised:
                self._fail(raised)
                return self._act_on_end()
            if over and completed and self._next is None:
                return self._end(run)
            if status is RunStatus.EXHAUSTED and not self._outstanding and not completed:
                self._outstanding = True
                self._request(1)
            if self._next is not None:
                return True
            self._waits.begin(for_demand=status is RunStatus.IDLE)
            return False
        return self._end_with_status(status, run)

    def _end(self, run: FusedRun) -> bool:
        self._ended = True
        self._upstream.cancel()  # a cancel has no effect if upstream has ended
        self._close()
        return self._finish_run(run)

    def _close(self) -> None:
        current = self._items.close()
        if current is not None:
            close_source(current)

    def _drop_references(self) -> None:
        self._next = None
        self._close()
