"""A pool of threads, shared by all streams, for the work of operators that use a timer.

Such work may be slow, because it calls subscribers, but it must not delay the work of other
streams. So no work waits for a busy thread: if all threads are busy, another thread is started. A
thread without work ends after ``THREAD_IDLE_SECONDS``.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from rstreams_fast.runtime.at_exit import is_exiting, must_be_daemon
from rstreams_fast.runtime.executors import WhenDropped, Work, WorkDroppedError, process_id
from rstreams_fast.runtime.parking import new_event

__all__ = ["SharedThreads", "shared_threads"]

#: Seconds after which an idle thread ends. During this time new work can use the idle thread.
THREAD_IDLE_SECONDS: Final = 0.1

_numbers = itertools.count(1)


class SharedThreads:
    """A resource that runs work on a pool of threads of unlimited size, shared by all streams.

    See ``runtime.executors`` for the interface of resources. The pool is never closed.
    """

    # The queue is a deque, not a SimpleQueue: before CPython 3.13, SimpleQueue.get(timeout=...) may
    # wait for ever if an item comes just at the time-out, and another thread takes it.

    def __init__(self, idle_seconds: float = THREAD_IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._queue: deque[Work] = deque()
        self._waiting: list[threading.Lock] = []
        """One locked lock for each sleeping thread. Releasing the lock wakes the thread."""
        # Reentrant: a finalizer may run on the thread that holds the lock, and take the lock, too.
        self._lock = threading.RLock()
        self._idle = 0
        """The number of idle threads.

        Each new thread increments this number itself. ``execute``, which starts the thread, cannot
        do so: if a signal handler raises an exception during the start, ``execute`` does not know
        whether the thread runs."""
        self.pid = process_id()

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        """Have ``work()`` called soon on a thread of the pool.

        If a new thread is needed, but cannot be started, raise a ``WorkDroppedError`` at
        interpreter exit, and otherwise a ``RuntimeError``.
        """
        with self._lock:
            if self._idle <= len(self._queue):
                self._start_thread()
            self._queue.append(work)
            if self._waiting:
                self._waiting.pop().release()

    def _start_thread(self) -> None:
        name = f"rstreams-fast-shared-{next(_numbers)}"
        try:
            threading.Thread(target=self._run_works, name=name, daemon=must_be_daemon()).start()
        except RuntimeError as refused:
            if is_exiting():
                raise WorkDroppedError("the interpreter exits: no thread can start") from refused
            raise

    def close(self) -> None:
        """Do nothing: each thread ends by itself when it has been idle for some time."""

    def _run_works(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work

    def _next(self) -> Work | None:
        """Wait for the next work and return it, or return ``None`` after ``idle_seconds``."""
        with self._lock:
            self._idle += 1
        while True:
            with self._lock:
                if self._queue:
                    self._idle -= 1
                    return self._queue.popleft()
                self._waiting.append(event := new_event())
            if not event.acquire(timeout=self._idle_seconds):
                # The wait has timed out. If execute() has released the lock ``event`` just after
                # that, it has also removed ``event`` from ``_waiting``, and ``remove`` raises a
                # ValueError. Then the queue has work, so stay in the loop.
                with self._lock, suppress(ValueError):
                    self._waiting.remove(event)
                    self._idle -= 1
                    return None


_shared = SharedThreads()


def shared_threads() -> SharedThreads:
    """Return the shared pool of threads of this process. A forked child gets a new pool."""
    global _shared  # noqa: PLW0603
    if _shared.pid != process_id():
        _shared = SharedThreads()
    return _shared
