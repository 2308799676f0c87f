"""Sinks that are ``Subscriber`` classes: each partition has a subscriber for its Arrow batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rstreams_fast import Stream, create
from rstreams_fast.calls.functions import label_of, unwrap
from rstreams_fast.spark.frames import MapFunction
from rstreams_fast.spark.sinks.report import PartitionCounts, counts_struct
from rstreams_fast.spark.sinks.sink import Frame, Sink, SinkOptions
from rstreams_fast.spark.stream_stage import stage

if TYPE_CHECKING:
    import pyarrow as pa

    from rstreams_fast.api import Subscriber, Subscription

__all__ = ["SubscriberSink", "makes_subscribers"]

_SIGNALS = ("on_subscribe", "on_next", "on_error", "on_complete")


def makes_subscribers(sink: object) -> bool:
    """Whether ``sink`` is a class of subscribers, or a ``partial`` of such a class."""
    made = unwrap(sink)
    return isinstance(made, type) and all(hasattr(made, name) for name in _SIGNALS)


class SubscriberSink(Sink):
    """A sink that makes one subscriber per partition with ``factory``, and sends it the batches."""

    def __init__(
        self, factory: Callable[[], Subscriber[pa.RecordBatch]], options: SinkOptions
    ) -> None:
        self._factory = factory
        self._options = options
        options.refuse(
            f"the subscriber {label_of(factory)}",
            *("key", "using", "concurrency", "batch", "dead_letters"),
        )

    def drain(self, frame: Frame) -> MapFunction:  # noqa: ARG002
        options = self._options
        subscriber_stage = stage(
            _StreamBuilder(self._factory),
            counts_struct(),
            bounds=options.bounds,
            metrics=options.metrics,
        )
        return subscriber_stage.as_map_fn()


class _StreamBuilder:
    """Makes the stream of a partition. It writes all batches, then has one element: the counts."""

    def __init__(self, factory: Callable[[], Subscriber[pa.RecordBatch]]) -> None:
        self._factory = factory
        self.__qualname__ = label_of(factory)

    def __call__(self, batches: Stream[pa.RecordBatch]) -> Stream[pa.RecordBatch]:
        def start(end: Any) -> None:
            batches.subscribe(_CountingSubscriber(self._factory(), end, self.__qualname__))

        return create(start)


class _CountingSubscriber:
    """Passes signals to the user's subscriber, and counts the batches.

    ``end``, the emitter of the output stream, gets the counts or the error at the end.
    """

    def __init__(self, subscriber: Subscriber[pa.RecordBatch], end: Any, label: str) -> None:
        self._subscriber = subscriber
        self._end = end
        self._label = label
        self._counts = PartitionCounts()
        self._upstream: Subscription | None = None

    def on_subscribe(self, subscription: Subscription, /) -> None:
        self._upstream = subscription
        self._end.on_cancel(subscription.cancel)
        self._signal(
            self._subscriber.on_subscribe, _UserSubscription(subscription, self._on_early_cancel)
        )

    def on_next(self, batch: pa.RecordBatch, /) -> None:
        counts = self._counts
        counts.rows += batch.num_rows
        counts.bytes += batch.nbytes
        counts.calls += 1
        self._signal(self._subscriber.on_next, batch)

    def on_error(self, error: BaseException, /) -> None:
        self._signal(self._subscriber.on_error, error)
        self._end.error(error)

    def on_complete(self) -> None:
        if self._signal(self._subscriber.on_complete):
            # Only the subscriber of ``sinks.postgres`` has a token.
            self._counts.token = getattr(self._subscriber, "token", "")
            self._end.next(self._counts.batch())
            self._end.complete()

    def _signal(self, method: Callable[..., object], *args: Any) -> bool:
        """Call a method of the user's subscriber. If it raises an error, fail the partition."""
        try:
            method(*args)
        except BaseException as raised:
            self._end.error(raised)
            return False
        return True

    def _on_early_cancel(self) -> None:
        early = f"{self._label} cancelled its subscription before all rows were written"
        self._end.error(RuntimeError(early))


class _UserSubscription:
    """The subscription of the user's subscriber. ``cancel`` before the end fails the partition."""

    def __init__(self, subscription: Subscription, on_cancel: Callable[[], object]) -> None:
        self._subscription = subscription
        self._on_cancel = on_cancel

    def request(self, n: int, /) -> None:
        self._subscription.request(n)

    def cancel(self) -> None:
        self._on_cancel()
