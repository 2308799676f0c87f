"""Makes overlapping calls of UDFs, on threads or an event loop, and yields the results in order."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.engine import CallEngine, Surroundings
from rstreams_fast.calls.pump import CallPump
from rstreams_fast.calls.settings import CallSettings, PolicySettings
from rstreams_fast.calls.thread_group import STAGE_CLOSE_SECONDS, ThreadGroup
from rstreams_fast.calls.threads import CallThreads
from rstreams_fast.core import CallWindow
from rstreams_fast.spark.daemon.admission import LARGE_RESULT, NEVER_LARGE, Abandoned, Admission
from rstreams_fast.spark.daemon.steps import drive
from rstreams_fast.spark.daemon.task_metrics import TaskMetrics
from rstreams_fast.spark.worker.event_loops import end_tasks

__all__ = [
    "CallSubmitter",
    "LoopCalls",
    "ThreadCalls",
    "UdfCall",
    "batches_in_order",
    "rows_in_order",
]

CALLS_PER_TURN = 1024
"""The most calls that the event loop takes from the queue of submitted calls in one step."""

NO_POLICY = PolicySettings()
"""An empty policy: the daemon adds no policy to calls. The user's function may have its own."""

BATCH_GRACE_SECONDS = 0.5
"""After a stop the main thread waits this many seconds longer for a batch than for a single call.

In this time the batch's thread can report the exception of its calls."""


class UdfCall:
    """A call of a UDF, and later its outcome. At most one thread may wait for the outcome."""

    __slots__ = ("admission", "args", "done", "failure", "fn", "number", "result", "size", "waiter")

    def __init__(self, fn: Callable[..., Any], args: Any, admission: Admission) -> None:
        self.fn = fn
        self.args = args
        self.admission = admission
        #: The number of the call in its task, in the order of submission. The first number is 1.
        self.number = next(admission.numbers)
        self.done = False
        self.result: Any = None
        #: The bytes of the result, if ``Admission`` counts them; else 0.
        self.size = 0
        self.failure: BaseException | None = None
        self.waiter: Any = None

    def run(self) -> None:
        """Call the UDF on the calling thread; abandon the call if it must not start."""
        if self.admission.attention and not self.admission.may_start(self):
            self.abandon()
            return
        try:
            self.result = self.fn(*self.args)
        except BaseException as raised:
            # Store any exception. ``outcome`` raises it when the main thread reaches this row.
            self.failure = raised
        self.end()

    def end(self) -> None:
        """Make the outcome visible to other threads, and wake the thread that waits for it."""
        if self.failure is not None:
            self.admission.stop(self)
        elif (kind := type(self.result)) not in NEVER_LARGE and (
            # A character takes up to 4 bytes, so a str of LARGE_RESULT // 4 characters is small.
            kind is not str or len(self.result) > LARGE_RESULT // 4
        ):
            self.admission.count_result(self)
        # Set ``done`` before reading ``waiter``. The waiting thread sets ``waiter`` before it reads
        # ``done``. So either it sees ``done``, or this thread sees ``waiter`` and wakes it.
        self.done = True
        waiter = self.waiter
        if waiter is not None:
            # RuntimeError: the lock was released already, so the waiting thread wakes anyway.
            with contextlib.suppress(RuntimeError):
                waiter.release()

    def abandon(self) -> None:
        """End the call with the exception ``Abandoned``: the task ends before the call is made."""
        self.failure = Abandoned()
        self.end()

    def outcome(self) -> Any:
        """Wait until the call has ended. Return its result, or raise its exception.

        Raises ``Abandoned`` if the call has not ended ``STAGE_CLOSE_SECONDS`` after the task was
        stopped.
        """
        if not self.done:
            self.admission.wait_for_end(self)
        if self.failure is not None:
            raise self.failure
        if not self.done:
            raise Abandoned
        if self.size:
            self.admission.release_result(self)
        return self.result


