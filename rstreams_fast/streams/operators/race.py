"""``race``: delivers the elements of the publisher that signals first."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import Latch
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.arbiter import PendingDemand
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Ended, FanIn, FanInPublisher
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.signals import call_all
from rstreams_fast.streams.operators.merge import check_publishers

__all__ = ["Race"]


class Race(Boundary):
    one_to_one = True

    def __init__(self, others: tuple[Publisher[Any], ...]) -> None:
        check_publishers("race", others)
        self.others = others

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _RaceSubscription, self.others)

    def describe(self) -> str:
        return f"race of {1 + len(self.others)} publishers: asks each for 1 element, holds none"


class _RaceSubscription(FanIn):
    """Requests one element from each publisher. The publisher that signals first is the winner.

    The other publishers are cancelled. The winner gets requests for the rest of the demand. Each
    item of ``_runners`` is the subscriber to one publisher.
    """

    __slots__ = ("_attached", "_decided", "_pending", "_runners", "_taken", "_winner")

    def __init__(
        self,
        subscriber: Subscriber[Any],
        upstream: Publisher[Any],
        others: tuple[Publisher[Any], ...],
    ) -> None:
        super().__init__(subscriber)
        self._runners = tuple(new_inner(self, each) for each in (upstream, *others))
        self._unsubscribed.extend(self._runners)
        self._attached: deque[Inner] = deque()  # subscribers that still need their first request
        self._pending = PendingDemand()
        self._decided = Latch()  # a flag, set when the first publisher signals
        self._winner: Inner | None = None
        # Each publisher first gets a request for one element. ``_taken``: whether the winner's
        # element was subtracted from ``_pending``, the demand that is still to be requested.
        self._taken = False

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        if self._pending.add(self, n):
            self._enter_upward()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        winner = self._winner
        return () if winner is None else winner.metrics()

    def _wins(self, inner: Inner) -> bool:
        """Return whether ``inner`` is the first to signal. Then call ``_cancel_others`` next."""
        return self._winner is inner or self._decided.win()

    def _cancel_others(self, winner: Inner) -> None:
        """At the first signal of ``winner``, cancel the other publishers."""
        if self._winner is winner:
            return
        try:
            call_all(each.cancel for each in self._runners if each is not winner)
        finally:
            self._winner = winner
            self._enter_upward()

    # -- signals from the inner subscribers, on any thread -----------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        self._attached.append(inner)
        self._enter_upward()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        if not self._wins(inner):
            self._discard(burst)
            return
        try:
            self._cancel_others(inner)
        finally:  # deliver the elements even if a clean-up raises an exception such as SystemExit
            super()._inner_burst(inner, burst, over)

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if self._wins(inner):
            try:
                self._cancel_others(inner)
            finally:
                self._mail.append((inner, Ended(error)))
                self._enter()
        elif error is not None:
            report_dropped(error, "an error of a publisher that was not the first to signal")

    # -- calls to publishers -----------------------------------------------------------------------

    def _upward(self) -> bool:
        winner, attached = self._winner, self._attached
        if winner is None:
            if not attached or self._pending.counter.value <= 0:
                return False
            attached.popleft().request(1)
            return True
        if not self._taken:
            self._taken = winner.attached = True
            if winner.requested:
                self._pending.counter.fulfil(1)  # the winner's first element is already requested
        return self._pending.request_from(winner)

    def _upward_is_due(self) -> bool:
        return False

    def _forget_upward(self) -> None:
        self._runners = ()
        self._attached = deque()
        self._winner = None
