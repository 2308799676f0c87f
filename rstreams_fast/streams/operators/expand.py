"""``expand``: applies a function recursively, and delivers the elements of all levels.

The function makes a publisher from each element. The function is also called with the elements that
these publishers send.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast._checks import check_bool, describe_callable
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import PendingDemand
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.fan_in import Ended, FanIn, FanInPublisher
from rstreams_fast.streams.engine.inner_subscriber import Inner, new_inner
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.operators.flat_map import ToPublisher, publisher_from

__all__ = ["Expand"]


class Expand(Boundary):
    def __init__(self, fn: ToPublisher, depth_first: bool) -> None:
        self.fn = fn
        self.depth_first = check_bool("depth_first", depth_first)

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return FanInPublisher(upstream, _ExpandSubscription, self)

    def describe(self) -> str:
        held = "the publishers on the way down" if self.depth_first else "elements to be expanded"
        return f"expand({describe_callable(self.fn)}): holds {held}, without a bound"


class _ExpandSubscription(FanIn):
    """The subscription of ``expand``. It requests elements from one publisher at a time.

    To *expand* an element is to call the function with the element, and to subscribe to the
    publisher that the function returns.

    In breadth-first order a publisher first sends all its elements. Then the oldest element that is
    not expanded yet is expanded. In depth-first order a publisher sends one element, and this
    element is expanded immediately. The publisher waits on a stack until the new publisher ends.
    """

    __slots__ = ("_current", "_deep", "_fn", "_pending", "_stack", "_waiting")

    def __init__(
        self, subscriber: Subscriber[Any], upstream: Publisher[Any], options: Expand
    ) -> None:
        super().__init__(subscriber)
        self._fn: ToPublisher | None = options.fn
        self._deep = options.depth_first
        self._pending = PendingDemand()
        self._current: Inner | None = new_inner(self, upstream)
        self._unsubscribed.append(self._current)
        self._stack: list[Inner] = []
        self._waiting: deque[Any] = deque()  # elements for which ``fn`` was not called yet

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8)."""
        if self._pending.add(self, n):
            self._enter_upward()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        current = self._current
        return () if current is None else current.metrics()

    # -- signals from the inner subscribers, on any thread -----------------------------------------

    def _inner_attached(self, inner: Inner, /) -> None:
        inner.attached = True
        self._enter_upward()

    def _inner_burst(self, inner: Inner, burst: list[Any], over: bool = False, /) -> None:
        self._waiting += burst
        if self._demand.value < 0:  # the stream is over: no other code clears _waiting now
            self._waiting.clear()
        count = len(burst)
        self._mail.append((inner, burst))
        # Add the elements to ``_waiting`` before ``consumed`` counts them as received. In the other
        # order ``_upward``, on another thread, might see that the requested element has come, but
        # find ``_waiting`` empty. In depth-first order ``_upward`` would then request the next
        # element too early: before the user's function was called with the element that has come.
        inner.consumed += count
        del burst  # drop the elements: an error's traceback would keep them alive (§3.13)
        self._enter()
        if over:
            # Set ``done`` only after the last element was added to ``_waiting``. So, if ``done`` is
            # set and ``_waiting`` is empty, all elements of the publisher were expanded.
            inner.done = True
        if over or self._deep:
            self._enter_upward()

    def _inner_ended(self, inner: Inner, error: BaseException | None, /) -> None:
        if error is None:
            inner.done = True
            self._enter_upward()
        else:
            self._end_after(inner, error)

    def _end_after(self, inner: Inner, error: BaseException | None) -> None:
        """End the stream after all elements in ``_mail``. ``error=None`` means completion."""
        self._mail.append((inner, Ended(error)))
        self._enter()

    # -- calls to publishers -----------------------------------------------------------------------

    def _upward(self) -> bool:
        current = self._current
        if current is None:
            return False
        if current.done:
            self._inners.discard(current)
            current.forget()
            self._pending.return_unreceived(current)
        elif not self._deep:
            return self._pending.request_from(current)
        elif current.consumed < current.requested:  # the requested element has not arrived yet
            return False
        elif not self._waiting:
            return self._pending.request_from(current, 1)
        else:
            self._stack.append(current)
        self._current = self._next_inner(current)
        return True

    def _next_inner(self, current: Inner) -> Inner | None:
        """Return the inner subscriber that makes the next request; ``None`` at the stream's end."""
        stack, waiting, fn = self._stack, self._waiting, self._fn
        while stack and stack[-1].done:
            self._inners.discard(stack.pop())
        if waiting and fn is not None:
            try:
                publisher = publisher_from("expand", fn, waiting.popleft())
            except RecursionError:  # only a caller has room on the stack to report the error
                raise
            except Exception as raised:
                self._end_after(current, raised)
                return None
            return self._subscribe_to(publisher)
        if stack:
            return stack.pop()
        self._end_after(current, None)
        return None

    def _upward_is_due(self) -> bool:
        return False

    def _forget_upward(self) -> None:
        self._fn = self._current = None
        self._stack = []
        self._waiting = deque()
