"""``map_batches``: a function of whole Arrow batches, on a few threads or on a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.spark.failures import outcome_struct
from rstreams_fast.spark.frames import (
    FrameMap,
    check_intervals,
    describe_read_ahead,
    describe_words,
)
from rstreams_fast.spark.limits import Limit
from rstreams_fast.spark.options import (
    DEFAULT_BUFFER_BYTES,
    CallOptions,
    Circuit,
    Retry,
    check_positive_int,
)
from rstreams_fast.spark.worker.batches import OUTPUTS_AHEAD, leaves_as_it_comes, run_batches
from rstreams_fast.spark.worker.outcomes import OUTCOME
from rstreams_fast.spark.worker.partition import Partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from rstreams_fast.spark.metrics import Metrics

__all__ = ["MapBatches", "map_batches"]

DEFAULT_BATCH_CONCURRENCY: Final = 4
"""Batches that are worked on at once in one partition."""


def map_batches(
    fn: Callable[[pa.RecordBatch], Any],
    schema: str | StructType | pa.Schema,
    *,
    using: Callable[[], Any] | None = None,
    concurrency: int = DEFAULT_BATCH_CONCURRENCY,
    timeout: float | None = None,
    retry: Retry | None = None,
    on_failure: str = "raise",
    max_buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    metrics: Metrics | None = None,
    limit: Limit | None = None,
    circuit: Circuit | None = None,
    deadline: float | None = None,
    task_deadline: float | None = None,
    max_failures: float | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> MapBatches:
    """Make a function from frame to frame of ``fn``, which is called for several Arrow batches at
    once.

    ``df.transform(map_batches(fn, "id long, score double", concurrency=4))``. ``fn`` gets a
    ``pyarrow.RecordBatch`` and returns rows: a batch, a ``pyarrow.Table``, a pandas frame, a
    structured array of numpy, or a list of dicts; or an iterable of such, which is run on the same
    thread and waits when it is too far ahead of its turn. It runs on up to ``concurrency`` threads;
    or it is ``async`` and returns rows or a list of such. Outputs leave in the order of the inputs.

    ``schema``: of the output, as DDL, ``StructType`` or Arrow schema. Columns are matched by name
    and cast with checks; a mismatch names the column and the row.
    ``using``: a factory of a context manager, opened once per partition, or a :class:`PerWorker`;
    what it gives is passed to ``fn`` first. An async one takes an ``async`` function.
    ``timeout``: seconds for one attempt of an async ``fn``, then ``TimeoutError``.
    ``retry``: a :class:`Retry`; default: one attempt.
    ``on_failure``: ``"raise"``: the exception is the task's; ``"drop"``: the call gives no rows;
    ``"column"``: it gives a row for each of its batch, with nulls and a last column ``outcome``: a
    struct of ``error`` (``type``, ``message``), ``attempts``, ``seconds`` and ``input``, the row
    that ``fn`` was given. ``error`` and ``input`` are null beside what other calls gave.
    :func:`split_failures` takes the two apart. Failures are counted in the metrics.
    ``max_failures``: as in :func:`lookup`, of calls.
    ``max_buffer_bytes``: bytes of input batches held per partition at work; one batch always
    passes.
    ``metrics``: where live metrics go, a :class:`Metrics`; a batch counts as a call.
    ``limit``: a :class:`Limit` of calls at once and a second, which all tasks share.
    ``circuit``, ``deadline``, ``task_deadline``, ``loop_factory``: as in :func:`lookup`; a batch is
    a row, and a ``deadline`` takes an async ``fn``.

    With ``retry``, ``limit``, ``circuit``, ``task_deadline`` or another ``on_failure`` the output
    of a call is whole before any of it leaves.
    """
    check_positive_int("concurrency", concurrency)
    # A call is pending from its start until its batches leave: the window is the concurrency.
    options = CallOptions(
        fn,
        using,
        concurrency,
        max_pending_rows=concurrency,
        timeout=timeout,
        retry=retry,
        on_failure=on_failure,
        on_failures=("raise", "drop", "column"),
        max_buffer_bytes=max_buffer_bytes,
        metrics=metrics,
        limit=limit,
        circuit=circuit,
        deadline=deadline,
        task_deadline=task_deadline,
        max_failures=max_failures,
        loop_factory=loop_factory,
    )
    return MapBatches(options, schema)


class MapBatches(FrameMap):
    """A function from frame to frame; see :func:`map_batches`. Immutable."""

    def work(self, schema: pa.Schema, partition: Partition, held: list[Any]) -> Iterator[Any]:
        """Return what ``fn`` makes of the batches, in their order."""
        return run_batches(self.options, schema, partition, held)

    def output_of(self, frame: DataFrame, declared: StructType) -> StructType:
        """Return the declared schema; with ``on_failure="column"`` it tells of the calls."""
        if self.options.on_failure != "column":
            return declared
        from pyspark.sql.types import StructField, StructType

        if OUTCOME in map(str.lower, declared.names):
            raise ValueError(f"schema: {OUTCOME!r} is the column that on_failure='column' adds")
        check_intervals(frame)
        columns = [StructField(f.name, f.dataType, True, f.metadata) for f in declared.fields]
        outcome = StructField(OUTCOME, outcome_struct(inputs=frame.schema))
        return StructType([*columns, outcome])

    def describe(self) -> str:
        """Return what runs in a partition, and its bounds, for people."""
        options = self.options
        how = f"up to {options.concurrency} threads"
        threads = ["Spark's own", "a reader", how]
        results = f"  results: of at most {options.concurrency} calls"
        if leaves_as_it_comes(options):
            results = f"  results: at most {OUTPUTS_AHEAD} batches of each call wait for their turn"
        elif options.is_async:
            how, threads[2] = "the loop", "a loop"
        else:
            threads.insert(2, "a loop")
        return "\n".join(
            [
                f"map_batches {options.label}, in each partition at work:",
                f"  calls: at most {options.concurrency} batches at once, on {how}, in order",
                describe_read_ahead(options),
                results,
                f"  threads: {', '.join(threads)}",
                *describe_words(options),
            ]
        )

    def __repr__(self) -> str:
        return f"<map_batches {self.options.label}>"
