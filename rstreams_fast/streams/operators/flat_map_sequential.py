"""``flat_map_sequential``: ``flat_map`` whose publishers run together, and deliver one by one."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.fan_in import FanIn
from rstreams_fast.streams.engine.inner_subscriber import Inner
from rstreams_fast.streams.operators.flat_map import FlatMap, FlatMapSubscription

__all__ = ["FlatMapSequential"]


class FlatMapSequential(FlatMap):
    """The boundary of ``Stream.flat_map_sequential``."""

    operator = "flat_map_sequential"

    @property
    def subscription_type(self) -> type[FlatMapSubscription]:
        """What carries it out."""
        return _SequentialSubscription


class _SequentialSubscription(FlatMapSubscription):
    """Ready is the first inner of the line at most: that of the oldest element that is not over."""

    __slots__ = ("_line",)

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: FlatMap
    ) -> None:
        super().__init__(subscriber, upstream, options)
        self._line: deque[Inner] = deque()

    def _add(self, inner: Inner) -> bool:
        if inner is not self._outer:
            self._line.append(inner)
        return super()._add(inner)

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        line = self._line  # replaced, not emptied, by who drops all references
        if inner is self._outer or (not over and line and line[0] is inner):
            super()._inner_burst(inner, burst, over)
        else:
            FanIn._inner_burst(self, inner, burst, over)

    def _step(self) -> bool:
        if not self._mail:
            self._line_up()
        return super()._step()

    def _sort(self) -> None:
        super()._sort()
        self._line_up()

    def _line_up(self) -> None:
        line = self._line
        while line and line[0].done and not line[0].queue:
            line.popleft()
        self._ready.clear()
        if line and line[0].queue:
            self._ready.append(line[0])

    def _drop_references(self) -> None:
        super()._drop_references()
        self._line = deque()
