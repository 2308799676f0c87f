"""Threads that all streams share, for work that timers start.

Such work may be slow, because it calls a subscriber, but it must not delay other work. So there are
as many threads as pieces of work: if all threads are busy, another thread is started. A thread
without work ends after a moment.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from rstreams_fast.runtime.at_exit import exiting, too_late
from rstreams_fast.runtime.executors import WhenDropped, Work, WorkDroppedError, process_id
from rstreams_fast.runtime.parking import new_event

__all__ = ["SharedThreads", "shared_threads"]

#: Seconds after which an idle thread ends. Work that comes more often starts no new thread.
THREAD_LINGER: Final = 0.1

_numbers = itertools.count(1)


class SharedThreads:
    """A resource (see ``runtime.executors``) for all streams of the process. It is never closed."""

    # The work is not in a SimpleQueue: before CPython 3.13 its get(timeout) may wait for ever, if
    # the thread wakes for an item that another thread took, just when the time-out is over.

    def __init__(self, linger: float = THREAD_LINGER) -> None:
        self._linger = linger
        self._works: deque[Work] = deque()
        self._waiting: list[threading.Lock] = []
        """An event for each sleeping thread."""
        # Reentrant: a finalizer may run on the thread that holds the lock.
        self._lock = threading.RLock()
        self._free = 0
        """The number of idle threads. A thread counts itself when it begins, because a caller that
        is interrupted while it starts a thread does not know whether the thread runs."""
        self.pid = process_id()

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        """Have ``work`` called soon on a shared thread.

        Raises ``RuntimeError`` if no thread can be started; ``WorkDroppedError`` if the reason is
        that the interpreter exits.
        """
        with self._lock:
            if self._free <= len(self._works):
                self._start_thread()
            self._works.append(work)
            if self._waiting:
                self._waiting.pop().release()

    def _start_thread(self) -> None:
        name = f"rstreams-fast-shared-{next(_numbers)}"
        try:
            threading.Thread(target=self._work_off, name=name, daemon=too_late()).start()
        except RuntimeError as refused:
            if exiting():
                raise WorkDroppedError("the interpreter exits: no thread can start") from refused
            raise

    def close(self) -> None:
        """Do nothing: the threads end when they are idle."""

    def _work_off(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work

    def _next(self) -> Work | None:
        """Return the next work; ``None`` if the thread was idle for long enough to end."""
        with self._lock:
            self._free += 1
        while True:
            with self._lock:
                if self._works:
                    self._free -= 1
                    return self._works.popleft()
                self._waiting.append(news := new_event())
            if not news.acquire(timeout=self._linger):
                # ``remove`` raises ValueError if execute() has just taken the event out: go on.
                with self._lock, suppress(ValueError):
                    self._waiting.remove(news)
                    self._free -= 1
                    return None


_shared = SharedThreads()


def shared_threads() -> SharedThreads:
    """Return the shared threads of this process. A forked child gets new ones."""
    global _shared  # noqa: PLW0603
    if _shared.pid != process_id():
        _shared = SharedThreads()
    return _shared
