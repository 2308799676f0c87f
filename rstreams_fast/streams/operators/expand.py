"""``expand``: what a function makes of each element, of what it has made, and so on."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast._checks import check_bool, describe_callable
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import SubscriptionArbiter
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Combined
from rstreams_fast.streams.engine.inner_subscriber import Inner
from rstreams_fast.streams.operators.flat_map import ToPublisher, publisher_from

__all__ = ["Expand"]


class Expand(Boundary):
    """The boundary of ``Stream.expand``, its arguments checked."""

    def __init__(self, fn: ToPublisher, depth_first: bool) -> None:
        self.fn = fn
        self.depth_first = check_bool("depth_first", depth_first)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        kind = _DepthFirst if self.depth_first else _BreadthFirst
        return Combined(upstream, kind, self.fn)

    def describe(self) -> str:
        held = "the publishers on the way down" if self.depth_first else "elements to be expanded"
        return f"expand({describe_callable(self.fn)}): holds {held}, without a bound"


class _BreadthFirst(SubscriptionArbiter):
    """One publisher after the other, in the order of the elements that they are made of."""

    __slots__ = ("_fn", "_waiting")

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], fn: ToPublisher
    ) -> None:
        super().__init__(subscriber, upstream)
        self._fn: ToPublisher | None = fn
        self._waiting: deque[Any] = deque()  # to be expanded

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        self._waiting += burst
        if self._demand.value < 0:  # all references were dropped, perhaps before it came
            self._waiting.clear()
        super()._inner_burst(inner, burst, over)

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        waiting, fn = self._waiting, self._fn
        if error is None and waiting and fn is not None:
            return publisher_from("expand", fn, waiting.popleft())
        return super()._next(error)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._fn = None
        self._waiting = deque()


class _DepthFirst(_BreadthFirst):
    """Each publisher is asked for one element at a time, and goes on when all that follows from it
    has come. Until then it waits on a stack, unless it is over.
    """

    __slots__ = ("_answered", "_stack")

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], fn: ToPublisher
    ) -> None:
        super().__init__(subscriber, upstream, fn)
        self._stack: list[Inner] = []
        self._answered = True  # the one that was asked for has come

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        super()._inner_burst(inner, burst)
        if over:
            inner.done = True  # after its last element was noted
        self._answered = True
        self._call_up()

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if error is not None:
            self._finish(error)
        inner.done = True
        self._call_up()

    def _upward(self) -> bool:
        current = self._current
        if not self._answered and not (current is not None and current.done):
            return False
        if current is not None and (self._waiting or current.done):
            if not current.done:
                self._stack.append(current)
                self._current = None
            self._change_over()
            return True
        publisher = self._publisher
        if publisher is not None:
            self._publisher = None
            self._current = self._subscribe_to(publisher)
            return True
        n = self._pending.value
        if n <= 0 or current is None or not current.attached:
            return False
        if n < UNBOUNDED:
            self._pending.fulfil(1)
        self._answered = False
        current.ask(1)
        return True

    def _next(self, error: BaseException | None, /) -> Publisher[Any] | None:
        self._answered = True
        stack = self._stack
        while stack and stack[-1].done:
            self._inners.discard(stack.pop())
        if self._waiting or not stack:
            return super()._next(error)
        self._current = stack.pop()
        return None

    def _drop_references(self) -> None:
        super()._drop_references()
        self._stack = []
