"""``concat_map``: makes a publisher from each element, and concatenates these publishers."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from rstreams_fast._checks import check_capacity, describe_callable
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.defaults import replenish_at
from rstreams_fast.streams.engine.fan_in import Ended, FanInPublisher
from rstreams_fast.streams.engine.inner_subscriber import new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.operators.flat_map import ToPublisher, publisher_from

__all__ = ["ConcatMap"]


class ConcatMap(Boundary):
    def __init__(self, fn: ToPublisher, prefetch: int) -> None:
        self.fn = fn
        self.prefetch = check_capacity("prefetch", prefetch)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _new_arbiter, self)

    def describe(self) -> str:
        return (
            f"concat_map({describe_callable(self.fn)}): at most {self.prefetch} elements, and one "
            "publisher at a time"
        )


def _new_arbiter(
    subscriber: Subscriber[Any], upstream: Publisher[Any], options: ConcatMap
) -> SubscriptionArbiter:
    arbiter = SubscriptionArbiter(subscriber, None)
    outer = _Outer(arbiter, upstream, options)
    arbiter.chooser = outer
    arbiter.on_end = outer.close
    arbiter.add_companion(outer)
    return arbiter


class _Outer:
    """Receives upstream's elements, and makes publishers from them for a ``SubscriptionArbiter``.

    The arbiter subscribes to these publishers, one at a time. Further elements of upstream wait in
    this object until publishers are made from them. ``inner`` is the subscriber to upstream. It
    passes upstream's elements to the arbiter, and the arbiter passes them to ``receive``.
    """

    __slots__ = (
        "_begun",
        "_demand",
        "_done",
        "_fn",
        "_idle",
        "_pending",
        "_replenish_at",
        "_unasked",
        "_waiting",
        "_waits",
        "inner",
    )

    def __init__(
        self, arbiter: SubscriptionArbiter, upstream: Publisher[Any], options: ConcatMap
    ) -> None:
        self.inner = new_inner(arbiter, upstream)
        self._demand, self._pending = arbiter._demand, arbiter.pending.counter
        self._fn: ToPublisher | None = arbiter._wrap_function(options.fn)
        self._replenish_at = replenish_at(options.prefetch)
        self._done = False  # whether upstream has completed
        self._waiting: deque[Any] = deque()
        self._begun = False
        self._unasked = options.prefetch
        # ``_idle``: whether no publisher is active. If so, at upstream's next signal the arbiter
        # (the subscription of ``concat_map``) must call ``next`` for the next publisher.
        self._idle = True
        self._waits = Waits(options.describe(), options.prefetch)

    def receive(self, burst: list[Any], over: bool, /) -> bool:
        self._waiting += burst
        self._done = over
        return False

    def upward(self, arbiter: SubscriptionArbiter, /) -> bool:
        done = self._done
        if self._idle and (self._waiting or done):
            self._idle = False
            self._waits.end()
            arbiter.call_next()
        if self._unasked >= self._replenish_at and self.inner.attached and not done:
            if not self._begun and self._demand.value > 0:
                self._begun = True
                self._waits.begin(for_demand=False)
            if self._begun:
                unasked, self._unasked = self._unasked, 0
                return self.inner.request_for_a_turn(unasked)
        return self._idle and self._pending.value > 0 and self.inner.request_for_a_turn()

    def next(self, error: BaseException | None, /) -> Publisher[Any] | Ended | None:
        # Read ``_done`` before the first look into ``_waiting``. In the other order, elements and
        # the end could arrive between the two reads, and these elements would be lost.
        done, waiting, fn = self._done, self._waiting, self._fn
        if error is not None:
            return Ended(error)
        if fn is None:  # close() was called: the stream is over
            return None
        if waiting:
            self._unasked += 1
            return publisher_from("concat_map", fn, waiting.popleft())
        if done:
            return Ended(None)
        self._idle = True
        self._waits.begin(for_demand=self._pending.value == 0)
        return None

    def metrics(
        self, arbiter: SubscriptionArbiter, above: tuple[BoundaryMetrics, ...], /
    ) -> tuple[BoundaryMetrics, ...]:
        mine = self._waits.metrics(self._demand.value, len(self._waiting))
        # ``self._demand``, the arbiter's demand, may still include delivered items of a sequence
        # (such as a list). ``outstanding()`` (requested elements that were not sent) never includes
        # them, but may count an unbounded demand twice. So use the smaller number.
        demand = min(arbiter.outstanding(), mine.demand)
        return (replace(mine, demand=demand), *above, *self.inner.metrics())

    def close(self) -> None:
        """Drop the elements that wait. Any thread may call this method.

        The arbiter may call this method again, because elements may arrive after the first call.
        """
        self._fn = None
        self._waiting = deque()
