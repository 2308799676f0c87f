"""The threads of a stage: few, and none that outlives its task."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

__all__ = ["CLOSE_SECONDS", "ThreadGroup"]

CLOSE_SECONDS: Final = 2.0
"""How long closing waits for the stage's threads."""

STACK_BYTES: Final = 1 << 20
"""Stack of a thread where the worker's memory is limited: an eighth of the default."""

M_ARENA_MAX: Final = -8
"""Of glibc's ``malloc.h``."""

_OF_STREAMS: Final = "rstreams-fast-"
"""What the names of the threads that streams start begin with."""

_TIMER: Final = "rstreams-fast-timer"
"""The one of them that is no stream's own; it ends by itself."""

_stack_size_lock = threading.Lock()


def _stack_bytes() -> int:
    """Return how large stacks are to be; 0: as the system has them, like that of the main thread.

    Where the memory of a worker is limited (``spark.executor.pyspark.memory``), what is reserved
    counts: stacks, and glibc's heaps for a thread each. Elsewhere a function may be as deep in
    itself as where Spark calls it: Python's limit of 1 000 calls takes more than ``STACK_BYTES``
    where each goes through ``sorted(key=...)``.
    """
    try:
        import resource
    except ImportError:  # Windows
        return 0
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return 0
    _keep_to_one_heap()
    return STACK_BYTES


@functools.cache
def _keep_to_one_heap() -> None:
    """Let threads share a heap: glibc reserves 64 MiB for each that has one of its own."""
    with contextlib.suppress(ImportError, OSError, AttributeError):  # not glibc
        import ctypes

        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread in a copy of the caller's context."""
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(target,), name=name, daemon=True)
    with _stack_size_lock:
        before = threading.stack_size(_stack_bytes())
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


class ThreadGroup:
    """Starts the threads of one partition, and waits for their end. Any thread may call."""

    def __init__(self) -> None:
        self.on_failure: Callable[[BaseException], object] = lambda _: None
        """Called by a thread with what left its target: nobody may wait for that thread."""
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self, target: Callable[[], object], name: str) -> None:
        """Start a thread of the group."""
        thread = _start_thread(functools.partial(self._run, target), f"rstreams-{name}")
        with self._lock:
            self._threads.append(thread)

    def _run(self, target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as raised:
            self.on_failure(raised)

    def adopt(self) -> None:
        """Count the calling thread in: the initializer of somebody else's executor."""
        with self._lock:
            self._threads.append(threading.current_thread())

    def adopt_streams(self, before: Collection[threading.Thread]) -> None:
        """Count in the threads that streams have started, other than those of ``before``."""
        with self._lock:
            self._threads.extend(
                thread
                for thread in threading.enumerate()
                if thread.name.startswith(_OF_STREAMS)
                and thread.name != _TIMER
                and thread not in before
            )

    def join(self, seconds: float) -> list[str]:
        """Wait for the threads to end, at most about ``seconds``; return the names of the rest."""
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]
