"""``with_latest_from``: each element with the newest ones of other publishers."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import COMPLETED, Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.operators.merge import check_publishers

__all__ = ["WithLatestFrom"]


class WithLatestFrom(Boundary):
    """The boundary of ``Stream.with_latest_from``, its arguments checked."""

    one_to_one = True

    def __init__(self, others: tuple[Publisher[Any], ...]) -> None:
        check_publishers("with_latest_from", others)
        self.others = others

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _LatestSubscription, self)

    def describe(self) -> str:
        return (
            f"with_latest_from {len(self.others)} publishers: asks them for everything, holds the "
            "newest element of each"
        )


class _LatestSubscription(SubscriptionArbiter):
    """Upstream is asked when each of the others has given an element."""

    __slots__ = (
        "_asks",
        "_dropped",
        "_latest",
        "_main",
        "_name",
        "_others",
        "_unpaired",
        "_waits",
    )

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: WithLatestFrom
    ) -> None:
        super().__init__(subscriber, upstream)
        self._name = options.describe()
        self._others = tuple(new_inner(self, each) for each in options.others)
        self._unsubscribed.extend(self._others)
        self._asks: deque[Inner] = deque()
        self._main: Inner | None = None  # once it is attached, until it may be asked
        # For the holder of the drain:
        self._latest: dict[Inner, Any] = {}  # in the order of the publishers, when all are there
        self._unpaired: set[Inner] = set()  # whose newest element has not left yet
        self._dropped = 0  # those that never did
        self._waits = Waits()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """What is held here and was passed over, then the boundaries above."""
        mine = self._waits.metrics(
            self._demand,
            name=self._name,
            held=len(self._latest),
            max_held=len(self._others),
            dropped=self._dropped,
        )
        above = (metrics for inner in self._others for metrics in inner.metrics())
        return (mine, *super().metrics(), *above)

    # -- from inners, any thread -----------------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        if inner in self._others:
            self._asks.append(inner)
        else:
            self._main = inner
        self._call_up()

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if inner not in self._others:
            super()._inner_ended(inner, error)
        elif error is not None:
            self._fail(error)
        else:
            self._mail.append((inner, COMPLETED))
            self._enter()

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        asks = self._asks
        if asks:
            asks.popleft().ask(UNBOUNDED)
            return True
        main = self._main
        if main is not None and self._is_due():
            self._main = None
            main.attached = True
        return super()._upward()

    def _is_due(self) -> bool:
        """Whether upstream can, and may now, be asked for the first time."""
        return self._main is not None and len(self._latest) == len(self._others)

    # -- the drain -------------------------------------------------------------------------------

    def _to_ask(self) -> bool:
        return self._is_due() or super()._to_ask()

    def _work(self) -> bool:
        self._waits.end()
        more = super()._work()
        self._waits.begin(for_demand=self._demand.value == 0)
        return more

    def _take(self, inner: Inner, what: Any) -> None:
        latest, unpaired = self._latest, self._unpaired
        if inner not in self._others:
            newest = tuple([latest[other] for other in self._others])
            unpaired.clear()
            super()._take(inner, self._gathered([(element, *newest) for element in what]))
        elif isinstance(what, list):
            left_out = [latest[inner], *what[:-1]] if inner in unpaired else what[:-1]
            self._dropped += len(left_out)
            unpaired.add(inner)
            self._discard(left_out)
            latest[inner] = what[-1]
        elif inner not in latest:  # no element of upstream can be paired
            self._complete()

    def _forget_upward(self) -> None:
        super()._forget_upward()
        self._main = None
        self._asks = deque()

    def _drop_references(self) -> None:
        super()._drop_references()
        self._latest = {}
        self._unpaired = set()
