"""``race``: of several publishers the one that signals first."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.operators.merge import check_publishers

__all__ = ["Race"]


class Race(Boundary):
    """The boundary of ``Stream.race``, its arguments checked."""

    one_to_one = True

    def __init__(self, others: tuple[Publisher[Any], ...]) -> None:
        check_publishers("race", others)
        self.others = others

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _RaceSubscription, self.others)

    def describe(self) -> str:
        return f"race of {1 + len(self.others)} publishers: asks each for 1 element, holds none"


class _RaceSubscription(SubscriptionArbiter):
    __slots__ = ("_attached_runners", "_decided", "_runners", "_taken", "_winner")

    def __init__(
        self,
        subscriber: Subscriber[Any],
        upstream: Publisher[Any],
        others: tuple[Publisher[Any], ...],
    ) -> None:
        super().__init__(subscriber, None)
        self._runners = tuple(new_inner(self, each) for each in (upstream, *others))
        self._unsubscribed.extend(self._runners)
        self._attached_runners: deque[Inner] = deque()  # to be asked
        self._decided = DemandCounter()  # terminated by the first who signals
        self._winner: Inner | None = None
        self._taken = False  # whether it is the current one

    def _wins(self, inner: Inner) -> bool:
        """Whether the signals of ``inner`` count; the first to ask cancels the others."""
        if self._winner is inner:
            return True
        if not self._decided.terminate():
            return False
        for other in self._runners:
            if other is not inner:
                other.cancel()
        self._winner = inner
        self._call_up()
        return True

    # -- from inners, any thread -----------------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        self._attached_runners.append(inner)
        self._call_up()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        if self._wins(inner):
            super()._inner_burst(inner, burst, over)
        else:
            self._discard(burst)

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if self._wins(inner):
            super()._inner_ended(inner, error)
        elif error is not None:
            report_dropped(error, "an error of a publisher that was not the first to signal")

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        winner = self._winner
        if winner is None:
            attached = self._attached_runners
            if attached and self._pending.value > 0:
                attached.popleft().ask(1)
                return True
            return False
        if not self._taken:
            self._taken = winner.attached = True
            self._current = winner
            if winner.asked and self._pending.value < UNBOUNDED:
                self._pending.fulfil(1)  # what it was asked for as all were
            return True
        return super()._upward()

    def _drop_references(self) -> None:
        super()._drop_references()
        self._runners = ()
        self._attached_runners = deque()
        self._winner = None
