"""Timers: they call functions (*work*) at a later time. An *alarm* is one planned call.

All streams share the thread of one timer. So the work of an alarm must be short, and must not be
user code. Longer work must be handed to another thread.

A cancelled alarm drops its work at once. But it stays in the queue until its time comes, or until
the queue has grown to ``_sweep_at`` alarms. So ``cancel`` takes little time. The queue is at most a
few times longer than the number of pending alarms.
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

#: Seconds without alarms after which the timer's thread ends. The thread does not end at once, or a
#: stream that sets and cancels one alarm after another would start a thread for each alarm.
IDLE_SECONDS: Final = 0.1

#: The length at which the queue first removes its cancelled alarms. It removes them again when it
#: is twice as long as after the last removal.
SWEEP_AT: Final = 64


class Alarm(Protocol):
    """A planned call, which can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call. Any thread may do this, any number of times. Never blocks.

        References to the work are dropped at once. Work that has begun goes on.
        """
        ...


class Timer(Protocol):
    """A clock that calls functions later. Any thread may use it. The functions may use it, too."""

    def now(self) -> float:
        """Return the time in seconds, from an arbitrary start. The time never goes back."""
        ...

    def call_later(
        self, seconds: float, work: Work, when_dropped: WhenDropped | None = None, /
    ) -> Alarm:
        """Have ``work()`` called once, ``seconds`` (>= 0) from now or a little later.

        ``call_later`` returns before ``work`` is called. The timer makes one call at a time, in
        order of time. It reports exceptions of ``work`` to ``on_dropped_error``. ``call_later``
        raises ``WorkDroppedError`` if the timer is closed. If the timer is closed later, but before
        it has called ``work``, it calls ``when_dropped`` instead.
        """
        ...


def runs_slow_work(timer: Timer | None) -> bool:
    """Whether ``timer`` may itself run slow work of streams, such as calls of subscribers."""
    return getattr(timer, "runs_slow_work", False) is True


def check_timer(timer: T) -> T:
    """Return ``timer``; raise a ``TypeError`` if it is neither a timer nor ``None``."""
    for method in ("now", "call_later"):
        if timer is not None and not callable(getattr(timer, method, None)):
            raise TypeError(
                "timer must have the methods now and call_later, or be None (the timer of this "
                f"process), got {type(timer).__name__}"
            )
    return timer


class _Alarm:
    """A planned call. The timer makes the call only if ``take`` comes before ``cancel``."""

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
    """Alarms in order of time.

    Any thread may call ``count_cancelled`` and read ``pending``. The other methods may be called by
    one thread at a time. But a signal handler or a finalizer on that thread may add an alarm while
    a method runs. So each method must work even if an alarm is added between any two of its steps.
    """

    __slots__ = ("_heap", "_numbers", "_on_empty", "_pending", "_sweep_at")

    def __init__(self, on_empty: Callable[[], object]) -> None:
        # The heap holds tuples, because comparing tuples runs no Python code. So no signal handler
        # or finalizer runs while heapq changes the heap.
        self._heap: list[tuple[float, int, _Alarm]] = []
        self._numbers = itertools.count()  # keeps alarms of the same time in order
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
        # If a signal handler or finalizer has added an alarm meanwhile, the new list lacks this
        # alarm. Then keep the old heap.
        if self._heap is heap and len(heap) == count:
            self._heap = pending
            self._sweep_at = max(SWEEP_AT, 2 * len(pending))

    def count_cancelled(self) -> None:
        if self._pending.fulfil(1) == 0:
            self._on_empty()

    def next_due(self) -> float:
        """Return the time of the next pending alarm. Infinity if no alarm is pending."""
        while self._heap and not (first := self._heap[0])[2].pending:
            if self._heap[0] is first:
                heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take(self, until: float) -> _Alarm | None:
        """Remove and return the next pending alarm, if its time is ``until`` or earlier.

        Otherwise return ``None``. The caller must run the alarm.
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


# -- the timer's thread ----------------------------------------------------------------------------

_timers: weakref.WeakSet[_TimerThread] = weakref.WeakSet()


def _close_timers() -> None:
    for timer in list(_timers):
        timer.close()


