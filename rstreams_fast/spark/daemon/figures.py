"""The metrics of a task with overlapping calls, for the driver's ``rs.Metrics``."""

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

__all__ = ["Figures"]


class _Shared(Counters):
    """Counters in which any thread may count the attempts of its call."""

    def __init__(self) -> None:
        super().__init__("", "udf")
        self.lock = threading.Lock()

    def count_again(self, error: Exception) -> None:
        with self.lock:
            super().count_again(error)

    def count_timeout(self) -> None:
        with self.lock:
            super().count_timeout()


class Figures:
    """The metrics of one task, in ``directory``. Calls may be counted by any thread."""

    def __init__(self, directory: str) -> None:
        self._counters = _Shared()
        self._writer = MetricsWriter(Metrics(directory), self._counters)
        self._lock = self._counters.lock
        self._taken: deque[int] = deque()

    def begin(self, functions: Iterable[str], concurrency: int, most: int) -> None:
        """Set the functions' names and the bounds: calls at once, and rows or batches held."""
        self._counters.stage = ", ".join(dict.fromkeys(functions))
        self._counters.concurrency = concurrency
        self._counters.max_pending_rows = most
        CallCounts.ambient = self._counters
        self._writer.write()

    def run(self, call: UdfCall) -> None:
        """Make ``call`` on this thread."""
        self._call_begins()
        call.run()
        self._call_ends()

    async def drive(self, call: UdfCall) -> None:
        """Make ``call`` on this loop."""
        if call.admission.attention and not await call.admission.may_start_on_loop(call):
            call.abandon()
            return
        self._call_begins()
        try:
            await drive(call)
        finally:
            self._call_ends()

    def taking(self, items: Iterable[Any], rows_of: Callable[[Any], int]) -> Iterator[Any]:
        """Yield ``items``, the input rows or batches of the task, and count them."""
        counters = self._counters
        begin = time.monotonic()
        for item in items:
            if counters.running < counters.concurrency:
                counters.waiting_upstream += time.monotonic() - begin
            rows = rows_of(item)
            self._taken.append(rows)
            counters.rows_in += rows
            counters.buffered_rows += rows
            counters.max_buffered_rows = max(counters.max_buffered_rows, counters.buffered_rows)
            yield item
            begin = time.monotonic()

    def giving(self, results: Iterable[Any]) -> Iterator[Any]:
        """Yield ``results``, one for each item taken, and count them."""
        counters = self._counters
        for result in results:
            rows = self._taken.popleft()
            counters.buffered_rows -= rows
            counters.rows_out += rows
            self._writer.write_if_due()
            begin = time.monotonic()
            yield result
            counters.waiting_downstream += time.monotonic() - begin

    def waited(self, seconds: float) -> None:
        """Count seconds that the main thread waited for calls."""
        self._counters.waiting_function += seconds
        self._writer.write_if_due()

    def end(self, state: str) -> None:
        """Write the final metrics, with the ``state`` in which the task ended."""
        CallCounts.ambient = None
        self._counters.running = 0
        self._counters.state = state
        self._writer.end()

    def _call_begins(self) -> None:
        counters = self._counters
        with self._lock:
            counters.calls += 1
            counters.running += 1
            counters.max_running = max(counters.max_running, counters.running)

    def _call_ends(self) -> None:
        with self._lock:
            self._counters.running -= 1
