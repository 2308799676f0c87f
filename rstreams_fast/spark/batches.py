"""``map_batches``: calls a function with whole Arrow batches, on threads or on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.calls.functions import check_positive_int
from rstreams_fast.spark.failures import outcome_struct
from rstreams_fast.spark.frames import (
    Description,
    FrameMap,
    check_intervals,
    describe_policy,
    describe_read_ahead,
)
from rstreams_fast.spark.options import Bounds, Failures, options_of
from rstreams_fast.spark.worker.batches import OUTPUTS_AHEAD, can_emit_before_end, run_batches
from rstreams_fast.spark.worker.outcomes import OUTCOME
from rstreams_fast.spark.worker.partition import Partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from rstreams_fast.spark.metrics import Metrics

__all__ = ["MapBatches", "map_batches"]

DEFAULT_BATCH_CONCURRENCY: Final = 4
"""The default ``concurrency`` of ``map_batches``: the maximum of concurrent calls per partition."""


def map_batches(
    fn: Callable[[pa.RecordBatch], Any],
    schema: str | StructType | pa.Schema,
    *,
    using: Callable[[], Any] | None = None,
    concurrency: int = DEFAULT_BATCH_CONCURRENCY,
    on_failure: str | Failures = "raise",
    bounds: Bounds | None = None,
    metrics: Metrics | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> MapBatches:
    """Make a function for ``DataFrame.transform`` that calls ``fn`` with several batches at once.

    The outputs have the order of the input batches. By default Spark may get the first outputs of a
    call while the call is still running. Spark gets outputs only after the call has ended if ``fn``
    is ``async``, if ``on_failure`` is not ``"raise"``, with ``Bounds(seconds=...)``, or if the
    ``Policy`` of ``fn`` has ``retry``, ``limit``, ``circuit``, ``budget``, ``cache`` or
    ``journal``.

    ```python
    import pyarrow as pa
    import rstreams_fast.spark as rs


    def lengths(batch):
        tailnums = batch.column("tailnum").to_pylist()
        return [{"tailnum": each, "length": len(each)} for each in tailnums if each]


    mapped = flights.transform(rs.map_batches(lengths, "tailnum string, length int", concurrency=4))
    print(mapped.first())  # Row(tailnum='N14228', length=6)
    ```

    Args:
        fn: Gets a ``pyarrow.RecordBatch`` and returns rows: a batch, a ``pyarrow.Table``, a pandas
            frame, a structured array of numpy, or a list of dicts. A plain function runs on up to
            ``concurrency`` threads. It may also return an iterable of such rows. The thread of the
            call iterates it, and pauses while its outputs wait for the outputs of earlier batches.
            An ``async`` function returns rows, or a list of such rows.
        schema: The schema of the output, as DDL, ``StructType`` or Arrow schema. Columns are
            matched by name and cast with checks; the error for a mismatch names the column and the
            row.
        using: A factory of a context manager, opened once per partition, or a ``PerWorker``. ``fn``
            gets the value of the context manager as its first argument. An async context manager
            needs an ``async`` function.
        concurrency: The maximum of concurrent calls per running partition.
        on_failure: With ``"raise"`` the exception of a call fails the task. With ``"drop"`` a
            failed call gives no rows. With ``"column"`` a failed call gives one row, with nulls,
            for each row of its input batch, and all rows have a last column ``outcome``: a struct
            of ``error`` (``type``, ``message``), ``attempts``, ``seconds`` and ``input``, the row
            that ``fn`` was given. ``error`` and ``input`` are null in the rows of successful calls.
            If the policy counts units, ``outcome`` also has ``usage``, as in ``lookup``: the amount
            of the call is divided equally among its output rows. ``split_failures`` separates the
            rows of failed calls. The metrics count failures. ``Failures`` bounds how many calls may
            fail.
        bounds: A ``Bounds`` of bytes and seconds for each running partition.
        metrics: The ``Metrics`` that receive live counts; a batch counts as a call. Default: no
            metrics.
        loop_factory: As in ``lookup``.

    Returns:
        The function from DataFrame to DataFrame.

    Raises:
        TypeError: An argument has the wrong type; the message names the argument.
        ValueError: An argument has a wrong value; the message names the argument.
    """
    check_positive_int("concurrency", concurrency)
    bounds = Bounds() if bounds is None else bounds
    if isinstance(bounds, Bounds):
        if bounds.rows is not None:
            raise ValueError("map_batches(bounds): rows are not called one by one: give bytes")
        # Bound the pending calls: here ``Bounds.rows`` counts calls. A call is pending until its
        # output is passed on, so at most ``concurrency`` calls have output in memory.
        bounds = replace(bounds, rows=concurrency)
    options = options_of(
        fn,
        using=using,
        concurrency=concurrency,
        on_failures=("raise", "drop", "column"),
        on_failure=on_failure,
        bounds=bounds,
        metrics=metrics,
        loop_factory=loop_factory,
    )
    return MapBatches(options, schema)


class MapBatches(FrameMap):
    """A function from DataFrame to DataFrame, made by ``map_batches``. Immutable."""

    def work(self, schema: pa.Schema, partition: Partition, first: list[Any]) -> Iterator[Any]:
        """Return the output batches of ``fn``, in the order of the input batches."""
        return run_batches(self.options, schema, partition, first)

    def output_of(self, frame: DataFrame, declared: StructType) -> StructType:
        """Return the declared schema; ``on_failure="column"`` adds the column ``outcome``."""
        if self.options.on_failure != "column":
            return declared
        from pyspark.sql.types import StructField, StructType

        if OUTCOME in map(str.lower, declared.names):
            raise ValueError(f"schema: {OUTCOME!r} is the column that on_failure='column' adds")
        check_intervals(frame)
        columns = [StructField(f.name, f.dataType, True, f.metadata) for f in declared.fields]
        outcome = StructField(
            OUTCOME, outcome_struct(self.options.policy.units, inputs=frame.schema)
        )
        return StructType([*columns, outcome])

    def describe(self) -> str:
        """Return a readable description: the bounds and the threads of each running partition."""
        options = self.options
        how = f"up to {options.concurrency} threads"
        threads = ["Spark's own", "a reader", how]
        results = f"  results: of at most {options.concurrency} calls"
        if can_emit_before_end(options):
            results = f"  results: at most {OUTPUTS_AHEAD} batches of each call wait for their turn"
        elif options.is_async:
            how, threads[2] = "the loop", "a loop"
        else:
            threads.insert(2, "a loop")
        lines = [
            f"map_batches {options.label}, in each partition at work:",
            f"  calls: at most {options.concurrency} batches at once, on {how}, in order",
            describe_read_ahead(options),
            results,
            f"  threads: {', '.join(threads)}",
        ]
        return Description("\n".join(lines + describe_policy(options)))

    def __repr__(self) -> str:
        return f"<map_batches {self.options.label}>"
