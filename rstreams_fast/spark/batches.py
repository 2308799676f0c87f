"""``map_batches``: a function of whole Arrow batches, on a few threads or on a loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.core import CallWindow, SpscRing
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.calls import Resource, noted
from rstreams_fast.spark.frames import FrameMap
from rstreams_fast.spark.hold import Reading, describe_reading
from rstreams_fast.spark.loop import REPORT_SECONDS, LoopStage
from rstreams_fast.spark.options import (
    DEFAULT_BUFFER_BYTES,
    MOST_CALLS,
    check_positive_int,
    is_async,
)
from rstreams_fast.spark.partition import Partition
from rstreams_fast.spark.types import conform

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rstreams_fast.spark.figures import Figures

__all__ = ["MapBatches", "map_batches"]

DEFAULT_BATCH_CONCURRENCY: Final = 4
"""Batches that are worked on at once in one partition."""

OUTPUTS_AHEAD: Final = 2
"""Output batches that a call may be ahead of its turn to leave."""


def map_batches(
    fn: Callable[[pa.RecordBatch], Any],
    schema: str | StructType | pa.Schema,
    *,
    concurrency: int = DEFAULT_BATCH_CONCURRENCY,
    max_buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    figures: Figures | None = None,
) -> MapBatches:
    """Make a function from frame to frame of ``fn``, which is called for several Arrow batches at
    once.

    ``df.transform(map_batches(fn, "id long, score double", concurrency=4))``. ``fn`` gets a
    ``pyarrow.RecordBatch`` and returns one, a ``pyarrow.Table``, or an iterable of batches, which
    is run on the same thread and waits when it is too far ahead of its turn. It runs on up to
    ``concurrency`` threads; or it is ``async`` and returns a batch, a table or a list of batches.
    Outputs leave in the order of the inputs.

    ``schema``: of the output, as DDL, ``StructType`` or Arrow schema. Columns are matched by name
    and cast with checks; a mismatch names the column and the row.
    ``max_buffer_bytes``: bytes of input batches held per partition at work; one batch always
    passes.
    ``figures``: where live figures go, a :class:`Figures`; a batch counts as a call.
    """
    return MapBatches(fn, schema, concurrency, max_buffer_bytes, figures)


class MapBatches(FrameMap):
    """A function from frame to frame; see :func:`map_batches`. Immutable."""

    def __init__(
        self,
        fn: Callable[[pa.RecordBatch], Any],
        schema: Any,
        concurrency: int,
        max_buffer_bytes: int,
        figures: Figures | None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable, got {type(fn).__name__}")
        self.fn = fn
        self.concurrency = check_positive_int("concurrency", concurrency, MOST_CALLS)
        self.is_async = is_async(fn)
        super().__init__(fn, schema, max_buffer_bytes, figures)

    def work(self, schema: pa.Schema, partition: Partition, held: list[Any]) -> Iterator[Any]:
        """Return what ``fn`` makes of the batches, in their order."""
        partition.counters.concurrency = self.concurrency
        kind = _BatchesOnLoop if self.is_async else _BatchesOnThreads
        return kind(self, schema, partition).outputs(held)

    def describe(self) -> str:
        """Return what runs in a partition, and its bounds, for people."""
        how = threads = f"up to {self.concurrency} threads"
        results = f"  results: at most {OUTPUTS_AHEAD} batches of each call wait for their turn"
        if self.is_async:
            how, threads = "the loop", "a loop"
            results = f"  results: of at most {self.concurrency} calls"
        return "\n".join(
            [
                f"map_batches {self.label}, in each partition at work:",
                f"  calls: at most {self.concurrency} batches at once, on {how}, results in order",
                describe_reading(self.max_buffer_bytes),
                results,
                f"  threads: Spark's own, a reader, {threads}",
            ]
        )

    def __repr__(self) -> str:
        return f"<map_batches {self.label}>"


def _pieces(result: Any, schema: pa.Schema, label: str) -> Iterator[Any]:
    """Return the batches that a call gave, as declared; empty ones say nothing."""
    import pyarrow as pa

    if isinstance(result, pa.RecordBatch):
        result = (result,)
    elif isinstance(result, pa.Table):
        result = result.to_batches()
    elif (
        not isinstance(result, Iterable)
        or isinstance(result, str | bytes | Mapping)
        or hasattr(result, "columns")  # a DataFrame, which iterates over their names
    ):
        raise TypeError(
            f"{label} must return a RecordBatch, a Table or an iterable of RecordBatch, "
            f"got {type(result).__name__}"
        )
    for batch in result:
        piece = conform(batch, schema, label)
        if piece.num_rows:
            yield piece


def _name_of(first_row: int, rows: int) -> str:
    return f"the batch of rows {first_row} to {first_row + rows - 1} of the partition"


# -- a sync function: threads ----------------------------------------------------------------------


class _Job:
    """A batch in work. Its outputs come through a ring of its own, read when it is its turn."""

    def __init__(self, batch: Any, reading: Reading, first_row: int) -> None:
        self.batch = batch
        self.reading = reading
        self.first_row = first_row
        self.out = SpscRing(OUTPUTS_AHEAD)
        self.failure: BaseException | None = None
        """Why ``out`` was closed. Not raised by ``out`` itself: it may be a ``TimeoutError``."""


class _BatchesOnThreads:
    """The threads take turns to get a batch and announce its job: so jobs are in order."""

    def __init__(
        self,
        spec: MapBatches,
        schema: pa.Schema,
        partition: Partition,
    ) -> None:
        self._spec = spec
        self._schema = schema
        self._partition = partition
        self._reader = partition.reader
        self._counters = partition.counters
        self._writer = partition.writer
        self._turn = threading.Lock()
        self._jobs = SpscRing(spec.concurrency)
        self._next_row = 0
        self._workers = 0
        self._most_workers = spec.concurrency
        self._lock = threading.Lock()
        self._in_work: set[_Job] = set()
        self._closed = False
        self._failure: BaseException | None = None

    def outputs(self, first: list[Any]) -> Iterator[Any]:
        """Run the stage; ``first`` holds the first batch. For the main thread."""
        counters = self._counters
        with self._partition.at_work(first, self._close):
            self._add_worker()
            while (job := self._get(self._jobs)) is not None:
                while (piece := self._get(job.out)) is not None:
                    counters.rows_out += piece.num_rows
                    counters.batches_out += 1
                    begin = time.monotonic()
                    yield piece
                    piece = None
                    counters.waiting_downstream += time.monotonic() - begin
                    self._writer.write_if_due()
                if job.failure is not None:
                    raise job.failure
                self._partition.budget.give_back(job.reading)
            if (failure := self._failure or self._reader.error) is not None:
                raise failure

    def _get(self, ring: SpscRing) -> Any:
        """Return the next of ``ring``; ``None`` at its end."""
        wait = None if not self._writer.wanted else REPORT_SECONDS
        begin = time.monotonic()
        try:
            while True:
                try:
                    return ring.get(wait)
                except TimeoutError:
                    self._account(begin)
                    begin = time.monotonic()
                    self._writer.write_if_due()
        except RingClosed:
            return None
        finally:
            self._account(begin)

    def _account(self, begin: float) -> None:
        counters = self._counters
        waited = time.monotonic() - begin
        if counters.running:
            counters.waiting_function += waited
        else:
            counters.waiting_upstream += waited

    def _close(self) -> None:
        self._jobs.close()
        with self._lock:
            self._closed = True
            jobs = list(self._in_work)
        for job in jobs:
            job.out.close()

    def _add_worker(self) -> None:
        try:
            self._partition.crew.start(self._work, f"batches-{self._workers + 1}")
        except RuntimeError:  # no more threads to be had: those that run will do
            if not self._workers:
                raise
            self._most_workers = self._workers
        else:
            self._workers += 1

    def _work(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                self._do(job)
                del job
        except RingClosed:
            pass  # the stage was closed
        except BaseException as raised:  # no memory for a job, say, and its batch is taken already
            self._failure = raised
            self._jobs.close()

    def _next_job(self) -> _Job | None:
        """Take the turn, get a batch, announce its job; ``None`` at the end."""
        with self._turn:
            try:
                batch, reading = self._reader.ring.get()
            except RingClosed:
                self._jobs.close()
                return None
            job = _Job(batch, reading, self._next_row)
            self._next_row += batch.num_rows
            counters = self._counters
            with self._lock:
                if self._closed:
                    return None
                self._in_work.add(job)
                counters.calls += 1
                counters.running += 1
                counters.max_running = max(counters.max_running, counters.running)
            if self._workers < self._most_workers:
                self._add_worker()
            self._jobs.put(job)
            return job

    def _do(self, job: _Job) -> None:
        spec, batch = self._spec, job.batch
        job.batch = None
        rows = batch.num_rows
        failure: BaseException | None = None
        try:
            result = spec.fn(batch)
            del batch
            for piece in _pieces(result, self._schema, spec.label):
                job.out.put(piece)
        except RingClosed as closed:
            if not self._closed:
                failure = closed
        except StopIteration as stopped:  # which would end the main thread's generator
            failure = RuntimeError(f"{spec.label} raised StopIteration")
            failure.__cause__ = stopped
        except BaseException as raised:
            failure = raised
        if failure is not None:
            where = _name_of(job.first_row, rows)
            job.failure = noted(failure, f"raised by {spec.label} for {where}")
        with self._lock:
            self._counters.running -= 1
            self._in_work.discard(job)
        job.out.close()


# -- an async function: the loop -------------------------------------------------------------------


class _BatchesOnLoop(LoopStage):
    """A window of calls whose items are batches."""

    def __init__(
        self,
        spec: MapBatches,
        schema: pa.Schema,
        partition: Partition,
    ) -> None:
        super().__init__(partition)
        self._spec = spec
        self._schema = schema
        self._next_row = 0

    def resource(self) -> Resource | None:
        return None

    def make_window(self, _opened: tuple[Any, ...], /) -> CallWindow:
        spec, schema = self._spec, self._schema

        async def call(job: _Item) -> tuple[list[Any], Reading]:
            batch, job.batch = job.batch, None
            result = await spec.fn(batch)
            return list(_pieces(result, schema, spec.label)), job.reading

        return CallWindow(
            call,
            loop=self.loop,
            on_ready=self.pump,
            concurrency=spec.concurrency,
            capacity=spec.concurrency,
        )

    def has_calls_to_make(self) -> bool:
        return False

    def submit(self, window: CallWindow) -> int:
        if window.pending >= window.capacity:
            return 0
        entry = self.pull()
        if entry is None:
            return 0
        batch, reading = entry
        item = _Item(batch, reading, self._next_row)
        self._next_row += batch.num_rows
        return window.submit_many([item])

    def collect(self, results: list[Any]) -> None:
        for pieces, reading in results:
            if not pieces:
                self.budget.give_back(reading)
            last = len(pieces) - 1
            for index, piece in enumerate(pieces):
                self.emitted.append((piece, piece.num_rows, reading if index == last else None))

    def holds_results(self) -> bool:
        return False

    def flush(self) -> None:
        pass  # nothing is kept back

    def check_end(self) -> None:
        pass  # a call may give any number of rows

    def name_of(self, item: Any) -> str:
        return _name_of(item.first_row, item.reading.rows)


class _Item:
    __slots__ = ("batch", "first_row", "reading")

    def __init__(self, batch: Any, reading: Reading, first_row: int) -> None:
        self.batch = batch
        self.reading = reading
        self.first_row = first_row
