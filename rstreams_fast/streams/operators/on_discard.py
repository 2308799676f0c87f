"""``on_discard``: calls a hook for each element that the operators above drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import describe_callable
from rstreams_fast.api import Publisher, Subscriber, Subscription
from rstreams_fast.runtime.executors import Trampoline
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.chain import drop, stand_on
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, metrics_above
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.signals import report_late
from rstreams_fast.streams.engine.trampoline import Below

__all__ = ["OnDiscard"]


class OnDiscard(Boundary):
    """The boundary of ``Stream.on_discard``. Its constructor checks the arguments."""

    one_to_one = True

    def __init__(self, hook: Callable[[Any], object]) -> None:
        self.hook = hook

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, _DiscardSubscription, self.hook)

    def describe(self) -> str:
        return f"on_discard({describe_callable(self.hook)}): holds no elements"


class _DiscardSubscription:
    """Passes every signal on, without checks: upstream is internal, and keeps the rules."""

    __slots__ = (
        "__weakref__",
        "_below",
        "_own",
        "_subscriber",
        "_subscription",
        "custody",
        "depth",
        "trampoline",
        "turns",
    )

    __reduce__ = not_picklable

    custody: Custody | None
    depth: int
    trampoline: Trampoline | None
    turns: Turns | None

    def __init__(self, subscriber: Subscriber[Any], hook: Callable[[Any], object]) -> None:
        stand_on(self, subscriber)
        self._below = self.custody
        self.custody = self._own = Custody(hook)
        self._subscriber: Subscriber[Any] | None = subscriber
        self._subscription: Subscription | None = None

    def on_subscribe(self, subscription: Subscription, /) -> None:
        self._subscription = subscription
        subscriber = self._subscriber
        if subscriber is not None:
            self._or_close(subscriber.on_subscribe, self)

    def on_next(self, element: Any, /) -> None:
        subscriber = self._subscriber
        if subscriber is not None and self._own.claim(element):
            if self._below is not None:
                self._below.enter(element)
            self._or_close(subscriber.on_next, element)

    def on_error(self, error: BaseException, /) -> None:
        subscriber = self._release()
        try:
            if subscriber is not None:
                subscriber.on_error(error)
            else:  # the subscriber has just cancelled: report the error
                report_late(error)
        finally:
            self._own.close()

    def on_complete(self) -> None:
        subscriber = self._release()
        try:
            if subscriber is not None:
                subscriber.on_complete()
        finally:
            self._own.close()

    def request(self, n: int, /) -> None:
        subscription = self._subscription
        if subscription is not None:
            self._or_close(subscription.request, n)

    def cancel(self) -> None:
        subscription = self._subscription
        self._release()
        if subscription is not None:
            subscription.cancel()
        self._own.close()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return metrics_above(self._subscription)

    def dropped(self) -> None:
        subscriber = self._release()
        self._own.close()
        drop(subscriber)

    def _or_close(self, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except RecursionError:  # the RecursionError goes to a caller with room on the stack
            raise
        except BaseException:
            self.dropped()
            raise

    def _release(self) -> Subscriber[Any] | None:
        subscriber, self._subscriber = self._subscriber, None
        self._subscription = None
        return subscriber
