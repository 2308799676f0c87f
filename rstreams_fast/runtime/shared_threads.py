"""Threads for work that the clock brings: as many as there is work at once, not one a subscriber.

A piece of work may be slow, as it calls a subscriber, and keeps nobody else's from running: where
all threads are at work, another one is started. One that finds nothing to do stays for a moment.
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

#: Seconds that a thread stays when nothing is to be done, so that ticks find it there.
LINGER: Final = 0.1

_numbers = itertools.count(1)


class SharedThreads:
    """A resource (see ``executors``) that belongs to the process; ``close`` has no effect."""

    # A SimpleQueue would do, but that its get(timeout) can wait for ever in CPython before 3.13:
    # a thread is woken for what another thread has taken, just as its time is over.

    def __init__(self, linger: float = LINGER) -> None:
        self._linger = linger
        self._works: deque[Work] = deque()
        self._waiting: list[threading.Lock] = []  # an event for each thread that sleeps
        self._lock = threading.RLock()  # reentrant, for the collector may run anything anywhere
        # Threads that have nothing to do. One counts itself in when it begins: whether it does is
        # not known to a caller that is interrupted as it starts one.
        self._free = 0
        self.pid = process_id()

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        """Run ``work`` soon. ``RuntimeError`` if a thread is needed and none is to be had;
        ``WorkDroppedError`` if that is so because the interpreter exits.
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
        """Nothing: the threads end when there is nothing to do."""

    def _work_off(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work

    def _next(self) -> Work | None:
        """Return the next work; ``None`` if none comes for a while, and the thread is to end."""
        with self._lock:
            self._free += 1
        while True:
            with self._lock:
                if self._works:
                    self._free -= 1
                    return self._works.popleft()
                self._waiting.append(news := new_event())
            if not news.acquire(timeout=self._linger):
                with self._lock, suppress(ValueError):  # it has been woken just now
                    self._waiting.remove(news)
                    self._free -= 1
                    return None


_shared = SharedThreads()


def shared_threads() -> SharedThreads:
    """Return the threads of this process; those of a parent stayed there."""
    global _shared  # noqa: PLW0603
    if _shared.pid != process_id():
        _shared = SharedThreads()
    return _shared