class CallSubmitter(Protocol):
    """Makes calls of UDFs: on threads (``ThreadCalls``) or on an event loop (``LoopCalls``)."""

    def submit(self, fn: Callable[..., Any], args: Any) -> UdfCall:
        """Queue a call of ``fn`` behind the calls submitted before. Thread-safe."""

    def close(self) -> None:
        """Start no further calls, and let the threads end. Do not wait for their end."""

    def join(self) -> None:
        """Wait until the threads have ended, but at most ``STAGE_CLOSE_SECONDS``."""


class ThreadCalls:
    """Makes calls in the order of submission, on up to ``size`` threads, started as needed."""

    def __init__(
        self, size: int, name: str, admission: Admission, metrics: TaskMetrics | None = None
    ) -> None:
        self._admission = admission
        self._group = ThreadGroup()
        make = UdfCall.run if metrics is None else metrics.run
        self._threads = CallThreads(make, UdfCall.abandon, size, self._group.start, name)

    def submit(self, fn: Callable[..., Any], args: Any) -> UdfCall:
        """Queue a call. The caller bounds the number of calls: the queue has no bound."""
        call = UdfCall(fn, args, self._admission)
        self._threads.put(call, call.number)
        return call

    def close(self) -> None:
        self._threads.close()

    def join(self) -> None:
        self._group.join(STAGE_CLOSE_SECONDS)


