"""Where the calls of a long chain stop nesting.

A signal passes from publisher to subscriber as a call within a call, and so does a request on its
way up. The interpreter's stack is short, so every so many publishers there is one that makes no
call while another is being made: it leaves it to the lowest of them on the same thread, and comes
back. Thus a chain of any length takes a bounded part of the stack.

It passes on everything in its order, and asks for nothing that was not asked of it; only in smaller
portions, as what comes before its turn is held.
"""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import FusedRun, RunStatus, SpscRing
from rstreams_fast.runtime.executors import Trampoline
from rstreams_fast.streams.drain import check_subscriber
from rstreams_fast.streams.figures import BoundaryFigures, Waits
from rstreams_fast.streams.inlet import subscribe_to
from rstreams_fast.streams.ring_inlet import RingInlet
from rstreams_fast.streams.tuning import STACK_BREAK_PREFETCH, replenish_at

__all__ = ["StackBreak"]


class StackBreak:
    """Publishes what ``upstream`` does, in calls that do not nest.

    ``trampoline``: one for all the breaks of a chain, and none else. Who waits, within a call of
    one chain, for what another does on the same thread must not wait for ever.
    """

    def __init__(self, upstream: Publisher[Any], trampoline: Trampoline) -> None:
        self._upstream = upstream
        self._trampoline = trampoline

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Subscribe to upstream on behalf of ``subscriber``."""
        check_subscriber(subscriber)
        _StackBreakSubscription(subscriber, self._trampoline).start(self._upstream)

    @staticmethod
    def describe() -> str:
        """Say what may be held."""
        return f"stack break: at most {STACK_BREAK_PREFETCH} elements"


class _StackBreakSubscription(RingInlet):
    __slots__ = ("_asked", "_trampoline", "_waits")

    def __init__(self, subscriber: Subscriber[Any], trampoline: Trampoline) -> None:
        super().__init__(subscriber, None, delay_error=True)
        self._trampoline = trampoline
        self._asked = 0
        self._waits = Waits()
        self._queue = self.ring = SpscRing(STACK_BREAK_PREFETCH)
        slot = self._slot_by_bursts(subscriber)
        self._run = FusedRun(self._queue, (), slot, self._demand)

    # -- the calls that do not nest --------------------------------------------------------------

    def start(self, upstream: Publisher[Any]) -> None:
        """Subscribe to upstream."""
        self._trampoline.run(lambda: subscribe_to(upstream, self))

    def _begin(self) -> None:
        self._trampoline.run(super()._begin)

    def _go(self) -> None:
        self._trampoline.run(self._drain)

    def _stop(self) -> None:
        self._trampoline.run(super()._stop)

    # -- the drain -------------------------------------------------------------------------------

    def _work(self) -> bool:
        if self._demand.value < 0:
            return self._settle()
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
            error, self._late_error = self._late_error, None
            if error is None:
                return self._answer(RunStatus.DONE, run)
            self._fail(error)
            return self._settle()
        self._waits.begin(for_demand=status is RunStatus.IDLE)
        self._replenish(self._asked - run.pulled)
        return False

    def _replenish(self, coming: int) -> None:
        """Ask for what is asked of us, as far as there is room, before the last of it has come."""
        missing = min(self._demand.pending, STACK_BREAK_PREFETCH) - coming
        if missing > 0 and coming <= _FEW:
            self._asked += missing
            self._request(missing)

    def figures(self) -> tuple[BoundaryFigures, ...]:
        """What is held here, then the figures of the boundaries above."""
        mine = self._waits.figures(
            self._demand,
            name=StackBreak.describe(),
            held=len(self._queue),
            max_held=STACK_BREAK_PREFETCH,
        )
        return (mine, *self._upstream.figures_further_up())


_FEW = STACK_BREAK_PREFETCH - replenish_at(STACK_BREAK_PREFETCH)
"""As many may be on their way when more are asked for."""
