"""``stage``: any stream over Arrow batches, inside a Spark worker."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import AlreadySubscribed, RingClosed
from rstreams_fast.spark.frames import FrameMap
from rstreams_fast.spark.hold import describe_reading
from rstreams_fast.spark.options import DEFAULT_BUFFER_BYTES
from rstreams_fast.spark.partition import Partition
from rstreams_fast.spark.types import conform

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rstreams_fast.api import Subscriber
    from rstreams_fast.spark.figures import Figures
    from rstreams_fast.streams.stream import Stream

__all__ = ["Stage", "stage"]

BATCHES_AHEAD: Final = 2
"""Output batches asked for before the last one has left."""

PATIENCE_SECONDS: Final = 1.0
"""How long a stream that keeps all it was given waits for more than the byte budget."""


def stage(
    build: Callable[[Stream[Any]], Stream[Any]],
    schema: str | StructType | pa.Schema,
    *,
    max_buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    figures: Figures | None = None,
) -> Stage:
    """Make a function from frame to frame of a stream: ``stage(lambda batches:
    batches.map(f).publish_on().map(g), schema)``.

    ``build`` is called once per partition, gets the ``Stream`` of its ``pyarrow.RecordBatch``
    objects and returns the stream of the output's. A stream that ends early (``take``) ends the
    partition.

    ``schema``: of the output, as in :func:`map_batches`.
    ``max_buffer_bytes``: bytes of input batches that are alive, read ahead or in the stream. What
    the stages make of them is theirs to bound, by the prefetch of each boundary. A stream that
    keeps batches (``batch``, ``reduce``) is given one more, beyond the bound, when nothing was let
    go of for a second.
    """
    return Stage(build, schema, max_buffer_bytes, figures)


class Stage(FrameMap):
    """A function from frame to frame; see :func:`stage`. Immutable."""

    def __init__(
        self,
        build: Callable[[Stream[Any]], Stream[Any]],
        schema: Any,
        max_buffer_bytes: int,
        figures: Figures | None,
    ) -> None:
        if not callable(build):
            raise TypeError(f"build must be callable, got {type(build).__name__}")
        self.build = build
        super().__init__(build, schema, max_buffer_bytes, figures)

    def work(self, schema: pa.Schema, partition: Partition, held: list[Any]) -> Iterator[Any]:
        """Yield what the stream makes of the batches."""
        from rstreams_fast import from_publisher

        counters = partition.counters
        partition.reader.patience = PATIENCE_SECONDS
        source = _Source(partition)
        before = threading.enumerate()

        def stop() -> None:
            source.cancel()
            # The stream was cancelled, which does not wait for what its threads are about.
            partition.crew.adopt_streams(before)

        with partition.at_work(held, stop):
            stream = _check_stream(self.build(from_publisher(source)), self.label)
            with stream.iterate(prefetch=BATCHES_AHEAD) as batches:
                begin = time.monotonic()
                for batch in batches:
                    piece = conform(batch, schema, self.label)
                    del batch
                    now = time.monotonic()
                    counters.waiting_function += max(0.0, now - begin - source.take_waited())
                    counters.rows_out += piece.num_rows
                    counters.batches_out += 1
                    partition.writer.write_if_due()
                    if piece.num_rows:
                        yield piece
                    del piece
                    begin = time.monotonic()
                    counters.waiting_downstream += begin - now

    def describe(self) -> str:
        """Return what runs in a partition, and its bounds, for people."""
        from rstreams_fast import empty

        built = _check_stream(self.build(empty()), self.label)
        return "\n".join(
            [
                f"stage {self.label}, in each partition at work:",
                describe_reading(self.max_buffer_bytes),
                *(f"  {line}" for line in built.describe().splitlines()),
                f"  results: {BATCHES_AHEAD} batches asked for ahead",
                "  threads: Spark's own, a reader, a source, and those of the stream",
            ]
        )

    def __repr__(self) -> str:
        return f"<stage {self.label}>"


def _check_stream(built: Any, label: str) -> Stream[Any]:
    from rstreams_fast import Stream

    if not isinstance(built, Stream):
        raise TypeError(f"build: {label} must return a Stream, got {type(built).__name__}")
    return built


class _Source:
    """The publisher of the batches that were read; its subscriber is served by one thread.

    It pushes: a source that a stream pulls would block in the middle of a burst while upstream
    says nothing, and keep back what the burst has given already. A batch is given back to the
    budget when nothing refers to it any more.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._demand = DemandCounter()
        self._changed = threading.Condition()
        self._subscribed = False
        self._refused: Exception | None = None
        self._waited = 0.0

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Serve ``subscriber``, the only one there is."""
        if self._subscribed:
            raise AlreadySubscribed("the batches of a partition can be read once")
        self._subscribed = True
        subscriber.on_subscribe(self)
        self._partition.crew.start(lambda: self._serve(subscriber), "source")

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more batches (§3.9)."""
        with self._changed:
            try:
                self._demand.request(n)
            except (TypeError, ValueError) as refused:
                self._refused = refused
            self._changed.notify()

    def cancel(self) -> None:
        """Ask for none any more; never blocks."""
        self._partition.reader.cancel()
        with self._changed:
            self._demand.cancel()
            self._changed.notify()

    def take_waited(self) -> float:
        """Return the seconds spent waiting for upstream since the last time that was asked."""
        with self._changed:
            waited, self._waited = self._waited, 0.0
        return waited

    def _serve(self, subscriber: Subscriber[Any]) -> None:
        try:
            while self._may_deliver():
                subscriber.on_next(self._take())
        except RingClosed:
            pass
        if self._demand.cancelled:
            return
        failure = self._refused or self._partition.reader.error
        self._demand.terminate()
        if failure is not None:
            subscriber.on_error(failure)
        else:
            subscriber.on_complete()

    def _may_deliver(self) -> bool:
        """Wait for demand, and take one off; ``False`` when there is nothing to wait for."""
        with self._changed:
            while not self._demand.value and self._refused is None:
                self._changed.wait()
            if self._refused is not None or self._demand.value < 0:
                return False
            self._demand.fulfil(1)
            return True

    def _take(self) -> Any:
        begin = time.monotonic()
        batch, reading = self._partition.reader.ring.get()
        with self._changed:
            waited = time.monotonic() - begin
            self._waited += waited
            self._partition.counters.waiting_upstream += waited
        weakref.finalize(batch, self._partition.budget.give_back, reading).atexit = False
        return batch
