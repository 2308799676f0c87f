"""Threads that all streams share, for work that timers start.

Such work may be slow, because it calls a subscriber, but it must not delay other work. So no work
waits for a busy thread: if all threads are busy, another thread is started. A thread without work
ends after ``THREAD_IDLE_SECONDS``.
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

#: Seconds after which an idle thread ends. Work that comes before that needs no new thread.
THREAD_IDLE_SECONDS: Final = 0.1

_numbers = itertools.count(1)


class SharedThreads:
    """A resource (see ``runtime.executors``) for all streams of the process. It is never closed."""

    # Work is kept in a deque, not in a SimpleQueue. Before CPython 3.13, SimpleQueue.get(timeout)
    # may wait for ever. That happens if an item wakes the thread just when its time-out is over,
    # and another thread takes the item.

    def __init__(self, idle_seconds: float = THREAD_IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._queue: deque[Work] = deque()
        self._waiting: list[threading.Lock] = []
        """One event for each sleeping thread. Releasing the event wakes the thread."""
        # The lock is reentrant: a finalizer that takes it may run on the thread that holds it.
        self._lock = threading.RLock()
        self._idle = 0
        """The number of idle threads.

        A new thread increments the number itself. The code that starts the thread must not: if a
        signal handler raises an exception there, the code does not know whether the thread runs."""
        self.pid = process_id()

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        """Have ``work`` called soon on a shared thread.

        Raises ``WorkDroppedError`` if no thread can be started because the interpreter exits, and
        ``RuntimeError`` if no thread can be started for another reason.
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
        """Do nothing: the threads end when they are idle."""

    def _run_works(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work

    def _next(self) -> Work | None:
        """Wait for the next work, and return it. After ``idle_seconds`` without work: ``None``."""
        with self._lock:
            self._idle += 1
        while True:
            with self._lock:
                if self._queue:
                    self._idle -= 1
                    return self._queue.popleft()
                self._waiting.append(event := new_event())
            if not event.acquire(timeout=self._idle_seconds):
                # If execute() has just released ``event``, the event is no longer in the list, and
                # ``remove`` raises a ValueError. Then there is work: look at the queue again.
                with self._lock, suppress(ValueError):
                    self._waiting.remove(event)
                    self._idle -= 1
                    return None


_shared = SharedThreads()


def shared_threads() -> SharedThreads:
    """Return the shared threads of this process. A forked child gets new ones."""
    global _shared  # noqa: PLW0603
    if _shared.pid != process_id():
        _shared = SharedThreads()
    return _shared
