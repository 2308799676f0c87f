"""The parts of a partition that every kind of stage uses: counters, budget, read-ahead, threads."""

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
"""The most seconds that a partition waits, after its last result, for threads that still run."""


class Output(NamedTuple):
    """An output batch, made from one input batch.

    Only the last output of an input batch has a ``lease``: the bytes of the budget that the input
    batch occupies. These bytes return to the budget when Spark has taken the output.
    """

    batch: Any
    rows: int
    lease: ByteLease | None


class StageSource(ItemSource, Protocol):
    """The source from which a stage takes the items of its calls.

    Only the thread of the stage's loop calls these methods.
    """

    @property
    def ended(self) -> bool:
        """Whether the source has no more items, and will have none later."""

    def name_of(self, item: Any) -> str:
        """Return a description of the item, for the error message if its call fails."""


_INTERVAL_MONTHS: Final = 21
"""Arrow's number for the type of month intervals; pyarrow has a name for it since version 15."""


def first_of(upstream: Iterator[Any], what: str) -> Any:
    """Return a partition's first input; ``None`` if it has none. Error messages name ``what``."""
    import pyarrow as pa

    try:
        return next(upstream, None)
    except (KeyError, pa.ArrowNotImplementedError) as unknown:
        # pyarrow raises these errors for a type that has no class in Python or pandas.
        if unknown.args != (_INTERVAL_MONTHS,) and "month_interval" not in str(unknown):
            raise
        raise TypeError(
            f"{what} is an interval of months, which Python has no value for; "
            "cast it to a string or a number"
        ) from unknown


class Partition:
    """The parts of one run of a stage over a partition. The main thread creates this object."""

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
        """Return a context manager that reads the partition's batches ahead.

        At its exit it ends the reading, calls ``stop`` and waits for the threads. ``first`` is a
        list with the first batch, which the caller has read. The reading thread pops the batch, so
        that the list does not keep the batch in memory.
        """
        return RunningPartition(self, first, stop)


class RunningPartition:
    """The context manager of ``Partition.running``; it sets the state that the metrics show.

    It does not use ``contextlib.contextmanager``, which sets the ``__traceback__`` of an exception:
    some exceptions (a frozen dataclass) refuse that.
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
    """Raise an error if threads are still running, so that Spark ends this worker process.

    These threads must not run during the worker's next task. If the task has failed, or has not
    read all of its input, Spark ends the worker without this error. So nothing is raised after a
    failure, or if only the read-ahead thread runs: then the task has not read all of its input.
    """
    seconds = FINISH_SECONDS if kind is None else 0.0
    left = [name for name in partition.threads.join(seconds) if READ_AHEAD_THREAD not in name]
    if left and (kind is None or issubclass(kind, GeneratorExit)):
        raise RuntimeError(
            f"{partition.counters.stage}: {', '.join(left)} did not end with the stage; "
            "the worker is ended, so that no other task meets them"
        )
