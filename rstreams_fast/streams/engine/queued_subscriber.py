"""A subscriber that queues elements in a ring, for a drain below it to take out."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import UNBOUNDED, Subscriber
from rstreams_fast.core import SpscRing
from rstreams_fast.errors import DemandExceededError, OverlappingCallsError
from rstreams_fast.runtime.executors import Resource
from rstreams_fast.runtime.parking import running_loop
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.boundary import RingSubscriber
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.signals import check_error_signal

__all__ = ["QueuedSubscriber"]


class _Gone:
    """Stands where a ring was dropped. An upstream that looked just before may still offer: what
    comes is forgotten (§2.8), as nobody takes it out any more.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return 0

    def offer(self, _element: Any, /) -> bool:
        return True


_GONE = _Gone()


class QueuedSubscriber(OperatorSubscriber, RingSubscriber):
    """The upper half of a boundary with a ring. Subclasses set ``_queue``, and ``ring`` if a run
    above may offer to it directly; upstream is asked for no more than it has places.

    ``delay_error``: an error is left in ``_late_error`` until the ring is empty, instead of
    overtaking what is in it. ``total``: how many elements the subscriber can use in all. Where that
    is known, an error is left there, too; the drain decides whether the error overtakes the ring.
    """

    __slots__ = ("_delay_error", "_queue", "_total", "ring")

    def __init__(
        self,
        subscriber: Subscriber[Any],
        resource: Resource | None,
        *,
        delay_error: bool,
        total: int = UNBOUNDED,
    ) -> None:
        super().__init__(subscriber, resource)
        if resource is not None:
            self.turns = Turns(self._enter)
            self.turns.begin(running_loop())  # of the subscribing thread
        self._delay_error = delay_error
        self._total = total
        self._queue: Any = None
        self.ring: SpscRing | None = None

    def on_next(self, element: Any, /) -> None:
        """Put the element in the ring."""
        if not self._takes(element):
            return
        try:
            accepted = self._accept(element)
        except OverlappingCallsError as overlap:
            self._fail(overlap)  # §1.3
            return
        if accepted:
            self.on_burst()
        else:
            self._fail(DemandExceededError("§1.1: more elements came than had been asked for"))

    def _accept(self, element: Any) -> bool:
        accepted: bool = self._queue.offer(element)
        return accepted

    def on_burst(self) -> None:
        """See what was put in the ring."""
        self._enter()

    def on_error(self, error: BaseException, /) -> None:
        """Overtake the elements in the ring, unless ``delay_error`` or those are all it needs."""
        if not self._delay_error and self._total == UNBOUNDED:
            super().on_error(error)
            return
        check_error_signal(self, error)
        if self._completed:
            self._fail(error)  # a second end
        else:
            self._fail_after_elements(error)

    def _overtakes(self, came: int) -> bool:
        """Whether a late error is to be signalled now, as more than the ``came`` elements were
        needed. For the drain, which counts after the error was left: then ``came`` is final.
        """
        return self._late_error is not None and not self._delay_error and came < self._total

    def _work_for_a_turn(self) -> bool:
        if self.turns is not None:
            self.turns.begin(running_loop())
        return super()._work_for_a_turn()

    def _drop_references(self) -> None:
        if self._resource is not None and self.turns is not None:
            self.turns.end()
        self.ring = None
        self._queue.disarm()
        self._queue = _GONE
