"""What every kind of stage needs in one partition: figures, a byte budget, a reader, a crew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rstreams_fast.spark.figures import Counters, Figures, FiguresWriter
from rstreams_fast.spark.hold import ByteBudget, Reader
from rstreams_fast.spark.threads import Crew

__all__ = ["Partition", "first_of"]


def first_of(upstream: Iterator[Any], what: str) -> Any:
    """Return the first input of a partition, or ``None``; ``what`` it may not be able to have."""
    import pyarrow as pa

    try:
        return next(upstream, None)
    except KeyError as unknown:  # pyarrow's, of a type that it has no class for
        if unknown.args != (pa.lib.Type_INTERVAL_MONTHS,):
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
        figures: Figures | None,
    ) -> None:
        self.counters = Counters(label, key)
        self.writer = FiguresWriter(figures, self.counters)
        self.budget = ByteBudget(max_buffer_bytes, self.counters)
        self.reader = Reader(upstream, self.budget, count_rows)
        self.crew = Crew()

    def at_work(self, first: list[Any], stop: Callable[[], object]) -> AtWork:
        """Read while the block runs; at its end, however it ends, cancel, ``stop`` and join.

        ``first`` holds the first batch, which was pulled to see whether there is any; it is taken
        out, so that nothing keeps that batch alive.
        """
        return AtWork(self, first, stop)


class AtWork:
    """The block of :meth:`Partition.at_work`; the figures say that it runs, and how it ended.

    No generator makes it, because ``contextlib`` would set the traceback of what is raised, and of
    some exceptions, such as a frozen dataclass, nothing can be set.
    """

    def __init__(self, partition: Partition, first: list[Any], stop: Callable[[], object]) -> None:
        self._partition = partition
        self._first = first
        self._stop = stop

    def __enter__(self) -> None:
        partition, first = self._partition, self._first
        partition.counters.state = "running"
        partition.writer.write()
        try:
            partition.crew.start(lambda: partition.reader.run(first.pop()), "reader")
        except BaseException as raised:
            self.__exit__(type(raised))
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        partition = self._partition
        counters = partition.counters
        try:
            partition.reader.cancel()
            self._stop()
            partition.crew.join()
            counters.running = counters.pending = 0
        finally:
            counters.state = "done"
            if kind is not None:
                counters.state = "stopped" if issubclass(kind, GeneratorExit) else "failed"
            partition.writer.write()
