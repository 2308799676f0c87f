"""``repeat``: subscribes again to a publisher that has completed."""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_count
from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.streams.engine.arbiter import ArbiterBoundary, SubscriptionArbiter
from rstreams_fast.streams.engine.fan_in import Ended

__all__ = ["Repeat"]


class Repeat(ArbiterBoundary):
    def __init__(self, times: int) -> None:
        self.times = check_count("repeat(times): times", times)

    def prepare(self, arbiter: SubscriptionArbiter, upstream: Publisher[Any]) -> None:
        arbiter.chooser = _Repeats(upstream, self.times)

    def describe(self) -> str:
        times = "without end" if self.times >= UNBOUNDED else f"{self.times} times more"
        return f"repeat({times}): holds no elements"


class _Repeats:
    """Chooses ``upstream`` as the next publisher after a completion, at most ``left`` times."""

    def __init__(self, upstream: Publisher[Any], left: int) -> None:
        self._upstream = upstream
        self._left = left

    def next(self, error: BaseException | None, /) -> Publisher[Any] | Ended:
        if error is not None or not self._left:
            return Ended(error)
        self._left -= 1
        return self._upstream
