"""Timers, which call functions (*work*) at a later time. An *alarm* is one planned call.

All streams share the thread of one timer. So the work of an alarm must be short, and must not call
user code. An operator with longer work must submit that work to another thread.

``cancel`` takes little time: it drops the work of the alarm immediately, but leaves the alarm in
the queue. The alarm leaves the queue when its time comes, or when the queue has grown to
``_sweep_at`` alarms. The queue is at most a few times longer than the number of pending alarms.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from rstreams_fast._checks import check_seconds
from rstreams_fast.core import DemandCounter, Latch
from rstreams_fast.errors import report_dropped
from rstreams_fast.runtime.at_exit import call_at_exit
from rstreams_fast.runtime.executors import WhenDropped, Work, WorkDroppedError, process_id
from rstreams_fast.runtime.parking import acquire, new_event

__all__ = [
    "Alarm",
    "ManualTimer",
    "ThreadTimer",
    "Timer",
    "check_timer",
    "default_timer",
    "runs_slow_work",
]

T = TypeVar("T")

#: Seconds without alarms after which the timer's thread ends. If the thread ended immediately, a
#: stream that sets and cancels one alarm after another would start a new thread for each alarm.
IDLE_SECONDS: Final = 0.1

#: The length at which a queue first removes its cancelled alarms. The queue removes cancelled
#: alarms again when it is twice as long as after the last removal.
SWEEP_AT: Final = 64


class Alarm(Protocol):
    """A planned call, which can be cancelled."""

    def cancel(self) -> None:
        """Cancel the planned call. Any thread may do this, any number of times. Never blocks.

        References to the work are dropped immediately. If the work is running already, it goes on.
        """
        ...


class Timer(Protocol):
    """A clock that calls functions later. Any thread, and these functions, may call its methods."""

    def now(self) -> float:
        """Return the time in seconds since an arbitrary start. The time never goes back."""
        ...

    def call_later(
        self, seconds: float, work: Work, when_dropped: WhenDropped | None = None, /
    ) -> Alarm:
        """Have ``work()`` called once, ``seconds`` (>= 0) from now or a little later.

        ``call_later`` returns before ``work`` is called. The timer makes one call at a time, in the
        order of their times. Exceptions of ``work`` go to ``on_dropped_error``. If the timer is
        closed, ``call_later`` raises ``WorkDroppedError``. If the timer is closed after
        ``call_later``, but before the call of ``work``, it calls ``when_dropped(error)`` instead.
        """
        ...


def runs_slow_work(timer: Timer | None) -> bool:
    """Return whether functions that ``timer`` calls may be slow, and may call subscribers.

    If not, they must pass such work to other threads. ``None`` means the default timer: ``False``.
    """
    return getattr(timer, "runs_slow_work", False) is True


def check_timer(timer: T) -> T:
    """Return ``timer``, or raise a ``TypeError`` if ``timer`` is neither a timer nor ``None``."""
    for method in ("now", "call_later"):
        if timer is not None and not callable(getattr(timer, method, None)):
            raise TypeError(
                "timer must have the methods now and call_later, or be None (the timer of this "
                f"process), got {type(timer).__name__}"
            )
    return timer


class _Alarm:
    """A planned call. ``take`` begins the call, and returns ``False`` if ``cancel`` came before."""

    __slots__ = ("_latch", "_queue", "when_dropped", "work")

    def __init__(self, queue: _Queue, work: Work, when_dropped: WhenDropped | None) -> None:
        self._latch = Latch()
        self._queue = queue
        self.work: Work | None = work
        self.when_dropped = when_dropped

    def cancel(self) -> None:
        if self._latch.win():
            self.work = self.when_dropped = None
            self._queue.count_cancelled()

    @property
    def pending(self) -> bool:
        return not self._latch.won

    def take(self) -> bool:
        return self._latch.win()


class _Queue:
    """The queue of a timer's alarms, in the order of their times.

    Any thread may call ``count_cancelled`` and read ``pending``. The other methods may be called by
    one thread at a time. But a signal handler or a finalizer may interrupt a method, and add an
    alarm on the same thread. So each method must work even if an alarm is added between two of its
    steps.
    """

    __slots__ = ("_heap", "_numbers", "_on_empty", "_pending", "_sweep_at")

    def __init__(self, on_empty: Callable[[], object]) -> None:
        # The items of the heap are tuples, because the comparison of these tuples runs no Python
        # code. So no signal handler or finalizer can run while heapq changes the heap.
        self._heap: list[tuple[float, int, _Alarm]] = []
        self._numbers = itertools.count()  # orders alarms that have the same time
        self._sweep_at = SWEEP_AT
        self._pending = DemandCounter()
        self._on_empty = on_empty

    @property
    def pending(self) -> int:
        return self._pending.value

    def add(self, due: float, work: Work, when_dropped: WhenDropped | None) -> _Alarm:
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        alarm = _Alarm(self, work, when_dropped)
        self._pending.request(1)
        heapq.heappush(self._heap, (due, next(self._numbers), alarm))
        return alarm

    def _sweep(self) -> None:
        heap, count = self._heap, len(self._heap)
        pending = [entry for entry in heap if entry[2].pending]
        heapq.heapify(pending)
        # ``pending`` is ``heap`` without the cancelled alarms. If a signal handler or finalizer has
        # added an alarm meanwhile, ``pending`` lacks it. Then keep the old heap.
        if self._heap is heap and len(heap) == count:
            self._heap = pending
            self._sweep_at = max(SWEEP_AT, 2 * len(pending))

    def count_cancelled(self) -> None:
        if self._pending.fulfil(1) == 0:
            self._on_empty()

    def next_due(self) -> float:
        """Return the time of the next pending alarm, or infinity if no alarm is pending."""
        while self._heap and not (first := self._heap[0])[2].pending:
            if self._heap[0] is first:
                heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take(self, until: float) -> _Alarm | None:
        """Remove and return the next pending alarm, if its time is not later than ``until``.

        Otherwise return ``None``. The caller must run the work of the returned alarm.
        """
        while self.next_due() <= until and self._heap:
            alarm = heapq.heappop(self._heap)[2]
            if alarm.take():
                self._pending.fulfil(1)
                return alarm
        return None


def _run(alarm: _Alarm) -> None:
    work, alarm.work, alarm.when_dropped = alarm.work, None, None
    try:
        if work is not None:
            work()
    except BaseException as raised:  # the timer's thread has no caller to receive the exception
        report_dropped(raised, "the work of an alarm raised")


def _drop(alarm: _Alarm) -> None:
    when_dropped, alarm.work, alarm.when_dropped = alarm.when_dropped, None, None
    if when_dropped is not None:
        try:
            when_dropped(WorkDroppedError("the interpreter is exiting: its timer is closed"))
        except Exception as raised:
            report_dropped(raised, "what was told that its alarm was dropped raised")


# -- the timer that streams use: a thread that sleeps until the next alarm -------------------------

_timers: weakref.WeakSet[_TimerThread] = weakref.WeakSet()


def _close_timers() -> None:
    for timer in list(_timers):
        timer.close()


class _TimerThread:
    """A queue of alarms, and the thread that runs their work. A forked child gets a new object."""

    def __init__(self) -> None:
        self.pid = process_id()
        self.queue = _Queue(self._on_empty)
        # Reentrant: a finalizer may run on the thread that holds the lock, and take the lock, too.
        self._lock = threading.RLock()
        self._wake_event = new_event()
        self._thread: threading.Thread | None = None
        self._wakes_at = -math.inf  # the time until which the thread sleeps now
        self._ends_at = math.inf
        self._was_empty = False
        self._closed = False

    def add(self, due: float, work: Work, when_dropped: WhenDropped | None) -> _Alarm:
        with self._lock:
            if self._closed:
                raise WorkDroppedError("the interpreter is exiting: its timer is closed")
            if self._thread is None:
                self._start()
            alarm = self.queue.add(due, work, when_dropped)
            if due < self._wakes_at:
                self._wake()
            return alarm

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._wake()

    def _on_empty(self) -> None:
        if self.pid != process_id():
            # This process is a forked child, without the timer's thread. Do not take the lock: if a
            # thread of the parent held it at the fork, it is never released in the child.
            return
        with self._lock:
            self._was_empty = True
            if self._wakes_at > time.monotonic() + IDLE_SECONDS:
                self._wake()

    def _wake(self) -> None:
        self._wakes_at = -math.inf
        if self._wake_event.locked():
            self._wake_event.release()

    def _start(self) -> None:
        daemon = not call_at_exit(_close_timers)
        thread = threading.Thread(target=self._main, name="rstreams-fast-timer", daemon=daemon)
        self._thread = thread
        try:
            thread.start()
        except BaseException:
            # If a KeyboardInterrupt has stopped Thread.start(), the new thread may be running. The
            # new thread ends as soon as it sees that self._thread is None or another thread.
            self._thread = None
            raise
        _timers.add(self)

    def _main(self) -> None:
        try:
            while (seconds := self._run_due_alarms()) is not None:
                acquire(self._wake_event, seconds)
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None
                    if self.queue.pending > 0 and not self._closed:
                        # An exception has ended this thread, but alarms are pending. So start a new
                        # thread for these alarms.
                        self._start()

    def _run_due_alarms(self) -> float | None:
        """Run the work of all due alarms.

        Return the seconds for which the thread must sleep, or ``None`` if the thread must end.
        """
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return None
                closed, now = self._closed, time.monotonic()
                alarm = self.queue.take(math.inf if closed else now)
                if alarm is None:
                    return None if closed else self._seconds_to_sleep(now)
            if closed:
                _drop(alarm)
            else:
                _run(alarm)

    def _seconds_to_sleep(self, now: float) -> float | None:
        due = self.queue.next_due()
        was_empty, self._was_empty = self._was_empty, False
        if due < math.inf:
            self._ends_at = math.inf
            # The last pending alarm was just cancelled, and the new alarm may soon be cancelled,
            # too. A cancel wakes a thread that sleeps for more than IDLE_SECONDS (_on_empty), so
            # that it can end. To avoid that, sleep for IDLE_SECONDS at most.
            if was_empty:
                due = min(due, now + IDLE_SECONDS)
        elif self._ends_at < math.inf:
            due = self._ends_at
            if due <= now:
                self._thread = None  # this thread ends, so the next alarm must start a new thread
                return None
        else:
            due = self._ends_at = now + IDLE_SECONDS
        self._wakes_at = due
        return due - now


class ThreadTimer:
    """A timer with its own thread, which the first alarm (planned call) starts.

    The thread sleeps until an alarm is due. It ends soon after the last alarm, or when the
    interpreter exits. A forked child starts its own thread. Alarms that were set before the fork
    run only in the parent.
    """

    def __init__(self) -> None:
        self._timer_thread = _TimerThread()

    now = staticmethod(time.monotonic)

    def call_later(
        self, seconds: float, work: Work, when_dropped: WhenDropped | None = None, /
    ) -> Alarm:
        """Have ``work()`` called on the timer's thread. See ``Timer.call_later``."""
        seconds = check_seconds("seconds", seconds)
        thread = self._timer_thread
        if thread.pid != process_id():
            # This process is a forked child, so start a new thread. Two threads may do so at the
            # same time. Then the child has two timer threads, which does no harm.
            thread = self._timer_thread = _TimerThread()
        return thread.add(time.monotonic() + seconds, work, when_dropped)

    @property
    def pending(self) -> int:
        """The number of alarms (planned calls) that were neither run nor cancelled yet."""
        return self._timer_thread.queue.pending


