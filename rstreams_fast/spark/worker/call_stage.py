"""Makes the calls of a stage in one partition, on an event loop with its own thread.

Three threads serve the partition: the read-ahead thread reads the input batches, the loop's thread
makes the calls, and the worker's main thread yields the output batches to Spark. Two rings (bounded
queues) connect them. The byte budget bounds the bytes of input batches in memory. On the loop, a
``CallPump`` starts the calls and takes their results::

    Spark's iterator -> read-ahead -> [ring, byte budget] -> loop: CallPump -> [ring] -> main

A deadlock is impossible: the loop never blocks, and each of the other threads waits only for its
ring or the byte budget.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any, Final

from rstreams_fast.calls.engine import CallEngine, Surroundings
from rstreams_fast.calls.errors import with_note
from rstreams_fast.calls.ids import set_run_digest
from rstreams_fast.calls.journal.calls import JournalledCalls
from rstreams_fast.calls.keys import KeyDigest
from rstreams_fast.calls.limits.nesting import begin_holding
from rstreams_fast.calls.pump import CallPump
from rstreams_fast.calls.thread_group import STAGE_CLOSE_SECONDS
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.worker.counters import task_context
from rstreams_fast.spark.worker.event_loops import end_tasks, new_loop, raised_by_stage
from rstreams_fast.spark.worker.hang_up import hang_up_check
from rstreams_fast.spark.worker.loop_watch import LoopWatch
from rstreams_fast.spark.worker.output_ring import OutputRing, OutputSink
from rstreams_fast.spark.worker.partition import Partition, StageSource
from rstreams_fast.spark.worker.using import CallsEnded, Client

__all__ = ["REPORT_SECONDS", "CallStage"]

FLUSH_SECONDS: Final = 0.1
"""The most seconds that a result waits for further results of the same output batch. Then the stage
emits an output batch with fewer rows."""

REPORT_SECONDS: Final = 0.2
"""Seconds between two updates of the metrics."""

HANG_UP_SECONDS: Final = 0.02
"""Seconds between two checks whether Spark has closed its socket and needs no more rows."""

STOP_SECONDS: Final = STAGE_CLOSE_SECONDS * 0.75
"""The most seconds that a stopped stage waits for the end of its cancelled calls, and for the exit
of the user's context manager (``using``)."""

LAST_SECONDS: Final = 0.1
"""Minimum seconds that the remaining asyncio tasks get to end, even after ``STOP_SECONDS``."""


