"""Writes the metrics of a task whose UDF calls overlap, for the driver's ``rs.Metrics``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.spark.daemon.steps import drive
from rstreams_fast.spark.metrics import Metrics
from rstreams_fast.spark.worker.counters import Counters, MetricsWriter

if TYPE_CHECKING:
    from rstreams_fast.spark.daemon.calls import UdfCall

__all__ = ["TaskMetrics"]


class TaskMetrics:
    """Counts the UDF calls and the rows of a task, and writes the counts to ``directory``.

    Several threads may call ``run`` and ``drive`` at the same time.
    """

    def __init__(self, directory: str) -> None:
        self._counters = Counters("", "udf")
        self._writer = MetricsWriter(Metrics(directory), self._counters)
        self._lock = threading.Lock()
        self._rows_taken: deque[int] = deque()

    def begin(self, functions: Iterable[str], concurrency: int, most: int) -> None:
        """Set the names of the UDFs, and the bounds on calls and on pending rows or batches."""
        self._counters.stage = ", ".join(dict.fromkeys(functions))
        self._counters.concurrency = concurrency
        self._counters.max_pending_rows = most
        CallCounts.ambient = self._counters.policies
        self._writer.write()

    def run(self, call: UdfCall) -> None:
        """Make and count ``call`` on the calling thread."""
        if call.admission.attention and not call.admission.may_start(call):
            call.abandon()
            return
        begun = self._count_call_begin()
        call.run()
        self._count_call_end(begun, call.failure)

    async def drive(self, call: UdfCall) -> None:
        """Make and count ``call`` on the running event loop."""
        if call.admission.attention and not await call.admission.may_start_on_loop(call):
            call.abandon()
            return
        begun = self._count_call_begin()
        try:
            await drive(call)
        finally:
            self._count_call_end(begun, call.failure)

    def count_inputs(self, items: Iterable[Any], rows_of: Callable[[Any], int]) -> Iterator[Any]:
        """Yield ``items``, the input rows or batches of the task, and count their rows."""
        counters = self._counters
        begin = time.monotonic()
        for item in items:
            if counters.running < counters.concurrency:
                counters.waiting_upstream += time.monotonic() - begin
            rows = rows_of(item)
            self._rows_taken.append(rows)
            counters.rows_in += rows
            counters.buffered_rows += rows
            counters.max_buffered_rows = max(counters.max_buffered_rows, counters.buffered_rows)
            yield item
            begin = time.monotonic()

    def count_outputs(self, results: Iterable[Any]) -> Iterator[Any]:
        """Yield ``results``, one for each input row or batch, and count their rows."""
        counters = self._counters
        for result in results:
            rows = self._rows_taken.popleft()
            counters.buffered_rows -= rows
            counters.rows_out += rows
            self._writer.write_if_due()
            begin = time.monotonic()
            yield result
            counters.waiting_downstream += time.monotonic() - begin

    def count_wait(self, seconds: float) -> None:
        """Add ``seconds`` to the time for which the main thread has waited for calls."""
        self._counters.waiting_function += seconds
        self._writer.write_if_due()

    def end(self, state: str) -> None:
        """Write the final counts. ``state`` is ``done``, ``failed`` or ``stopped``."""
        CallCounts.ambient = None
        self._counters.running = 0
        self._counters.state = state
        self._writer.end()

    def _count_call_begin(self) -> float:
        counters = self._counters
        with self._lock:
            counters.calls += 1
            counters.attempts += 1
            counters.running += 1
            counters.max_running = max(counters.max_running, counters.running)
        return time.monotonic()

    def _count_call_end(self, begun: float, failure: BaseException | None) -> None:
        counters = self._counters
        with self._lock:
            counters.running -= 1
            counters.count_latency(time.monotonic() - begun)
            if failure is not None:
                counters.count_failure(failure)
