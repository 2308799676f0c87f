"""``stage``: any stream over Arrow batches, inside a Spark worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rstreams_fast import Stream, empty
from rstreams_fast.spark.frames import FrameMap, describe_read_ahead
from rstreams_fast.spark.options import DEFAULT_BUFFER_BYTES, CallOptions
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
    max_buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    metrics: Metrics | None = None,
) -> StreamStage:
    """Make a function from frame to frame of a stream: ``stage(lambda batches:
    batches.map(f).publish_on().map(g), schema)``.

    ``build`` is called once per partition, gets the ``Stream`` of its ``pyarrow.RecordBatch``
    objects and returns the stream of the output's. A stream that ends early (``take``) ends the
    partition.

    ``schema``: of the output, as in :func:`map_batches`.
    ``max_buffer_bytes``: bytes of input batches that are alive, read ahead or in the stream. What
    the stages make of them is theirs to bound, by the prefetch of each boundary. A stream that
    keeps batches (``batch``, ``reduce``) is given one more, beyond the bound, when nothing was
    released for a second.
    ``metrics``: where live metrics go, a :class:`Metrics`.

    Calls are the stream's: it has ``retry``, ``timeout`` and ``on_error_continue``, and
    :func:`bounded` puts a :class:`Limit` around the function of ``map_async``.
    """
    if not callable(build):
        raise TypeError(f"build must be callable, got {type(build).__name__}")
    options = CallOptions(build, max_buffer_bytes=max_buffer_bytes, metrics=metrics)
    return StreamStage(options, schema)


class StreamStage(FrameMap):
    """A function from frame to frame; see :func:`stage`. Immutable."""

    def work(self, schema: pa.Schema, partition: Partition, held: list[Any]) -> Iterator[Any]:
        """Return what the stream makes of the batches."""
        return run_stream(self.options.fn, self.options.label, schema, partition, held)

    def describe(self) -> str:
        """Return what runs in a partition, and its bounds, for people."""
        options = self.options
        built = built_stream(options.fn, empty(), options.label)
        return "\n".join(
            [
                f"stage {options.label}, in each partition at work:",
                describe_read_ahead(options),
                *(f"  {line}" for line in built.describe().splitlines()),
                f"  results: {BATCHES_AHEAD} batches asked for ahead",
                "  threads: Spark's own, a reader, a source, and those of the stream",
            ]
        )

    def __repr__(self) -> str:
        return f"<stage {self.options.label}>"