class CallStage:
    """Makes the calls of one partition: takes items from ``source``, passes results to ``sink``.

    An asyncio task, ``_host``, opens and closes the user's context manager: the one that the user's
    argument ``using`` makes. Threads other than the loop's thread may call only ``outputs`` and
    ``stop``.
    """

    def __init__(
        self,
        partition: Partition,
        options: CallOptions,
        source: StageSource,
        sink: OutputSink,
        *,
        surroundings: Surroundings,
        journal: JournalledCalls | None = None,
        watched: Callable[..., Any] | None = None,
        **window: Any,
    ) -> None:
        """``surroundings``: the steps around each call, such as a look-up in the cache.
        ``journal``: files with the results of earlier calls. When the event loop runs, the stage
        opens the journal and the user's context manager (``using``). Then each call looks for its
        result in the journal, and gets the context manager's value as its first argument.
        ``watched``: the user's function, if ``options.fn`` is only a wrapper. ``LoopWatch`` warns
        if the user's function blocks the loop. ``window``: keyword arguments for ``CallWindow``,
        which makes the calls.
        """
        self._surroundings = surroundings
        self._journal = journal
        self._partition = partition
        self._read_ahead = partition.read_ahead
        self._counters = partition.counters
        self._writer = partition.writer
        self._options = options
        self._source = source
        self._window_arguments = window
        self._loop = new_loop(options.loop_factory)
        self._executor = ThreadPoolExecutor(
            initializer=partition.threads.adopt, thread_name_prefix="rstreams-executor"
        )
        self._client = Client(options.using)
        self._context: Context | None = None
        """The ``contextvars`` context of the calls. It has the context variables that the user's
        context manager (``using``) has set."""
        self._calls_ended = CallsEnded(self._on_host_cancelled, loop=self._loop)
        self._host: asyncio.Task[None] | None = None
        """The asyncio task that opens and closes the user's context manager (``using``)."""
        self._host_opens = True
        self._host_cancelled_when = ""
        """Empty, until user code cancels ``_host``, the task that opens and closes the user's
        context manager. Then ``opened`` if the manager was being opened, ``used`` if later."""
        self._engine: CallEngine | None = None
        self._pump: CallPump | None = None
        self._watch = LoopWatch(self._loop, watched or options.fn, partition.counters)
        self._out = OutputRing(sink, self._wake)
        self._failure: BaseException | None = None
        """The exception that the main thread must raise to Spark."""
        self._finishing = False
        self._complete = False
        """Whether all output rows were passed to the main thread."""
        self._stopping = False
        self._stopped_at = 0.0
        self._hung_up = False
        """Whether Spark has closed its socket, because it needs no more rows."""
        self._ended = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._state = "waiting_upstream"
        self._since = time.monotonic()
        self._counters.concurrency = options.concurrency
        self._read_ahead.on_batch = self._wake
        partition.threads.on_failure = self._set_failure

    # -- methods of the main thread ----------------------------------------------------------------

    def outputs(self, first: list[Any]) -> Iterator[Any]:
        import pyarrow as pa

        with self._partition.running(first, self.stop):
            # The first call of pa.array imports pandas, which takes half a second. Let this happen
            # before the user's calls start: their time-outs might expire during the import.
            pa.array(())
            most = self._options.bounds.seconds
            late_at = math.inf if most is None else time.monotonic() + most + LAST_SECONDS
            self._partition.threads.start(self._run, "loop")
            while self._failure is None:
                try:
                    output = self._out.get(self._watch.seconds_until(late_at))
                except RingClosed:
                    break
                except TimeoutError:
                    if time.monotonic() < late_at:
                        self._watch.check()
                        continue
                    # The timer on the loop that enforces ``Bounds(seconds)`` is late, because a
                    # call of the user blocks the loop. So the main thread ends the stage.
                    self._set_failure(self._timeout_error())
                    break
                self._counters.emit(output.rows)
                lease = output.lease
                yield output.batch
                del output
                if lease is not None:
                    self._partition.budget.release(lease)
            if self._failure is not None:
                raise self._failure
            if self._hung_up:
                raise GeneratorExit("Spark has hung up")

    def stop(self) -> None:
        """Cancel the calls and end the stage; do nothing if the loop has ended. Thread-safe."""
        self._call_soon(self._stop)

    def _wake(self) -> None:
        self._call_soon(self._advance)

    def _call_soon(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # RuntimeError: the loop is closed already
            self._loop.call_soon_threadsafe(what, context=self._context)

    # -- the start and the end of the event loop ---------------------------------------------------

    def _run(self) -> None:
        """Run the event loop until the stage has ended. The loop's thread runs this method."""
        try:
            self._watch.begin()
            self._loop.set_default_executor(self._executor)
            self._loop.set_exception_handler(self._callback_failed)
            self._host = self._loop.create_task(self._open_and_close())
            self._host.add_done_callback(self._host_ended)
            self._run_until_ended()
            self._tidy_up()
        except BaseException as raised:
            self._set_failure(raised)
        finally:
            try:
                self._loop.close()
            except BaseException as raised:
                self._set_failure(raised)
            finally:
                if not self._complete and not self._hung_up:
                    early = RuntimeError(f"{self._counters.stage} ended before all rows had left")
                    self._set_failure(
                        self._host_cancelled_error() if self._host_cancelled_when else early
                    )
                self._out.close()

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception that a callback on the loop raised.

        If a callback of the stage raised it, fail the stage: otherwise the stage would never end.
        If a callback of the user raised it, let asyncio report it, as on any event loop.
        """
        raised = context.get("exception")
        if "handle" in context and raised is not None and raised_by_stage(raised):
            self._fail(raised)
            if self._host is not None and self._host.done():
                self._end()
        else:
            loop.default_exception_handler(context)

    def _run_until_ended(self) -> None:
        latest = math.inf
        while not self._ended:
            try:
                self._loop.run_forever()
            except BaseException as raised:
                # A callback raised an exception that ends run_forever, such as SystemExit. Run the
                # loop again, so that the stage can cancel its calls, and end in the usual way.
                latest = min(latest, time.monotonic() + STAGE_CLOSE_SECONDS)
                # Give up if callbacks still raise SystemExit or the like after STAGE_CLOSE_SECONDS.
                if time.monotonic() > latest:
                    raise
                # Delay _fail by one iteration of the loop. If a call raised the exception, _advance
                # runs first, and fails the stage with an error that names the key or batch.
                self._loop.call_soon(self._loop.call_soon, self._fail, raised)
            else:
                if not self._ended:
                    label = self._counters.stage
                    self._fail(RuntimeError(f"{label} stopped the loop, which is the stage's"))

    def _end(self) -> None:
        # Stop the loop only once. _tidy_up runs the loop again, and a second stop would interrupt
        # _tidy_up.
        if not self._ended:
            self._ended = True
            self._loop.stop()

    async def _open_and_close(self) -> None:
        """Open the journal and the user's context manager; when all calls have ended, close both.

        The journal is a set of files with the results of calls that earlier task attempts or jobs
        made. ``_host`` runs this coroutine: the same task must open and close the context manager.
        """
        failure: BaseException | None = None
        try:
            try:
                self._start_timers()
                if self._journal is not None:
                    await self._loop.run_in_executor(None, self._journal.open)
                opened = await self._client.open()
                if not self._stopping:
                    self._host_opens = False
                    self._make_engine(opened)
                    self._context = copy_context()
                    # Start the calls in a callback of the loop. ``CallWindow``, which starts them,
                    # raises an error if it is used in a task, and this coroutine runs in a task.
                    self._loop.call_soon(self._advance, context=self._context)
                    await self._calls_ended
            except asyncio.CancelledError:
                if self._host_opens and not self._stopping:
                    self._host_cancelled_when = "opened"
                raise
            finally:
                self._host_opens = False
                if self._journal is not None:
                    tidy = not self._stopping
                    await self._loop.run_in_executor(None, self._journal.close, tidy)
        except BaseException as raised:
            failure = raised
            raise
        finally:
            await self._client.close(self._failure or failure)

    def _start_timers(self) -> None:
        if (most := self._options.bounds.seconds) is not None:
            self._loop.call_later(most, lambda: self._fail(self._timeout_error()))
        if self._writer.is_enabled:
            self._report()
        if task_context() is not None and (hung_up := hang_up_check()) is not None:
            self._check_hang_up(hung_up)

    def _check_hang_up(self, hung_up: Callable[[], bool]) -> None:
        if hung_up():
            self._hung_up = True
            self._out.close()
            self._stop()
        else:
            self._loop.call_later(HANG_UP_SECONDS, self._check_hang_up, hung_up)

    def _on_host_cancelled(self) -> None:
        """Stop the calls, because the user's context manager (``using``) has cancelled its task.

        This is the task ``_host``, which has opened the context manager. For example, an
        ``asyncio.TaskGroup`` in the context manager cancels its task when a child task fails.
        """
        if not self._stopping:
            self._host_cancelled_when = "used"
            self._stop()

    def _host_cancelled_error(self) -> RuntimeError:
        when = self._host_cancelled_when or "closed"
        return RuntimeError(f"using: the context manager was cancelled while it was {when}")

    def _host_ended(self, host: asyncio.Task[None]) -> None:
        if not host.cancelled() and (failure := host.exception()) is not None:
            self._set_failure(failure)
        elif self._host_cancelled_when or (host.cancelled() and not self._stopping):
            self._set_failure(self._host_cancelled_error())
        self._end()

    def _make_engine(self, client: tuple[Any, ...]) -> None:
        options, journal = self._options, self._options.policy.journal
        set_run_digest(KeyDigest(options.label, "" if journal is None else journal.version))
        begin_holding(options.policy.limit, options.label)
        self._engine = CallEngine(
            options,
            self._loop,
            self._counters,
            replace(self._surroundings, client=client, tracer=self._writer.spans),
            self._advance,
            journal=self._journal,
            threads=None if options.is_async else self._partition.threads,
            capacity=options.window_rows,
            **self._window_arguments,
        )
        self._pump = CallPump(self._engine, self._source, self._out)

    def _timeout_error(self) -> TimeoutError:
        most = self._options.bounds.seconds
        return TimeoutError(f"the task took longer than Bounds(seconds={most:g})")

    def _fail(self, failure: BaseException) -> None:
        self._set_failure(failure)
        self._stop()

    def _set_failure(self, failure: BaseException) -> None:
        if self._failure is None:
            # Replace a GeneratorExit that the user's code raised. If the generator ``outputs``
            # raised a GeneratorExit, this would look as if Spark had closed the generator.
            if isinstance(failure, GeneratorExit):
                cause = failure
                failure = RuntimeError(f"{self._counters.stage}: GeneratorExit was raised in it")
                failure.__cause__ = cause
            self._failure = failure
            self._out.close()

    def _stop(self) -> None:
        """Cancel the calls. After their end, close the user's context manager and stop the loop."""
        if self._stopping:
            return
        self._stopping = True
        self._stopped_at = time.monotonic()
        # Set the timer first, so that the loop ends even if the next lines raise an exception.
        self._loop.call_later(STOP_SECONDS, self._end)
        self._read_ahead.cancel()
        if self._engine is not None:
            self._engine.cancel()
            # A call on a thread cannot be cancelled, and may block until the user's context manager
            # (such as a connection) is closed. So ``_finish`` closes it even if calls still run.
            if self._engine.uses_threads:
                self._loop.call_later(STOP_SECONDS / 2, self._finish)
        self._check_stopped()

    def _check_stopped(self) -> None:
        if self._engine is None or not self._engine.has_running_calls:
            self._finish()

    def _finish(self) -> None:
        """Let the task ``_host`` close the user's context manager, and end. Then the loop stops."""
        if self._finishing:
            return
        self._finishing = True
        if self._host is not None and self._host_opens:
            self._host.cancel()
        else:
            self._calls_ended.set_result(None)
        if self._engine is not None:
            self._engine.close_threads()

    def _tidy_up(self) -> None:
        """Cancel the asyncio tasks that remain on the loop; wait a limited time for their end."""
        if self._engine is not None:
            self._engine.end()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._finish()  # closes the user's context manager, even if cancelled calls still run
        since = self._stopped_at if self._stopping else time.monotonic()
        end_tasks(self._loop, lambda: max(LAST_SECONDS, since + STOP_SECONDS - time.monotonic()))

    # -- moving items into calls, and results to the output ----------------------------------------

    def _advance(self) -> None:
        engine, pump = self._engine, self._pump
        try:
            if self._stopping:
                self._check_stopped()
            elif engine is not None and pump is not None and not self._finishing:
                self._step(engine, pump)
        except BaseException as raised:
            failure = None if engine is None else engine.window.failure
            # ``_step`` starts calls by ``pump.move``. If a call fails at once, its exception may
            # propagate to here. Then ``_call_failed`` adds a note that names the key or batch.
            if failure is not None and failure[1] is raised:
                self._call_failed(*failure)
            self._fail(raised)
            if not isinstance(raised, Exception):
                raise

    def _step(self, engine: CallEngine, pump: CallPump) -> None:
        self._count_time()
        self._state = "waiting_function"
        if pump.move():
            self._loop.call_soon(self._advance)
        self._update_counters(engine, pump)
        if engine.window.failure is not None:
            self._fail(self._call_failed(*engine.window.failure))
        else:
            if self._source.ended and not pump.waiting_items:
                engine.flush()
            self._end_or_flush(pump)

    def _call_failed(self, item: Any, error: BaseException) -> BaseException:
        label = self._counters.stage
        self._counters.count_failure(error)
        if self._engine is not None:
            self._engine.handle_failure(error)
        # Replace a CancelledError that the user's function raised: it would look as if the stage
        # had cancelled the call.
        if isinstance(error, asyncio.CancelledError):
            cancelled = RuntimeError(f"{label} was cancelled, but not by the stage")
            cancelled.__cause__ = error
            error = cancelled
        return with_note(error, f"raised by {label} for {self._source.name_of(item)}")

    def _end_or_flush(self, pump: CallPump) -> None:
        """Emit an incomplete output batch now or later; end the stage after the last row.

        If no call is running, emit the incomplete batch now. Otherwise set a timer that emits it
        after ``FLUSH_SECONDS``, so that further results can fill the batch.
        """
        out = self._out
        if pump.is_idle:
            out.flush()
            if self._source.ended and not out.is_full and not out.can_flush:
                if self._read_ahead.error is not None:
                    self._fail(self._read_ahead.error)
                else:
                    out.check_end()
                    self._complete = True
                    self._finish()
                return
        if self._flush_timer is None and out.can_flush:
            self._flush_timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        if self._stopping or self._finishing:
            return
        try:
            self._out.flush()
        except Exception as raised:
            self._fail(raised)
        else:
            self._advance()

    # -- metrics -----------------------------------------------------------------------------------

    def _update_counters(self, engine: CallEngine, pump: CallPump) -> None:
        counters, window = self._counters, engine.window
        engine.count()
        if self._options.dedupe:
            counters.shared = pump.submitted - window.started
        counters.running = engine.running
        counters.max_running = engine.max_running
        counters.pending = window.pending
        counters.max_pending = window.max_pending
        if self._out.is_full:
            state = "waiting_downstream"
        elif not self._source.ended and not pump.waiting_items:
            state = "waiting_upstream"
        else:
            state = "waiting_function"
        self._count_time()
        self._state = state

    def _count_time(self) -> None:
        counters, now = self._counters, time.monotonic()
        setattr(counters, self._state, getattr(counters, self._state) + now - self._since)
        self._since = now

    def _report(self) -> None:
        engine, pump = self._engine, self._pump
        if engine is not None and pump is not None and not (self._stopping or self._finishing):
            self._update_counters(engine, pump)
        self._writer.write_if_due()
        self._loop.call_later(REPORT_SECONDS, self._report)
