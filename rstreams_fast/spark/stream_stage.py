"""``stage``: runs a user's stream over the Arrow batches of each partition, in Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rstreams_fast import Stream, empty
from rstreams_fast.spark.frames import Description, FrameMap, describe_read_ahead
from rstreams_fast.spark.options import Bounds, CallOptions
from rstreams_fast.spark.worker.partition import Partition
from rstreams_fast.spark.worker.streams import BATCHES_AHEAD, built_stream, run_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rstreams_fast.spark.metrics import Metrics

__all__ = ["StreamStage", "stage"]


def stage(
    build: Callable[[Stream[Any]], Stream[Any]],
    schema: str | StructType | pa.Schema,
    *,
    bounds: Bounds | None = None,
    metrics: Metrics | None = None,
) -> StreamStage:
    """Make a function for ``DataFrame.transform`` that runs a stream over each partition.

    The stream itself makes the calls: use its ``retry``, ``timeout`` and ``on_error_continue``, or
    a ``Policy`` on the function of ``map_async``.

    ```python
    import rstreams_fast.spark as rs


    def first_of(batch):
        return batch.slice(0, 1)


    firsts = rs.stage(lambda batches: batches.map(first_of).publish_on(), "tailnum string")
    print(flights.coalesce(1).transform(firsts).first())  # Row(tailnum='N14228')
    ```

    Args:
        build: Called once per partition. It gets the ``Stream`` of the partition's
            ``pyarrow.RecordBatch`` objects and returns the stream of output batches. If the stream
            ends early (``take``), the partition ends, too.
        schema: The schema of the output, as in ``map_batches``.
        bounds: ``Bounds(bytes=...)``: the maximum number of bytes of input batches that are read
            ahead or are in the stream. The prefetch of operators such as ``publish_on`` bounds the
            results. If a stream keeps batches (``batch``, ``reduce``) and releases none for a
            second, it gets one more batch, which exceeds the bound.
        metrics: The ``Metrics`` that receive live counts. Default: no metrics.

    Returns:
        The function from DataFrame to DataFrame.

    Raises:
        TypeError: ``build`` cannot be called, or an argument has the wrong type.
        ValueError: An argument has a wrong value; the message names the argument.
    """
    if not callable(build):
        raise TypeError(f"build must be callable, got {type(build).__name__}")
    bounds = Bounds() if bounds is None else bounds
    options = CallOptions(build, bounds=bounds, metrics=metrics)
    if (bounds.rows, bounds.seconds) != (None, None):
        raise ValueError("stage(bounds): a stream bounds rows and seconds by its own operators")
    return StreamStage(options, schema)


class StreamStage(FrameMap):
    """A function from DataFrame to DataFrame, made by ``stage``. Immutable."""

    def work(self, schema: pa.Schema, partition: Partition, first: list[Any]) -> Iterator[Any]:
        """Return the output batches of the user's stream."""
        return run_stream(self.options.fn, self.options.label, schema, partition, first)

    def describe(self) -> str:
        """Return a readable description: the bounds and threads of a partition, and its stream."""
        options = self.options
        built = built_stream(options.fn, empty(), options.label)
        lines = [
            f"stage {options.label}, in each partition at work:",
            describe_read_ahead(options),
            *(f"  {line}" for line in built.describe().splitlines()),
            f"  results: {BATCHES_AHEAD} batches asked for ahead",
            "  threads: Spark's own, a reader, a source, and those of the stream",
        ]
        return Description("\n".join(lines))

    def __repr__(self) -> str:
        return f"<stage {self.options.label}>"