class LoopCalls:
    """Makes calls of async functions on an event loop with its own thread.

    A ``CallPump`` on the loop starts the calls. For it, this object is the source of the calls and
    the sink of their results.
    """

    room = CALLS_PER_TURN

    def __init__(
        self,
        concurrency: int,
        capacity: int,
        admission: Admission,
        metrics: TaskMetrics | None = None,
    ) -> None:
        self._settings = CallSettings(
            drive if metrics is None else metrics.drive, NO_POLICY, concurrency
        )
        self._admission = admission
        self._group = ThreadGroup()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: CallEngine
        self._pump: CallPump
        self.most_pending = capacity
        self._waiting: deque[UdfCall] = deque()
        self._given_count = 0
        self._last_given: deque[UdfCall] = deque(maxlen=capacity + CALLS_PER_TURN)
        """The latest calls that the ``CallPump`` has taken. ``_stop`` abandons those not begun."""
        self._notified = False
        self._closed = False
        self._ended = False

    def submit(self, fn: Callable[..., Any], args: Any) -> UdfCall:
        """Queue a call. The caller bounds the number of calls: the queue has no bound."""
        call = UdfCall(fn, args, self._admission)
        if self._loop is None:
            self._start()
        self._waiting.append(call)
        if not self._notified:
            self._notified = True
            self._call_soon(self._move_calls)
        return call

    def _start(self) -> None:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._engine = CallEngine(
                    self._settings,
                    loop,
                    CallCounts(),
                    Surroundings(),
                    self._move_calls,
                    capacity=self.most_pending,
                    ordered=False,
                )
                self._pump = CallPump(self._engine, self, self)
                self._group.start(self._run, "loop")
                self._loop = loop

    def _call_soon(self, callback: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # RuntimeError: the loop is closed already
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Cancel the running calls, start no further calls, and end the event loop."""
        self._closed = True
        self._call_soon(self._stop)

    def join(self) -> None:
        self._group.join(STAGE_CLOSE_SECONDS)

    # -- methods that run on the loop's thread -----------------------------------------------------

    def _run(self) -> None:
        with self._lock:  # wait until ``_start`` has set ``_loop``
            loop = self._loop
        assert loop is not None  # noqa: S101 - for the reader, and for mypy
        try:
            loop.run_forever()
            end_tasks(loop, lambda: STAGE_CLOSE_SECONDS / 16)
        finally:
            loop.close()

    def next(self, rows: int) -> list[UdfCall] | None:
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(len(waiting), rows))] or None

    def expect(self, calls: list[UdfCall]) -> list[UdfCall]:
        self._given_count += len(calls)
        self._last_given.extend(calls)
        return calls

    def take(self, window: CallWindow, most: int) -> int:
        # Drop the results that the window has collected: each ``UdfCall`` has its own outcome.
        return len(window.take(most))

    def _move_calls(self) -> None:
        self._notified = False
        if self._closed:
            self._check_stopped()
        elif self._pump.move():
            self._call_soon(self._move_calls)

    def _stop(self) -> None:
        self._engine.cancel()
        not_begun = self._given_count - self._engine.window.started
        for call in (*list(self._last_given)[len(self._last_given) - not_begun :], *self._waiting):
            call.abandon()
        self._waiting.clear()
        if self._loop is not None:
            self._loop.call_later(STAGE_CLOSE_SECONDS * 0.75, self._end)
        self._check_stopped()

    def _check_stopped(self) -> None:
        if not self._engine.has_running_calls:
            self._end()

    def _end(self) -> None:
        # Stop the loop only once. Then ``_run`` runs the loop again, to end its asyncio tasks, and
        # a second stop would interrupt this.
        if self._loop is not None and not self._ended:
            self._ended = True
            self._loop.stop()


def rows_in_order(rows: Iterable[Any], most: int, admission: Admission) -> Iterator[Any]:
    """Yield the results of ``rows`` in order. A row is a ``UdfCall``, or a tuple with such calls.

    Up to ``most`` rows are taken from ``rows`` in advance; fewer while the results in memory have
    reached their bound (``admission.full``). After a failure no further rows are taken.
    """
    pending: deque[Any] = deque()
    half = max(1, most // 2)
    for row in rows:
        pending.append(row)
        while (len(pending) >= most or (admission.full and pending)) and not admission.stopped:
            if admission.full:
                yield _pop_outcome(pending, admission)
                continue
            # Wait for the row in the middle, not for the first row: so this thread wakes only once
            # for half of the pending rows.
            for call in _calls_of(pending[half - 1]):
                admission.wait(call)
            if not admission.attention:
                for _ in range(half):
                    yield _pop_outcome(pending, admission)
        if admission.stopped:
            break
    while pending:
        yield _pop_outcome(pending, admission)
    if admission.stopped:
        raise admission.failure_among(())


def _calls_of(row: Any) -> list[UdfCall]:
    return [call for call in (row if type(row) is tuple else (row,)) if type(call) is UdfCall]


def _pop_outcome(pending: deque[Any], admission: Admission) -> Any:
    row = pending.popleft()
    try:
        if type(row) is UdfCall:
            return row.outcome()
        return tuple([call.outcome() if type(call) is UdfCall else call for call in row])
    except Abandoned:
        pass
    # Raise the user's exception outside the except clause: its __context__ must not be Abandoned.
    raise admission.failure_among(call for each in (row, *pending) for call in _calls_of(each))


def batches_in_order(
    calls: Iterable[tuple[UdfCall, int]], most: int, admission: Admission
) -> Iterator[Any]:
    """Yield the results of ``calls``, in order. Each call handles a batch, and returns a list.

    ``calls`` yields pairs of a call and its weight: the number of its rows, or 1. At least two
    calls may be pending, and more while the sum of their weights is less than ``most``. After a
    failure no further calls are taken.
    """
    pending: deque[tuple[UdfCall, int]] = deque()
    held = 0
    for call, rows in calls:
        pending.append((call, rows))
        held += rows
        while len(pending) > 1 and held >= most and not admission.stopped:
            first, first_rows = pending[0]
            admission.wait(first)
            if not first.done:
                continue
            pending.popleft()
            held -= first_rows
            yield from first.outcome()
        if admission.stopped:
            break
    while pending:
        first, _ = pending.popleft()
        admission.wait_for_end(first, BATCH_GRACE_SECONDS)
        try:
            results = first.outcome()
        except Abandoned:
            failed = admission.failure_among(call for call, _ in ((first, 0), *pending))
        else:
            yield from results
            continue
        raise failed
    if admission.stopped:
        raise admission.failure_among(())
