"""``repeat``: subscribes again to a publisher that has completed."""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_count
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined, Ended

__all__ = ["Repeat"]


class Repeat(Boundary):
    one_to_one = True

    def __init__(self, times: int) -> None:
        self.times = check_count("repeat(times): times", times)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Combined(upstream, _repeated, self.times)

    def describe(self) -> str:
        times = "without end" if self.times >= UNBOUNDED else f"{self.times} times more"
        return f"repeat({times}): holds no elements"


def _repeated(
    subscriber: Subscriber[Any], upstream: Publisher[Any], times: int
) -> SubscriptionArbiter:
    return SubscriptionArbiter(subscriber, upstream, _Repeats(upstream, times))


class _Repeats:
    """Chooses ``upstream`` as the next publisher, ``left`` times."""

    def __init__(self, upstream: Publisher[Any], left: int) -> None:
        self._upstream = upstream
        self._left = left

    def next(self, error: BaseException | None, /) -> Publisher[Any] | Ended:
        if error is not None or not self._left:
            return Ended(error)
        self._left -= 1
        return self._upstream
