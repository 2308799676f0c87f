"""``map_batches``: a function of whole Arrow batches, on a few threads or on a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.spark.frames import FrameMap, describe_read_ahead
from rstreams_fast.spark.limits import Limit
from rstreams_fast.spark.options import (
    DEFAULT_BUFFER_BYTES,
    CallOptions,
    Circuit,
    Retry,
    check_positive_int,
)
from rstreams_fast.spark.worker.batches import OUTPUTS_AHEAD, run_batches
from rstreams_fast.spark.worker.partition import Partition

if TYPE_CHECKING:
    import pyarrow as pa
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
    ``using``: a factory of a context manager, opened once per partition; what it gives is passed to
    ``fn`` first. An async one takes an ``async`` function.
    ``timeout``: seconds for one attempt of an async ``fn``, then ``TimeoutError``.
    ``retry``: a :class:`Retry`; default: one attempt. The output of a call is whole before any of
    it leaves.
    ``on_failure``: ``"raise"``: the exception is the task's; ``"drop"``: the call gives no rows,
    and is counted in the metrics' ``failures``.
    ``max_buffer_bytes``: bytes of input batches held per partition at work; one batch always
    passes.
    ``metrics``: where live metrics go, a :class:`Metrics`; a batch counts as a call.
    ``limit``: a :class:`Limit` of an async ``fn``'s calls, which all tasks share.
    ``circuit``, ``deadline``, ``task_deadline``: of an async ``fn``, as in :func:`lookup`; a batch
    is a row.
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
        on_failures=("raise", "drop"),
        max_buffer_bytes=max_buffer_bytes,
        metrics=metrics,
        limit=limit,
        circuit=circuit,
        deadline=deadline,
        task_deadline=task_deadline,
    )
    for word in ("limit", "circuit", "task_deadline"):
        if getattr(options, word) is not None and not options.is_async:
            raise ValueError(f"{word} needs an async fn: {options.label} has threads of its own")
    return MapBatches(options, schema)


class MapBatches(FrameMap):
    """A function from frame to frame; see :func:`map_batches`. Immutable."""

    def work(self, schema: pa.Schema, partition: Partition, held: list[Any]) -> Iterator[Any]:
        """Return what ``fn`` makes of the batches, in their order."""
        return run_batches(self.options, schema, partition, held)

    def describe(self) -> str:
        """Return what runs in a partition, and its bounds, for people."""
        options = self.options
        how = threads = f"up to {options.concurrency} threads"
        results = f"  results: at most {OUTPUTS_AHEAD} batches of each call wait for their turn"
        if options.is_async:
            how, threads = "the loop", "a loop"
            results = f"  results: of at most {options.concurrency} calls"
        return "\n".join(
            [
                f"map_batches {options.label}, in each partition at work:",
                f"  calls: at most {options.concurrency} batches at once, on {how}, in order",
                describe_read_ahead(options),
                results,
                f"  threads: Spark's own, a reader, {threads}",
            ]
        )

    def __repr__(self) -> str:
        return f"<map_batches {self.options.label}>"