class _TimerThread:
    """The queue of alarms and the thread that runs the alarms. A forked child gets a new object."""

    def __init__(self) -> None:
        self.pid = process_id()
        self.queue = _Queue(self._on_empty)
        # The lock is reentrant: a finalizer that takes it may run on the thread that holds it.
        self._lock = threading.RLock()
        self._wake_event = new_event()
        self._thread: threading.Thread | None = None
        self._wakes_at = -math.inf  # the time at which the thread's present sleep ends
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
            # This is a forked child. The thread exists only in the parent, and the lock may be
            # locked for ever, because another thread may have held it at the fork.
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
            # If start() raised a KeyboardInterrupt, the new thread may be running nevertheless. The
            # new thread ends as soon as it sees that self._thread is another thread or None.
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
                        self._start()  # an exception ended this thread, but alarms are pending

    def _run_due_alarms(self) -> float | None:
        """Run all due alarms; return the seconds to sleep, or ``None`` to end the thread."""
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
            # The queue was empty a moment ago, and may soon be empty again, if the stream cancels
            # this alarm, too. Then this thread must end after about IDLE_SECONDS. So it sleeps no
            # longer than that. Otherwise each cancel of the last alarm would have to wake it.
            if was_empty:
                due = min(due, now + IDLE_SECONDS)
        elif self._ends_at < math.inf:
            due = self._ends_at
            if due <= now:
                self._thread = None  # so that the next alarm starts another thread
                return None
        else:
            due = self._ends_at = now + IDLE_SECONDS
        self._wakes_at = due
        return due - now


class ThreadTimer:
    """A timer with its own thread, which the first alarm starts.

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
            # This is a forked child: start a new thread. If two threads do so at the same time, the
            # child gets two timer threads, which does no harm.
            thread = self._timer_thread = _TimerThread()
        return thread.add(time.monotonic() + seconds, work, when_dropped)

    @property
    def pending(self) -> int:
        """The number of alarms that are set, and were neither run nor cancelled."""
        return self._timer_thread.queue.pending


_default: Final = ThreadTimer()


def default_timer() -> Timer:
    """Return the timer that all streams of this process share."""
    return _default


# -- a manual clock --------------------------------------------------------------------------------


class ManualTimer:
    """A timer for tests. Its clock starts at 0, and moves only when ``advance`` is called.

    Pass it as the argument ``timer`` to an operator that uses a clock. Before ``advance`` returns,
    it does all work that has become due, such as delivering the elements of ``interval``. Any
    thread may use it.

    ```python
    import rstreams_fast as rsf

    timer, seen = rsf.ManualTimer(), []
    run = rsf.interval(60, timer=timer).for_each(seen.append)
    timer.advance(120)
    print(seen)  # [0, 1]
    run.cancel()
    ```
    """

    #: The work of this timer's alarms may be slow, because only the test waits for it.
    runs_slow_work = True

    def __init__(self) -> None:
        self._now = 0.0
        self._lock = threading.RLock()
        self._queue = _Queue(lambda: None)
        self._moving = threading.Lock()

    def now(self) -> float:
        """Return the time to which the clock was moved, in seconds."""
        return self._now

    def call_later(
        self, seconds: float, work: Work, when_dropped: WhenDropped | None = None, /
    ) -> Alarm:
        """Have ``advance`` call ``work()`` once it has moved the clock by ``seconds`` from now.

        See ``Timer.call_later``.
        """
        seconds = check_seconds("seconds", seconds)
        with self._lock:
            return self._queue.add(self._now + seconds, work, when_dropped)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by ``seconds``. Do all work that becomes due, on this thread.

        While a piece of work runs, ``now`` returns the time for which the work was planned.

        Args:
            seconds: A finite number >= 0.

        Raises:
            RuntimeError: Another call of ``advance`` is running, on another thread or on this one,
                if work that it does calls ``advance``.
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
                    continue  # the due alarm was cancelled after next_due() had seen it
                _run(alarm)
        finally:
            self._moving.release()

    @property
    def pending(self) -> int:
        """The number of alarms that are set, and were neither run nor cancelled."""
        return self._queue.pending
