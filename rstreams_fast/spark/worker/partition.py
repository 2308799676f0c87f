"""What a stage, such as ``rs.lookup``, uses in one partition: counters, byte budget, threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from rstreams_fast.calls.pump import ItemSource
from rstreams_fast.calls.thread_group import STAGE_CLOSE_SECONDS, ThreadGroup
from rstreams_fast.spark.metrics import Metrics
from rstreams_fast.spark.worker.counters import Counters, MetricsWriter, task_context
from rstreams_fast.spark.worker.read_ahead import ByteBudget, ByteLease, ReadAhead
from rstreams_fast.spark.worker.shared_variables import make_shared_variables_thread_safe

__all__ = ["Output", "Partition", "StageSource", "first_of"]

READ_AHEAD_THREAD: Final = "read-ahead"

FINISH_SECONDS: Final = 30.0
"""A stage that ends waits ``STAGE_CLOSE_SECONDS`` for its threads. After a success it waits this
many seconds more. If a thread still runs then, the task fails."""


class Output(NamedTuple):
    """An output batch. All of its rows belong to the same input batch.

    Only the last output of an input batch has a ``lease``: the bytes that the input batch occupies
    in the byte budget. These bytes are released when Spark has taken the output.
    """

    batch: Any
    rows: int
    lease: ByteLease | None


class StageSource(ItemSource, Protocol):
    """Supplies items to a ``CallStage``, which calls the user's function with each item.

    In ``lookup`` and ``enrich`` an item is the key of an input row: the values of its key columns.
    In ``map_batches`` an item is an input batch. Only the event loop's thread calls the methods.
    """

    @property
    def ended(self) -> bool:
        """Whether the source has supplied its last item."""

    def name_of(self, item: Any) -> str:
        """Return a text that describes ``item`` in the error message of a failed call."""


_INTERVAL_MONTHS: Final = 21
"""Arrow's number of the type *interval of months*. pyarrow before version 15 has no name for it."""


def first_of(upstream: Iterator[Any], what: str) -> Any:
    """Return the first input batch of a partition; ``None`` if the partition is empty.

    Raises ``TypeError`` if a column has Arrow's type *interval of months*, for which Python has no
    values. ``what`` is the subject of the error message, such as "a key column".
    """
    import pyarrow as pa

    try:
        return next(upstream, None)
    except (KeyError, pa.ArrowNotImplementedError) as unknown:
        # pyarrow raises these errors for Arrow types that have no Python or pandas equivalent.
        if unknown.args != (_INTERVAL_MONTHS,) and "month_interval" not in str(unknown):
            raise
        raise TypeError(
            f"{what} is an interval of months, which Python has no value for; "
            "cast it to a string or a number"
        ) from unknown


class Partition:
    """The counters, byte budget, read-ahead and threads of a stage in one partition.

    Here a stage is one use of ``rs.lookup`` or a similar function; it is not a stage of Spark's
    scheduler. The worker's main thread makes the object.
    """

    def __init__(
        self,
        upstream: Iterator[Any],
        count_rows: Callable[[Any], int],
        *,
        label: str,
        key: str,
        max_buffer_bytes: int,
        metrics: Metrics | None,
    ) -> None:
        self.counters = Counters(label, key)
        self.writer = MetricsWriter(metrics, self.counters)
        self.budget = ByteBudget(max_buffer_bytes, self.counters)
        self.read_ahead = ReadAhead(upstream, self.budget, count_rows)
        self.threads = ThreadGroup()

    def running(self, first: list[Any], stop: Callable[[], object]) -> RunningPartition:
        """Return a context manager: while it is open, a thread reads the partition's batches ahead.

        Its exit ends the reading, calls ``stop`` and waits for all threads of the partition.
        ``first`` is a list that contains the first batch, which the caller has read. The reading
        thread removes the batch from the list, so that the list does not keep it in memory.
        """
        return RunningPartition(self, first, stop)


class RunningPartition:
    """The context manager that ``Partition.running`` returns. It also sets the metrics' ``state``.

    This is a class, because a generator with ``contextlib.contextmanager`` sets the attribute
    ``__traceback__`` of an exception. Some exceptions, such as frozen dataclasses, refuse that.
    """

    def __init__(self, partition: Partition, first: list[Any], stop: Callable[[], object]) -> None:
        self._partition = partition
        self._first = first
        self._stop = stop

    def __enter__(self) -> None:
        partition, first = self._partition, self._first
        if task_context() is not None:
            make_shared_variables_thread_safe()
        partition.counters.state = "running"
        partition.writer.write()
        try:
            partition.threads.start(
                lambda: partition.read_ahead.run(first.pop()), READ_AHEAD_THREAD
            )
        except BaseException as raised:
            self.__exit__(type(raised))
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        partition = self._partition
        counters = partition.counters
        try:
            try:
                partition.read_ahead.cancel()
            finally:
                self._stop()
            left = partition.threads.join(STAGE_CLOSE_SECONDS)
            counters.running = counters.pending = 0
            if left and task_context() is not None:
                _refuse_reuse(partition, kind)
        finally:
            counters.state = "done"
            if kind is not None:
                counters.state = "stopped" if issubclass(kind, GeneratorExit) else "failed"
            partition.writer.end()


def _refuse_reuse(partition: Partition, kind: type[BaseException] | None) -> None:
    """Raise an error if threads of the stage still run, so that Spark ends this worker process.

    Otherwise these threads would run during the worker's next task. Spark itself ends the worker if
    a task has failed or has not read all of its input. So no error is raised after a failure, or
    for the read-ahead thread: while this thread runs, the task has not read all of its input.
    """
    seconds = FINISH_SECONDS if kind is None else 0.0
    left = [name for name in partition.threads.join(seconds) if READ_AHEAD_THREAD not in name]
    if left and (kind is None or issubclass(kind, GeneratorExit)):
        raise RuntimeError(
            f"{partition.counters.stage}: {', '.join(left)} did not end with the stage; "
            "the worker is ended, so that no other task meets them"
        )
