"""``on_discard``: calls a hook for each element that the operators above drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import describe_callable
from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.relay import Relay
from rstreams_fast.streams.engine.signals import interrupts
from rstreams_fast.streams.engine.trampoline import OperatorPublisher

__all__ = ["OnDiscard"]


class OnDiscard(Boundary):
    one_to_one = True

    def __init__(self, hook: Callable[[Any], object]) -> None:
        self.hook = hook

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(upstream, _DiscardSubscription, self.hook)

    def describe(self) -> str:
        return f"on_discard({describe_callable(self.hook)}): holds no elements"


class _DiscardSubscription(Relay):
    """Passes every signal on, and calls the hook of ``on_discard`` for each dropped element.

    The ``Custody`` in ``_own`` records the elements that are not delivered yet. It calls the hook
    when an operator above drops an element. At the end it calls the hook for all elements that are
    still recorded.
    """

    __slots__ = ("_below", "_own")

    def __init__(self, subscriber: Subscriber[Any], hook: Callable[[Any], object]) -> None:
        super().__init__(subscriber)
        self._below = self.custody
        self.custody = self._own = Custody(hook)

    def on_next(self, element: Any, /) -> None:
        subscriber, subscription = self._subscriber, self._subscription
        if subscriber is not None and (held := self._own.claim(element)) is not None:
            if self._below is not None and held:
                self._below.enter(element)
            on_next = subscriber.on_next
            try:
                self._or_close(on_next, element)
            except Exception as raised:
                if interrupts(raised, on_next):
                    raise
                if subscription is not None:
                    subscription.cancel()
                report_dropped(raised, "§2.13: on_next raised")

    def request(self, n: int, /) -> None:
        subscription = self._subscription
        if subscription is not None:
            self._or_close(subscription.request, n)

    def cancel(self) -> None:
        subscription = self._subscription
        self._release()
        try:
            if subscription is not None:
                subscription.cancel()
        finally:
            self._over()

    def _over(self) -> None:
        self._own.close()

    def _or_close(self, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except RecursionError:
            # The stack is full. Only an outer caller has room on the stack to report the error.
            raise
        except BaseException:
            self.dropped()
            raise
