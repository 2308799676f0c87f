"""``write`` and ``writer``: write a DataFrame, or each batch of a stream, to a sink."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from rstreams_fast.calls.functions import MOST_CALLS, check_positive_int
from rstreams_fast.spark.frames import check_frame, check_intervals, map_in_arrow
from rstreams_fast.spark.options import Bounds, batching_of, check_metrics, column_names
from rstreams_fast.spark.sinks.dead_letters import DeadLetters
from rstreams_fast.spark.sinks.functions import FunctionSink
from rstreams_fast.spark.sinks.postgres_sink import PostgresSink
from rstreams_fast.spark.sinks.report import WriteReport, counts_struct, sum_of
from rstreams_fast.spark.sinks.sink import Frame, Sink, SinkOptions
from rstreams_fast.spark.sinks.subscribers import SubscriberSink, makes_subscribers
from rstreams_fast.spark.worker.outcomes import OUTCOME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rstreams_fast.calls.lists.batching import Batching
    from rstreams_fast.spark.metrics import Metrics

__all__ = ["Writer", "write", "writer"]


def write(
    frame: DataFrame,
    sink: Callable[..., Any] | PostgresSink,
    *,
    job: str | None = None,
    key: str | Sequence[str] = (),
    using: Callable[[], Any] | None = None,
    concurrency: int | None = None,
    batch: int | Batching | None = None,
    on_failure: Literal["raise"] | DeadLetters = "raise",
    bounds: Bounds | None = None,
    metrics: Metrics | None = None,
) -> WriteReport:
    """Write all rows of ``frame`` to ``sink``, and wait until they are written.

    A sink is a function that gets rows, a class of ``Subscriber``, or a sink of
    ``rstreams_fast.spark.sinks``. If the function has a ``Policy``, its calls obey the policy. An
    exception among the results is the failure of one row. This row is sent again in another call,
    as often as ``retry`` says.

    If Spark repeats a task, the task sends its rows again. In the function, ``call_id(row)`` is the
    same in each attempt and task of the write: so a service with idempotency keys stores each row
    once. With ``job=`` a later run of the same job gives the rows the same ids; without ``job=``
    each write gives new ids. With a ``journal`` the rows that an earlier task has sent are not sent
    again.

    ```python
    import rstreams_fast.spark as rs


    async def send(rows):
        print(len(rows), rows[0])


    report = rs.write(flights, send, batch=50)
    print(report.rows)  # 5
    ```

    Args:
        frame: A DataFrame that is no stream.
        sink: A function that gets a list of rows as dicts. If its parameter is annotated as a
            ``pyarrow.RecordBatch``, it gets a record batch instead. The function returns nothing,
            or a list with a result for each row; an exception is the failure of the row. The
            function is ``async``, or a plain function, which runs on threads. The sink may also be
            a class (or a ``partial`` of a class) of ``Subscriber``s: each partition has one object,
            which gets the Arrow batches that it requests. The partition is written when its
            ``on_complete`` has returned.
        job: The name of the job. A job with the same name is a repetition of the same job. The name
            is part of each ``call_id`` and of the keys of a journal; a journal needs it. Default:
            no name; then the write is no repetition of another write.
        key: The columns that distinguish rows, for ``call_id``. Default: all columns; then equal
            rows have the same id.
        using: As in ``lookup``: the function gets the client as its first argument.
        concurrency: The maximum of concurrent calls per running partition. Default: 4.
        batch: The maximum number of rows per call, or a ``Batching``, which also bounds the bytes.
            Default: the sink's own default, else 100.
        on_failure: With ``"raise"`` the job fails when a row has failed in all its attempts. With
            ``dead_letters(path)`` such rows are written to this directory, and the job continues.
        bounds: A ``Bounds`` of rows, bytes and seconds for each running partition.
        metrics: The ``Metrics`` that receive live counts. Default: no metrics.

    Returns:
        The counts of the write.

    Raises:
        TypeError: An argument has the wrong type; the message names the argument.
        ValueError: An argument has a wrong value, or does not suit the sink.
    """
    check_frame(frame, "write")
    if frame.isStreaming:
        raise ValueError("write takes no stream: use writeStream.foreachBatch(rs.writer(sink))")
    made = writer(
        sink,
        job=job,
        key=key,
        using=using,
        concurrency=concurrency,
        batch=batch,
        on_failure=on_failure,
        bounds=bounds,
        metrics=metrics,
    )
    return made._write(frame, job or "", None)


def writer(
    sink: Callable[..., Any] | PostgresSink,
    *,
    job: str | None = None,
    key: str | Sequence[str] = (),
    using: Callable[[], Any] | None = None,
    concurrency: int | None = None,
    batch: int | Batching | None = None,
    on_failure: Literal["raise"] | DeadLetters = "raise",
    bounds: Bounds | None = None,
    metrics: Metrics | None = None,
) -> Writer:
    """Make a function for ``foreachBatch`` that writes each batch of a stream to ``sink``.

    If Spark repeats a batch, its rows have the same ``call_id`` as before. A ``journal`` keeps only
    the answers of the latest batch, because Spark repeats no earlier batch.

    ```python
    import rstreams_fast.spark as rs


    async def send(rows):
        print(len(rows))


    stream = flights.sparkSession.readStream.format("rate").load()
    query = stream.writeStream.foreachBatch(rs.writer(send)).start()
    query.stop()
    ```

    Args:
        sink: As in ``write``.
        job: The name of the stream. Default: the id of the query, which its checkpoint keeps. Spark
            Connect does not give this id, so a name is required there. A stream with a new
            checkpoint needs another name, because its batches count from 0 again.
        key: As in ``write``.
        using: As in ``write``.
        concurrency: As in ``write``.
        batch: As in ``write``.
        on_failure: As in ``write``.
        bounds: As in ``write``.
        metrics: As in ``write``.

    Returns:
        A function that takes a DataFrame and the number of its batch.

    Raises:
        TypeError: An argument has the wrong type; the message names the argument.
        ValueError: An argument has a wrong value, or does not suit the sink.
    """
    if job is not None and (not isinstance(job, str) or not job):
        raise TypeError(f"job must be a name, got {job!r}")
    if on_failure != "raise" and not isinstance(on_failure, DeadLetters):
        raise TypeError(f"on_failure must be 'raise' or dead_letters(path), got {on_failure!r}")
    if concurrency is not None:
        check_positive_int("concurrency", concurrency, MOST_CALLS)
    bounds = Bounds() if bounds is None else bounds
    if not isinstance(bounds, Bounds):
        raise TypeError(f"bounds must be a Bounds, got {type(bounds).__name__}")
    options = SinkOptions(
        key=column_names("key", key),
        using=using,
        concurrency=concurrency,
        batch=batching_of(batch),
        dead_letters=on_failure if isinstance(on_failure, DeadLetters) else None,
        bounds=bounds,
        metrics=check_metrics(metrics),
    )
    made: Sink
    if isinstance(sink, PostgresSink):
        made = sink.with_options(options)
    elif makes_subscribers(sink):
        made = SubscriberSink(sink, options)
    else:
        made = FunctionSink(sink, options)
    return Writer(made, job, has_dead_letters=options.dead_letters is not None)


class Writer:
    """A function for ``foreachBatch``, made by ``writer``. It writes one batch at a time."""

    report: WriteReport | None = None
    """The report of the latest batch; ``None`` before the first batch."""

    def __init__(self, sink: Sink, job: str | None, *, has_dead_letters: bool) -> None:
        self._sink = sink
        self._job = job
        self._has_dead_letters = has_dead_letters

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write ``frame``, which is batch number ``batch_id`` of a stream."""
        self.report = self._write(frame, self._job or _query_of(frame), batch_id)

    def _write(self, frame: DataFrame, job: str, batch: int | None) -> WriteReport:
        begin, schema = time.monotonic(), frame.schema
        names = list(map(str.lower, schema.names))
        if not names:
            raise ValueError("the frame has no columns")
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise ValueError(f"the frame has two columns {name!r}: give them other names")
        if self._has_dead_letters and OUTCOME in names:
            raise ValueError(f"the frame has a column {OUTCOME!r}, which dead letters add")
        check_intervals(frame)
        write_id = hashlib.blake2b(job.encode()).hexdigest()[:32] if job else uuid.uuid4().hex
        replaces = self._has_dead_letters and job and batch is None
        files = tuple(frame.inputFiles()) if replaces else ()
        written, sink = Frame(schema, job, write_id, batch, files), self._sink
        drain = sink.drain(written)
        if not sink.begin(written):
            return WriteReport(repeated=True, seconds=time.monotonic() - begin)
        try:
            parts = map_in_arrow(frame, drain, counts_struct()).collect()
            report = sum_of(parts)
            if not sink.commit(written, [part["token"] for part in parts], report.rows):
                report = WriteReport(repeated=True)
        finally:
            sink.finish(written)
        return replace(report, seconds=time.monotonic() - begin)


def _query_of(frame: DataFrame) -> str:
    """Return the id of the streaming query that the batch ``frame`` belongs to."""
    context: Any = getattr(frame.sparkSession, "_sc", None)
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if query is None:
        raise ValueError("writer: which query this is cannot be known here: give it a name (job=)")
    return str(query)