_default: Final = ThreadTimer()


def default_timer() -> Timer:
    """Return the timer that all streams of this process share."""
    return _default


# -- a timer for tests -----------------------------------------------------------------------------


class ManualTimer:
    """A timer for tests. Its clock starts at 0, and moves only when ``advance`` is called.

    Pass a ``ManualTimer`` as the argument ``timer`` to an operator that uses a clock. ``advance``
    runs all work that becomes due, such as delivering the elements of ``interval``, before it
    returns. Any thread may call any method.

    ```python
    import rstreams_fast as rsf

    timer, seen = rsf.ManualTimer(), []
    run = rsf.interval(60, timer=timer).for_each(seen.append)
    timer.advance(120)
    print(seen)  # [0, 1]
    run.cancel()
    ```
    """

    #: The work of alarms may be slow, because only the test that calls ``advance`` waits.
    runs_slow_work = True

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = threading.RLock()
        self._queue = _Queue(lambda: None)
        self._moving = threading.Lock()

    def now(self) -> float:
        """Return the time of the clock, in seconds. The clock starts at 0."""
        return self._now

    def call_later(
        self, seconds: float, work: Work, when_dropped: WhenDropped | None = None, /
    ) -> Alarm:
        """Have ``advance`` call ``work()`` when it has moved the clock by ``seconds`` from now.

        See ``Timer.call_later``.
        """
        seconds = check_seconds("seconds", seconds)
        with self._lock:
            return self._queue.add(self._now + seconds, work, when_dropped)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by ``seconds``, and run all work that becomes due on this thread.

        While ``work`` of ``call_later`` runs, ``now`` returns the time for which it was planned.

        Args:
            seconds: A number >= 0, at most ``threading.TIMEOUT_MAX``.

        Raises:
            RuntimeError: Another call of ``advance`` is running on another thread. Or a function
                that ``advance`` runs calls ``advance``.
        """
        seconds = check_seconds("seconds", seconds)
        if not self._moving.acquire(blocking=False):
            raise RuntimeError("advance() overlaps another one: the clock is being moved already")
        try:
            until = self._now + seconds
            while True:
                with self._lock:
                    due = self._queue.next_due()
                    self._now = max(self._now, min(due, until))
                    alarm = self._queue.take(self._now)
                if alarm is None:
                    if due > until:
                        return
                    continue  # the due alarm was cancelled between next_due() and take()
                _run(alarm)
        finally:
            self._moving.release()

    @property
    def pending(self) -> int:
        """The number of alarms (planned calls) that were neither run nor cancelled yet."""
        return self._queue.pending
