"""``repeat``: the same publisher again when it has completed."""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_count
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined

__all__ = ["Repeat"]


class Repeat(Boundary):
    """The boundary of ``Stream.repeat``, its argument checked."""

    one_to_one = True

    def __init__(self, times: int) -> None:
        self.times = check_count("repeat(times): times", times)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _RepeatSubscription, self.times)

    def describe(self) -> str:
        times = "without end" if self.times >= UNBOUNDED else f"{self.times} times more"
        return f"repeat({times}): holds no elements"


class _RepeatSubscription(SubscriptionArbiter):
    _runs_sequences = True

    __slots__ = ("_left", "_upstream")

    def __init__(self, subscriber: Subscriber[Any], upstream: Publisher[Any], times: int) -> None:
        super().__init__(subscriber, upstream)
        self._upstream: Publisher[Any] | None = upstream
        self._left = times

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        if error is None and self._left:
            self._left -= 1
            return self._upstream
        return super()._next(error)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._upstream = None
