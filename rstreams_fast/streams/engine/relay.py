"""The base class for operators that pass every signal on, and hold no elements."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Subscriber, Subscription
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.chain import Link, drop, take_over_attributes
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, metrics_above
from rstreams_fast.streams.engine.signals import interrupts, report_late, silent

__all__ = ["Relay"]


class Relay(Link):
    """Subscribes to upstream, and is the subscription of downstream. Holds no elements.

    Passes on ``on_subscribe``, ``on_error`` and ``on_complete``. Subclasses add ``on_next``,
    ``request`` and ``cancel``. Signals are not checked, because upstream belongs to this package
    and keeps the rules of Reactive Streams. ``_over`` is called at the end of the stream, perhaps
    more than once, so that a subclass can clean up. ``cancel`` does not lead to a call of
    ``_over``, so a subclass's ``cancel`` must clean up itself.
    """

    __slots__ = ("_subscriber", "_subscription")

    def __init__(self, subscriber: Subscriber[Any]) -> None:
        take_over_attributes(self, subscriber)
        self._subscriber: Subscriber[Any] | None = subscriber
        self._subscription: Subscription | None = None

    def on_subscribe(self, subscription: Subscription, /) -> None:
        self._subscription = subscription
        subscriber = self._subscriber
        if subscriber is not None:
            try:
                subscriber.on_subscribe(self)
            except BaseException as raised:
                self.dropped()
                if interrupts(raised, subscriber.on_subscribe):
                    raise
                subscription.cancel()
                report_dropped(raised, "§2.13: on_subscribe raised")

    def on_error(self, error: BaseException, /) -> None:
        subscriber = self._release()
        try:
            if subscriber is not None:
                silent(subscriber.on_error, error)
            else:  # the subscriber has cancelled: report the error to ``on_dropped_error``
                report_late(error)
        finally:
            self._over()

    def on_complete(self) -> None:
        subscriber = self._release()
        try:
            if subscriber is not None:
                silent(subscriber.on_complete)
        finally:
            self._over()

    def request(self, n: int, /) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def dropped(self) -> None:
        """Clean up after a cancel or exception. Also call ``dropped`` of the subscriber below."""
        try:
            drop(self._release())
        finally:
            self._over()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return metrics_above(self._subscription)

    def _over(self) -> None:
        """Clean up at the end of the stream. By default, there is nothing to do."""

    def _release(self) -> Subscriber[Any] | None:
        """Drop the references to upstream and to the subscriber (§3.13). Return the subscriber."""
        subscriber, self._subscriber = self._subscriber, None
        self._subscription = None
        return subscriber
