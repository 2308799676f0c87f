"""Threads for work that comes by the clock: as many as there is work at once, not one a subscriber.

A piece of work may be slow, as it calls a subscriber, and keeps nobody else's from running: where
all threads are at work, another one is started. One that finds nothing to do stays for a moment.
"""

from __future__ import annotations

import itertools
import threading
from queue import Empty, SimpleQueue
from typing import Final

from rstreams_fast.runtime.at_exit import exiting, too_late
from rstreams_fast.runtime.executors import WhenDropped, Work, WorkDroppedError, process_id

__all__ = ["SharedThreads", "shared_threads"]

#: Seconds that a thread stays when nothing is to be done, so that ticks find it there.
LINGER: Final = 0.1

_numbers = itertools.count(1)


class SharedThreads:
    """A resource (see ``executors``) that belongs to the process; ``close`` has no effect."""

    def __init__(self) -> None:
        self._works: SimpleQueue[Work] = SimpleQueue()
        self._lock = threading.RLock()  # reentrant, for the collector may run anything anywhere
        # Threads that wait, less the works that are left for them. A thread counts itself in when
        # it begins: whether it does is not known to who is interrupted as it starts one.
        self._idle = 0
        self.pid = process_id()

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        """Run ``work`` soon. ``RuntimeError`` if a thread is needed and none is to be had;
        ``WorkDroppedError`` if that is so because the interpreter exits.
        """
        with self._lock:
            if self._idle <= 0:
                self._start_thread()
            self._idle -= 1
            try:
                self._works.put(work)
            except BaseException:  # Ctrl-C: a thread must not wait for this for ever
                self._idle += 1
                raise

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
        with self._lock:
            self._idle += 1
        while True:
            try:
                work = self._works.get(timeout=LINGER)
            except Empty:
                with self._lock:
                    if self._idle <= 0:  # a work is being left for this thread
                        continue
                    self._idle -= 1
                    return
            work()
            del work
            with self._lock:
                self._idle += 1


_shared = SharedThreads()


def shared_threads() -> SharedThreads:
    """Return the threads of this process; those of a parent stayed there."""
    global _shared  # noqa: PLW0603
    if _shared.pid != process_id():
        _shared = SharedThreads()
    return _shared
