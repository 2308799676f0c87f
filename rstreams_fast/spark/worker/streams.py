"""Runs ``stage`` in one partition: passes the input batches through the user's stream."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast import Stream, from_publisher
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import AlreadySubscribedError, RingClosed
from rstreams_fast.spark.worker.partition import Partition
from rstreams_fast.spark.worker.values.conversions import conform

if TYPE_CHECKING:
    import pyarrow as pa

    from rstreams_fast.api import Subscriber

__all__ = ["BATCHES_AHEAD", "built_stream", "run_stream"]

BATCHES_AHEAD: Final = 2
"""How many output batches are requested from the user's stream before Spark needs them."""

BUDGET_PATIENCE_SECONDS: Final = 1.0
"""If the byte budget has no room, and no bytes are released for this many seconds, the user's
stream gets one more batch: it may need this batch before it can release the others."""

Build = Callable[[Stream[Any]], Stream[Any]]


def run_stream(
    build: Build, label: str, schema: pa.Schema, partition: Partition, first: list[Any]
) -> Iterator[Any]:
    """Yield the output batches: the elements of the stream that ``build`` makes.

    ``first``: a list with the first input batch. The read-ahead thread empties it, to save memory.
    """
    counters = partition.counters
    partition.read_ahead.patience = BUDGET_PATIENCE_SECONDS
    partition.threads.on_failure = partition.read_ahead.fail
    source = _BatchPublisher(partition)
    before = threading.enumerate()

    def stop() -> None:
        source.cancel()
        # ``cancel`` does not wait for the threads that the user's stream has started. Add these
        # threads to the partition, which waits for them.
        partition.threads.adopt_streams(before)

    with partition.running(first, stop):
        stream = built_stream(build, from_publisher(source), label)
        with stream.iterate(prefetch=BATCHES_AHEAD) as batches:
            begin = time.monotonic()
            for batch in batches:
                piece = conform(batch, schema, label)
                del batch
                now = time.monotonic()
                counters.waiting_function += max(0.0, now - begin - source.take_waited())
                counters.emit(piece.num_rows)
                partition.writer.write_if_due()
                if piece.num_rows:
                    yield piece
                del piece
                begin = time.monotonic()
                counters.waiting_downstream += begin - now


def built_stream(build: Build, batches: Stream[Any], label: str) -> Stream[Any]:
    """Return ``build(batches)``, the user's stream. Raises ``TypeError`` if it is no ``Stream``."""
    built = build(batches)
    if not isinstance(built, Stream):
        raise TypeError(f"build: {label} must return a Stream, got {type(built).__name__}")
    return built


class _BatchPublisher:
    """Publishes the input batches of the partition to one subscriber, on a thread of its own.

    Each batch is delivered as soon as it is read and requested. A stream over an iterable would
    collect several batches before it delivers them, even if Spark sends no batch for a long time.
    The byte budget, which limits the memory for batches, counts a batch until it is deleted.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._demand = DemandCounter()
        self._changed = threading.Condition()
        self._subscribed = False
        self._refused: Exception | None = None
        self._waited = 0.0

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Publish the batches to ``subscriber``. A second subscriber is refused by an error."""
        if self._subscribed:
            raise AlreadySubscribedError("the batches of a partition can be read once")
        self._subscribed = True
        subscriber.on_subscribe(self)

        def serve() -> None:
            try:
                self._serve(subscriber)
            except BaseException as raised:
                # Signal on_error. Without a terminal signal the user's stream would wait for ever.
                self._end(subscriber, raised)

        self._partition.threads.start(serve, "source")

    def request(self, n: int, /) -> None:
        with self._changed:
            try:
                self._demand.request(n)
            except (TypeError, ValueError) as refused:
                self._refused = refused
            self._changed.notify()

    def cancel(self) -> None:
        self._partition.read_ahead.cancel()
        with self._changed:
            self._demand.cancel()
            self._changed.notify()

    def take_waited(self) -> float:
        """Return the seconds of waiting for input batches since the last call of this method."""
        with self._changed:
            waited, self._waited = self._waited, 0.0
        return waited

    def _serve(self, subscriber: Subscriber[Any]) -> None:
        try:
            while self._may_deliver():
                subscriber.on_next(self._take())
        except RingClosed:
            pass
        self._end(subscriber, self._refused or self._partition.read_ahead.error)

    def _end(self, subscriber: Subscriber[Any], failure: BaseException | None) -> None:
        if not self._demand.terminate():
            return  # the subscription is cancelled, or a terminal signal was sent already
        if failure is not None:
            subscriber.on_error(failure)
        else:
            subscriber.on_complete()

    def _may_deliver(self) -> bool:
        """Wait for demand, and reduce it by 1. Return ``False`` after a cancel or a bad request."""
        with self._changed:
            while not self._demand.value and self._refused is None:
                self._changed.wait()
            if self._refused is not None or self._demand.value < 0:
                return False
            self._demand.fulfil(1)
            return True

    def _take(self) -> Any:
        begin = time.monotonic()
        batch, lease = self._partition.read_ahead.ring.get()
        with self._changed:
            waited = time.monotonic() - begin
            self._waited += waited
            self._partition.counters.waiting_upstream += waited
        weakref.finalize(batch, self._partition.budget.release, lease).atexit = False
        return batch
