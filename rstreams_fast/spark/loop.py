"""The loop's side of a stage: a thread of its own, a window of calls, and how both end.

Three threads and two rings serve one partition::

    Spark's iterator -> reader -> [ring, byte budget] -> loop: CallWindow -> [ring] -> main -> Spark

Nobody waits while holding what another one needs: the loop never blocks, the reader and the main
thread park on their ring. The main thread alone yields.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from rstreams_fast.core import CallWindow, SpscRing
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.calls import Resource, noted
from rstreams_fast.spark.hold import Reading
from rstreams_fast.spark.partition import Partition
from rstreams_fast.spark.threads import CLOSE_SECONDS

__all__ = ["OUTPUT_BATCHES", "REPORT_SECONDS", "LoopStage"]

OUTPUT_BATCHES: Final = 4
"""Output batches between the loop and the main thread."""

RESULTS_PER_TAKE: Final = 1024
"""Results taken from the window at once."""

WORK_PER_TURN: Final = 4096
"""Calls and results handled before the loop looks after its sockets and timers again."""

FLUSH_SECONDS: Final = 0.1
"""How long a result may wait for others to leave with."""

REPORT_SECONDS: Final = 0.2
"""How often the figures are brought up to date."""

STOP_SECONDS: Final = CLOSE_SECONDS * 0.75
"""How long cancelled calls and the ``using`` manager have to end when the stage is stopped."""

LAST_SECONDS: Final = 0.1
"""How long what is still there after that has to end."""


class LoopStage(ABC):
    """Calls over the input of one partition. Subclasses say what a call is made for and what
    becomes of its result.

    Everything but ``on_batch``, ``wake`` and ``stop`` belongs to the loop's thread.
    """

    def __init__(self, partition: Partition) -> None:
        self.loop = asyncio.new_event_loop()
        self.partition = partition
        self.reader = partition.reader
        self.budget = partition.budget
        self.counters = partition.counters
        self.crew = partition.crew
        self.out = SpscRing(OUTPUT_BATCHES)
        """For the main thread: ``(batch, its rows, what to give back when it has left)``."""
        self.out_waiting = False
        """The loop waits for room in ``out``: whoever makes some calls ``wake``."""
        self.failure: BaseException | None = None
        """What the main thread has to raise."""
        self.input_ended = False
        self.emitted: deque[tuple[Any, int, Reading | None]] = deque()
        """Outputs that do not fit into ``out`` yet; nothing more is taken from the window then."""
        self._writer = partition.writer
        self._in_waiting = False
        self._executor = ThreadPoolExecutor(
            initializer=self.crew.adopt, thread_name_prefix="rstreams-executor"
        )
        self._resource: Resource | None = None
        self._ready: CallWindow | None = None
        self._finishing = False
        self._stopping = False
        self._stopped_at = 0.0
        self._ended = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._state = "waiting_upstream"
        self._since = time.monotonic()
        self.reader.on_batch = self.on_batch

    # -- what a subclass says ----------------------------------------------------------------------

    @abstractmethod
    def resource(self) -> Resource | None:
        """Return what is to be opened before the first call."""

    @abstractmethod
    def make_window(self, opened: tuple[Any, ...], /) -> CallWindow:
        """Return the window; its function is passed what was ``opened``, if anything, first."""

    @abstractmethod
    def submit(self, window: CallWindow) -> int:
        """Make calls while there are room and input; return how many, or that anything moved."""

    @abstractmethod
    def has_calls_to_make(self) -> bool:
        """Say whether input was pulled for which no call was made yet."""

    @abstractmethod
    def collect(self, results: list[Any]) -> None:
        """Take results from the window; append what is ready to ``emitted``."""

    @abstractmethod
    def flush(self) -> None:
        """Append to ``emitted`` what would otherwise wait for more results."""

    @abstractmethod
    def check_end(self) -> None:
        """Raise if input and output do not agree now that all is done: nothing is lost silently."""

    @abstractmethod
    def holds_results(self) -> bool:
        """Say whether there are results that ``flush`` would let leave."""

    @abstractmethod
    def name_of(self, item: Any) -> str:
        """Say what a call was made for, in words for a failure's note."""

    def close_calls(self) -> None:  # noqa: B027 - most have nothing to close
        """Start no call any more."""

    # -- any thread --------------------------------------------------------------------------------

    def on_batch(self) -> None:
        """The reader has put something into its ring, or closed it."""
        if self._in_waiting:
            self._in_waiting = False
            self.wake()

    def wake(self) -> None:
        """Let the loop look at its rings."""
        with contextlib.suppress(RuntimeError):  # closed: nothing left to do
            self.loop.call_soon_threadsafe(self.pump)

    def stop(self) -> None:
        """Cancel everything and end; a NOP once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop)

    # -- the loop's life ---------------------------------------------------------------------------

    def run(self) -> None:
        """Body of the loop's thread."""
        try:
            self.loop.set_default_executor(self._executor)
            self.loop.call_soon(self._open)
            self._run_until_ended()
            self._tidy_up()
        except BaseException as raised:
            self._set_failure(raised)
        finally:
            self.loop.close()
            self.out.close()

    def _run_until_ended(self) -> None:
        while not self._ended:
            try:
                self.loop.run_forever()
            except BaseException as raised:  # SystemExit and its like leave through the loop
                self._fail(raised)
            else:
                if not self._ended:
                    label = self.counters.stage
                    self._fail(RuntimeError(f"{label} stopped the loop, which is the stage's"))

    def _end(self) -> None:
        self._ended = True
        self.loop.stop()

    def _open(self) -> None:
        if self._writer.wanted:
            self._report()
        self._resource = self.resource()
        if self._resource is None:
            self._start(())
        else:
            opening = self.loop.create_task(self._resource.open())
            opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        if opening.cancelled():
            self._fail(RuntimeError("using: the context manager was cancelled while it opened"))
        elif (failure := opening.exception()) is not None:
            self._fail(noted(failure, "raised by the context manager given by 'using'"))
        elif not self._stopping:
            self._start((opening.result(),))

    def _start(self, opened: tuple[Any, ...]) -> None:
        try:
            self._ready = self.make_window(opened)
        except Exception as raised:
            self._fail(raised)
        else:
            self.pump()

    def _fail(self, failure: BaseException) -> None:
        self._set_failure(failure)
        self._stop()

    def _set_failure(self, failure: BaseException) -> None:
        if self.failure is None:
            self.failure = failure
            self.out.close()

    def _stop(self) -> None:
        """Cancel the calls; when they have ended, leave ``using``; then end the loop."""
        if self._stopping:
            return
        self._stopping = True
        self._stopped_at = self.loop.time()
        self.reader.cancel()
        if self._ready is not None:
            self._ready.cancel()
        self.close_calls()
        self.loop.call_later(STOP_SECONDS, self._end)
        self._check_stopped()

    def _check_stopped(self) -> None:
        if self._ready is not None:
            self._ready.take(0)  # so that on_ready is called again
            if self._ready.running:
                return
        self._finish()

    def _finish(self) -> None:
        """All is done, or stopped: leave ``using``, then end the loop."""
        if self._finishing:
            return
        self._finishing = True
        self.close_calls()
        if self._resource is None:
            self._end()
            return
        closing = self.loop.create_task(self._resource.close(self.failure))
        closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        if closing.cancelled():
            if not self._stopping:
                self._set_failure(
                    RuntimeError("using: the context manager was cancelled while it closed")
                )
        elif (failure := closing.exception()) is not None:
            self._set_failure(noted(failure, "raised by the context manager given by 'using'"))
        self._end()

    def _tidy_up(self) -> None:
        """End what the user's clients left on the loop, as far as it wants to end."""
        self.close_calls()
        self._executor.shutdown(wait=False, cancel_futures=True)
        since = self._stopped_at if self._stopping else self.loop.time()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self._wait_for(left, since)
        self._wait_for({self.loop.create_task(self.loop.shutdown_asyncgens())}, since)
        for task in asyncio.all_tasks(self.loop):
            # It refused to end, and never runs again; no need for asyncio to say so on stderr.
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def _wait_for(self, tasks: set[asyncio.Task[Any]], since: float) -> None:
        if tasks:
            patience = max(LAST_SECONDS, since + STOP_SECONDS - self.loop.time())
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=patience))

    # -- the pump: results out, calls in, until neither moves --------------------------------------

    def pull(self) -> tuple[Any, Reading] | None:
        """Return the next input; ``None``: none now (``on_batch`` will wake us), or ever."""
        if self.input_ended:
            return None
        ring = self.reader.ring
        entry: tuple[Any, Reading] | None = ring.poll()
        if entry is None:
            self._in_waiting = True
            closed = ring.closed
            entry = ring.poll()  # what came before the reader could see that we wait
            if entry is not None or closed:
                self._in_waiting = False
                self.input_ended = entry is None
        return entry

    def pump(self) -> None:
        try:
            if self._stopping:
                self._check_stopped()
            elif self._ready is not None and not self._finishing:
                self._step(self._ready)
        except BaseException as raised:
            self._fail(raised)
            if not isinstance(raised, Exception):
                raise

    def _step(self, window: CallWindow) -> None:
        done = 0
        while True:
            taken = 0
            if self._hand_over():
                results = window.take(RESULTS_PER_TAKE)
                taken = len(results)
                self.collect(results)
                self._hand_over()
            if window.failure is not None:
                self._account(window)
                self._fail(self._call_failed(*window.failure))
                return
            submitted = self.submit(window)
            done += taken + submitted
            if not taken and not submitted and window.failure is None:
                break
            if done >= WORK_PER_TURN:
                self.loop.call_soon(self.pump)
                break
        self._account(window)
        self._look_ahead(window)

    def _call_failed(self, item: Any, error: BaseException) -> BaseException:
        label = self.counters.stage
        if isinstance(error, asyncio.CancelledError):  # which would look like our own
            cancelled = RuntimeError(f"{label} was cancelled, but not by the stage")
            cancelled.__cause__ = error
            error = cancelled
        return noted(error, f"raised by {label} for {self.name_of(item)}")

    def _look_ahead(self, window: CallWindow) -> None:
        """After a step: flush what would wait for nothing; see the end."""
        if window.pending == 0 and not self.has_calls_to_make():
            if self.holds_results() and not self.emitted:
                self.flush()
                self._hand_over()
            if self.input_ended and not self.emitted and not self.holds_results():
                if self.reader.error is not None:
                    self._fail(self.reader.error)
                else:
                    self.check_end()
                    self._finish()
                return
        if self._flush_timer is None and self.holds_results():
            self._flush_timer = self.loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        if self._stopping or self._finishing:
            return
        try:
            if not self.emitted:
                self.flush()
        except Exception as raised:
            self._fail(raised)
        else:
            self.pump()

    def _hand_over(self) -> bool:
        """Put what is ready into the ring; ``False`` when it is full."""
        emitted = self.emitted
        while emitted:
            if not self.out.offer(emitted[0]):
                self.out_waiting = True
                if not self.out.offer(emitted[0]):  # room made before it could be seen that we wait
                    return False
                self.out_waiting = False
            emitted.popleft()
        return True

    # -- figures -----------------------------------------------------------------------------------

    def followers(self) -> int:
        """Return the rows that share a call of which the window does not know."""
        return 0

    def _account(self, window: CallWindow) -> None:
        counters = self.counters
        counters.calls = window.started
        counters.running = window.running
        counters.max_running = window.max_running
        counters.pending = window.pending + self.followers()
        counters.max_pending = max(counters.max_pending, window.max_pending, counters.pending)
        if self.emitted:
            state = "waiting_downstream"
        elif not self.input_ended and not self.has_calls_to_make():
            state = "waiting_upstream"
        else:
            state = "waiting_function"
        now = time.monotonic()
        setattr(counters, self._state, getattr(counters, self._state) + now - self._since)
        self._state, self._since = state, now

    def _report(self) -> None:
        if self._ready is not None and not (self._stopping or self._finishing):
            self._account(self._ready)
        self._writer.write_if_due()
        self.loop.call_later(REPORT_SECONDS, self._report)

    # -- the main thread's side --------------------------------------------------------------------

    def outputs(self, first: list[Any]) -> Iterator[Any]:
        """Run the stage; ``first`` holds the first batch. For the main thread."""
        with self.partition.at_work(first, self.stop):
            self.crew.start(self.run, "loop")
            while self.failure is None:
                try:
                    output, rows, reading = self.out.get()
                except RingClosed:
                    break
                if self.out_waiting:
                    self.out_waiting = False
                    self.wake()
                self.counters.rows_out += rows
                self.counters.batches_out += 1
                yield output
                del output
                if reading is not None:
                    self.budget.give_back(reading)
            if self.failure is not None:
                raise self.failure
