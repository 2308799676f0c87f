"""``concat_map``: a publisher for each element, one after another."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from rstreams_fast._checks import check_capacity, describe_callable
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.fan_in import Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.operators.flat_map import ToPublisher, publisher_from

__all__ = ["ConcatMap"]


class ConcatMap(Boundary):
    """The boundary of ``Stream.concat_map``, its arguments checked."""

    def __init__(self, fn: ToPublisher, prefetch: int) -> None:
        self.fn = fn
        self.prefetch = check_capacity("prefetch", prefetch)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _ConcatMapSubscription, self)

    def describe(self) -> str:
        return (
            f"concat_map({describe_callable(self.fn)}): at most {self.prefetch} elements, and one "
            "publisher at a time"
        )


class _ConcatMapSubscription(SubscriptionArbiter):
    """One inner is the outer publisher, whose elements wait until the one before is over."""

    _runs_sequences = True

    __slots__ = (
        "_begun",
        "_fn",
        "_idle",
        "_name",
        "_outer",
        "_outer_attached",
        "_outer_done",
        "_prefetch",
        "_replenish_at",
        "_unasked",
        "_waiting",
        "_waits",
    )

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: ConcatMap
    ) -> None:
        super().__init__(subscriber, None)
        self._fn: ToPublisher | None = self._using(options.fn)
        self._name = options.describe()
        self._prefetch = options.prefetch
        self._replenish_at = replenish_at(options.prefetch)
        self._outer = new_inner(self, upstream)
        self._unsubscribed.append(self._outer)
        self._outer_attached = self._outer_done = False
        self._waiting: deque[Any] = deque()
        self._begun = False  # nobody is asked before the subscriber has asked
        self._unasked = options.prefetch  # places for elements which were not asked for yet
        self._idle = True  # nothing to go on with has come yet
        self._waits = Waits()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """What waits here to be opened, then the boundaries above, the current publisher's
        first.
        """
        current = self._current
        coming = 0 if current is None else current.asked - current.came
        mine = self._waits.metrics(
            self._demand,
            name=self._name,
            held=len(self._waiting),
            max_held=self._prefetch,
        )
        # The drain of a sequence counts what is to come of it, and not all that there is.
        demand = min(self._pending.counter.pending + coming, mine.demand)
        return (replace(mine, demand=demand), *super().metrics(), *self._outer.metrics())

    # -- from the outer publisher ----------------------------------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        if inner is not self._outer:
            super()._inner_attached(inner)
            return
        self._outer_attached = True
        self._call_up()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        if inner is not self._outer:
            super()._inner_burst(inner, burst, over)
            return
        self._waiting += burst
        self._outer_done = over
        self._call_up()

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if inner is not self._outer:
            super()._inner_ended(inner, error)
        elif error is not None:
            self._fail(error)  # at once: it overtakes what waits
        else:
            self._outer_done = True
            self._call_up()

    # -- upward ----------------------------------------------------------------------------------

    def _upward(self) -> bool:
        done = self._outer_done  # read before the elements that came before it
        if self._idle and (self._waiting or done):
            self._idle = False
            self._waits.end()
            self._over = True  # whatever was before the next
        if self._unasked >= self._replenish_at and self._outer_attached and not done:
            if not self._begun and self._demand.value > 0:
                self._begun = True
                self._waits.begin(for_demand=False)
            if self._begun:
                unasked, self._unasked = self._unasked, 0
                return self._outer.ask_for_a_turn(unasked)
        if self._idle and self._pending.counter.value > 0 and self._outer.ask_for_a_turn():
            return True
        return super()._upward()

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        done, waiting, fn = self._outer_done, self._waiting, self._fn
        if error is not None:
            self._finish(error)
        elif fn is None:
            return None
        elif waiting:
            self._unasked += 1
            return publisher_from("concat_map", fn, waiting.popleft())
        elif done:
            self._finish()
        else:
            self._idle = True
            self._waits.begin(for_demand=self._pending.counter.value == 0)
        return None

    def _forget_upward(self) -> None:
        super()._forget_upward()
        self._fn = None
        self._waiting = deque()
