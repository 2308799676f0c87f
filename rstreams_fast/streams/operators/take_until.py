"""``take_until``: delivers elements until another publisher signals."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Publisher
from rstreams_fast.streams.engine.arbiter import ArbiterBoundary, SubscriptionArbiter
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.sink_subscriber import check_publisher

__all__ = ["TakeUntil"]


class TakeUntil(ArbiterBoundary):
    def __init__(self, other: Publisher[Any]) -> None:
        check_publisher(other, "take_until(publisher): publisher")
        self.other = other

    def prepare(self, arbiter: SubscriptionArbiter, upstream: Publisher[Any]) -> None:  # noqa: ARG002
        arbiter.add_companion(_Until(new_inner(arbiter, self.other)))

    def describe(self) -> str:
        return f"take_until({type(self.other).__name__}): holds no elements"


class _Until:
    """Ends the stream at the first signal of the other publisher.

    ``inner`` is the subscriber to the other publisher. It requests one element.
    """

    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        inner.custody = None  # on_discard() gets no elements of the other publisher

    def receive(self, _burst: list[Any], _over: bool, /) -> bool:
        return True

    def upward(self, _arbiter: SubscriptionArbiter, /) -> bool:
        if not self.inner.attached:
            return False
        self.inner.attached = False  # so that later calls of this method make no request
        self.inner.request(1)
        return True

    def metrics(
        self, _arbiter: SubscriptionArbiter, above: tuple[BoundaryMetrics, ...], /
    ) -> tuple[BoundaryMetrics, ...]:
        return (*above, *self.inner.metrics())
