"""``take_last``: the last elements, when there are no others."""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_count
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.subscribing import Below
from rstreams_fast.streams.operators.on_overflow import (
    Overflow,
    OverflowBoundary,
    OverflowSubscription,
)

__all__ = ["TakeLast"]


class TakeLast(OverflowBoundary):
    """The boundary of ``Stream.take_last``: a newer element takes the place of the oldest."""

    def __init__(self, n: int) -> None:
        super().__init__(Overflow.DROP_OLDEST, check_count("take_last(n): n", n, 1))

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, _TakeLastSubscription, self)

    def describe(self) -> str:
        return f"take_last({self.capacity}): holds at most {self.capacity}"


class _TakeLastSubscription(OverflowSubscription):
    __slots__ = ()

    def __init__(self, subscriber: Subscriber[Any], options: TakeLast) -> None:
        super().__init__(subscriber, options)
        self._hand_on = None  # an element is delivered from what is held, after the last one

    def on_error(self, error: BaseException, /) -> None:
        """Pass the error on at once: which elements are the last is not known."""
        OperatorSubscriber.on_error(self, error)

    def _work(self) -> bool:
        if self._demand.value >= 0 and not self._completed:
            return False
        return super()._work()
