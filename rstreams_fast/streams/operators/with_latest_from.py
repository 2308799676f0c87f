"""``with_latest_from``: pairs each element with the newest elements of other publishers."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import PendingDemand
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Ended, FanIn, FanInPublisher
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.operators.merge import check_publishers

__all__ = ["WithLatestFrom"]


class WithLatestFrom(Boundary):
    one_to_one = True

    def __init__(self, others: tuple[Publisher[Any], ...]) -> None:
        check_publishers("with_latest_from", others)
        self.others = others

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _LatestSubscription, self)

    def describe(self) -> str:
        return (
            f"with_latest_from {len(self.others)} publishers: asks them for everything, holds the "
            "newest element of each"
        )


class _LatestSubscription(FanIn):
    """Delivers a tuple for each element of upstream.

    The tuple has this element, and the newest element of each other publisher. Upstream gets no
    request until every other publisher has sent an element.
    """

    __slots__ = (
        "_dropped",
        "_due_requests",
        "_latest",
        "_main",
        "_others",
        "_pending",
        "_unpaired",
        "_waits",
    )

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: WithLatestFrom
    ) -> None:
        super().__init__(subscriber)
        self._others = tuple(new_inner(self, each) for each in options.others)
        self._main = new_inner(self, upstream)
        self._unsubscribed.extend((*self._others, self._main))
        # The subscribers in ``_others`` that have not made their unbounded request yet.
        self._due_requests: deque[Inner] = deque()
        self._pending = PendingDemand()
        # Only the delivering thread writes the following fields. ``_latest``: the newest element of
        # each publisher, except upstream. ``_unpaired``: the publishers whose newest element is not
        # delivered in a tuple yet.
        self._latest: dict[Inner, Any] = {}
        self._unpaired: set[Inner] = set()
        self._dropped = 0  # elements that were replaced before their delivery
        self._waits = Waits(options.describe(), len(self._others))

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        if self._pending.add(self, n):
            self._enter_upward()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        held = len(self._latest)
        mine = self._waits.metrics(self._demand.value, held, dropped=self._dropped)
        inners = (self._main, *self._others)
        return (mine, *(metrics for inner in inners for metrics in inner.metrics()))

    # -- signals from the inner subscribers, on any thread -----------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        if inner is self._main:
            inner.attached = True
        else:
            self._due_requests.append(inner)
        self._enter_upward()

    def _delays(self, inner: Inner, error: BaseException) -> bool:  # noqa: ARG002
        return inner is self._main

    # -- calls to publishers -----------------------------------------------------------------------

    def _upward(self) -> bool:
        due = self._due_requests  # read the field once: _forget_upward() may replace it
        if due:
            due.popleft().request(UNBOUNDED)
            return True
        return self._is_complete() and self._pending.request_from(self._main)

    def _upward_is_due(self) -> bool:
        return self._main.requested == 0 and self._is_complete()

    def _is_complete(self) -> bool:
        """Return whether every publisher, except upstream, has sent an element."""
        return len(self._latest) == len(self._others)

    # -- delivering elements -----------------------------------------------------------------------

    def _work(self) -> bool:
        self._waits.end()
        more = super()._work()
        self._waits.begin(for_demand=self._demand.value == 0)
        return more

    def _take(self, inner: Inner, what: list[Any] | Ended) -> None:
        latest, unpaired = self._latest, self._unpaired
        if not isinstance(what, list):
            # The end of upstream ends the stream. The completion of another publisher ends the
            # stream only if that publisher has sent no element: then no tuple can be made.
            if inner not in latest:
                super()._take(inner, what)
        elif inner is self._main:
            newest = tuple([latest[other] for other in self._others])
            unpaired.clear()
            self._deliver(self._gather([(element, *newest) for element in what]))
        else:
            dropped = [latest[inner], *what[:-1]] if inner in unpaired else what[:-1]
            self._dropped += len(dropped)
            unpaired.add(inner)
            self._discard(dropped)
            latest[inner] = what[-1]

    def _forget_upward(self) -> None:
        self._due_requests = deque()

    def _drop_references(self) -> None:
        super()._drop_references()
        self._latest = {}
        self._unpaired = set()
