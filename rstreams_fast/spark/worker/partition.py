"""What every kind of stage needs in one partition: counters, a byte budget, read-ahead, threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from rstreams_fast.spark.metrics import Metrics
from rstreams_fast.spark.worker.counters import Counters, MetricsWriter, task_context
from rstreams_fast.spark.worker.read_ahead import ByteBudget, ByteLease, ReadAhead
from rstreams_fast.spark.worker.shared_variables import lock_what_threads_share
from rstreams_fast.spark.worker.threads import CLOSE_SECONDS, ThreadGroup

__all__ = ["Output", "Partition", "Sink", "Source", "first_of"]

READ_AHEAD_THREAD: Final = "read-ahead"

FINISH_SECONDS: Final = 30.0
"""How long threads that clients started, and left, may take when all results have left."""


class Output(NamedTuple):
    """What leaves for Spark, and the lease to release when it has left."""

    batch: Any
    rows: int
    lease: ByteLease | None


class Source(Protocol):
    """What the pump makes calls for. The loop's thread calls it."""

    @property
    def ended(self) -> bool:
        """Whether there are no items any more."""

    def next_items(self) -> list[Any] | None:
        """Return the items of the next calls; ``None``: there are none now, or ever.

        An empty list: nothing to call, but something moved, and there may be more.
        """

    def name_of(self, item: Any) -> str:
        """Say what a call was made for, in words for a failure's note."""


class Sink(Protocol):
    """What becomes of the results. The loop's thread calls it."""

    @property
    def outputs(self) -> deque[Output]:
        """What is ready to leave; while there is anything, no results are put."""

    @property
    def most_pending(self) -> int:
        """How many results may be waited for at once."""

    @property
    def waiting(self) -> bool:
        """Whether there are results that ``flush`` would let leave."""

    def put(self, results: list[Any]) -> None:
        """Take results from the window; append to ``outputs`` what is ready."""

    def flush(self) -> None:
        """Append to ``outputs`` what would otherwise wait for more results."""

    def check_end(self) -> None:
        """Raise if input and output do not agree now that all is done: nothing is lost silently."""


_INTERVAL_MONTHS: Final = 21
"""Arrow's number for the type, which pyarrow has had a name for since 15."""


def first_of(upstream: Iterator[Any], what: str) -> Any:
    """Return the first input of a partition, or ``None``; ``what`` it may not be able to have."""
    import pyarrow as pa

    try:
        return next(upstream, None)
    except (KeyError, pa.ArrowNotImplementedError) as unknown:
        # pyarrow's, of a type that it has no class for, or that it cannot give to pandas.
        if unknown.args != (_INTERVAL_MONTHS,) and "month_interval" not in str(unknown):
            raise
        raise TypeError(
            f"{what} is an interval of months, which Python has no value for; "
            "cast it to a string or a number"
        ) from unknown


class Partition:
    """One run of a stage over a partition. Made by the main thread, in the stage's generator."""

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

    def at_work(self, first: list[Any], stop: Callable[[], object]) -> AtWork:
        """Read while the block runs; at its end, however it ends, cancel, ``stop`` and join.

        ``first`` holds the first batch, which was pulled to see whether there is any; it is taken
        out, so that nothing keeps that batch alive.
        """
        return AtWork(self, first, stop)


class AtWork:
    """The block of ``Partition.at_work``; the metrics say that it runs, and how it ended.

    No generator makes it, because ``contextlib`` would set the traceback of what is raised, and of
    some exceptions, such as a frozen dataclass, nothing can be set.
    """

    def __init__(self, partition: Partition, first: list[Any], stop: Callable[[], object]) -> None:
        self._partition = partition
        self._first = first
        self._stop = stop

    def __enter__(self) -> None:
        partition, first = self._partition, self._first
        if task_context() is not None:
            lock_what_threads_share()
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
            left = partition.threads.join(CLOSE_SECONDS)
            counters.running = counters.pending = 0
            if left and task_context() is not None:
                _refuse_reuse(partition, kind)
        finally:
            counters.state = "done"
            if kind is not None:
                counters.state = "stopped" if issubclass(kind, GeneratorExit) else "failed"
            partition.writer.end()


def _refuse_reuse(partition: Partition, kind: type[BaseException] | None) -> None:
    """See to it that threads which are left do not meet the next task of this worker.

    Spark ends a worker whose task failed, and one whose task has not read its input to the end: so
    the thread that reads ahead, waiting for an upstream that says nothing, needs no more. For the
    others the stage fails now, if it did not already, which is how a worker is ended.
    """
    seconds = FINISH_SECONDS if kind is None else 0.0
    left = [name for name in partition.threads.join(seconds) if READ_AHEAD_THREAD not in name]
    if left and (kind is None or issubclass(kind, GeneratorExit)):
        raise RuntimeError(
            f"{partition.counters.stage}: {', '.join(left)} did not end with the stage; "
            "the worker is ended, so that no other task meets them"
        )
