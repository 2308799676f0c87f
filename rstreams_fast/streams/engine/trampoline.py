"""Where calls stop nesting.

A signal passes from publisher to subscriber as a call within a call, and so does a request on its
way up. The interpreter's stack is short, so every so many subscribers one makes no call while
another is being made: it leaves the call to the lowest of them on the same thread, and returns. All
that stand on one another share a trampoline, and nobody else does: a thread that waits, within a
call of one stream, for what another stream does on the same thread must not wait for ever.

It passes on everything in its order, and asks for nothing that was not asked of it; only in smaller
portions, as an element that is early is held.
"""

from __future__ import annotations

from typing import Any, Final

from rstreams_fast.api import Publisher
from rstreams_fast.core import FusedRun, RunStatus, SpscRing
from rstreams_fast.runtime.executors import Trampoline
from rstreams_fast.streams.engine.defaults import TRAMPOLINE_PREFETCH, replenish_at
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.queued_subscriber import QueuedSubscriber
from rstreams_fast.streams.engine.sink_subscriber import subscribe

__all__ = ["NAME", "TrampolineSubscription"]

NAME: Final = f"trampoline: at most {TRAMPOLINE_PREFETCH} elements"


class TrampolineSubscription(QueuedSubscriber):
    """Passes on its signals from a trampoline; ``start`` subscribes it."""

    __slots__ = ("_asked", "_bounce", "_waits")

    def __init__(self, subscriber: Any) -> None:
        super().__init__(subscriber, None, delay_error=True)
        if self.trampoline is None:
            self.trampoline = Trampoline()
        self._bounce = self.trampoline.run
        self.depth = 0  # what stands on this begins to count anew
        self._asked = 0
        self._waits = Waits()
        self._queue = self.ring = SpscRing(TRAMPOLINE_PREFETCH)
        slot = self._slot_by_bursts(subscriber)
        self._run = FusedRun(self._queue, (), slot, self._demand)

    # -- the calls that do not nest --------------------------------------------------------------

    def start(self, upstream: Publisher[Any]) -> None:
        """Subscribe to upstream."""
        self._bounce(lambda: subscribe(upstream, self))

    def _begin(self) -> None:
        self._bounce(super()._begin)

    def _go(self) -> None:
        self._bounce(self._drain)

    def _stop(self) -> None:
        self._bounce(super()._stop)

    # -- the drain -------------------------------------------------------------------------------

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._act_on_end()
        run = self._run
        if run is None:
            return False
        self._waits.end()
        completed = self._completed  # read before the ring: then an empty one is the end
        status = self._burst_on(run)
        if status is RunStatus.MORE:
            return True
        if status is not RunStatus.IDLE and status is not RunStatus.EXHAUSTED:
            return self._answer(status, run)
        if completed and len(self._queue) == 0:
            if self._late_error is not None:
                return self._end_late()
            return self._answer(RunStatus.DONE, run)
        self._waits.begin(for_demand=status is RunStatus.IDLE)
        self._replenish(self._asked - run.pulled)
        return False

    def _replenish(self, coming: int) -> None:
        """Ask for what is asked of us, as far as there is room, before the last of it has come."""
        missing = min(self._demand.pending, TRAMPOLINE_PREFETCH) - coming
        if missing > 0 and coming <= _FEW:
            self._asked += missing
            self._request(missing)

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """What is held here, then the metrics of the boundaries above."""
        mine = self._waits.metrics(
            self._demand,
            name=NAME,
            held=len(self._queue),
            max_held=TRAMPOLINE_PREFETCH,
        )
        return (mine, *self._upstream.metrics_further_up())


_FEW = TRAMPOLINE_PREFETCH - replenish_at(TRAMPOLINE_PREFETCH)
"""As many may be on their way when more are asked for."""
