"""``take_until``: delivers elements until another publisher signals."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.sink_subscriber import check_publisher

__all__ = ["TakeUntil"]


class TakeUntil(Boundary):
    one_to_one = True

    def __init__(self, other: Publisher[Any]) -> None:
        check_publisher(other, "take_until(publisher): publisher")
        self.other = other

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _taken_until, self.other)

    def describe(self) -> str:
        return f"take_until({type(self.other).__name__}): holds no elements"


def _taken_until(
    subscriber: Subscriber[Any], upstream: Publisher[Any], other: Publisher[Any]
) -> SubscriptionArbiter:
    arbiter = SubscriptionArbiter(subscriber, upstream)
    arbiter.accompany(_Until(new_inner(arbiter, other)))
    return arbiter


class _Until:
    """Ends the stream at the first signal of the other publisher, to which ``inner`` subscribes.

    The other publisher gets a request for one element before upstream is subscribed to.
    """

    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        inner.custody = None  # ``on_discard`` gets no elements of the other publisher

    def took(self, _burst: list[Any], _over: bool, /) -> bool:
        return True

    def upward(self, _arbiter: SubscriptionArbiter, /) -> bool:
        if not self.inner.attached:
            return False
        self.inner.attached = False  # make no second request
        self.inner.ask(1)
        return True

    def metrics(
        self, _arbiter: SubscriptionArbiter, above: tuple[BoundaryMetrics, ...], /
    ) -> tuple[BoundaryMetrics, ...]:
        return (*above, *self.inner.metrics())
