"""``ThreadGroup``: the threads of a partition, which end with the Spark task."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

__all__ = ["STAGE_CLOSE_SECONDS", "ThreadGroup"]

STAGE_CLOSE_SECONDS: Final = 2.0
"""How long, in seconds, the end of a stage (such as ``rs.lookup``) waits for its threads."""

STACK_BYTES: Final = 1 << 20
"""The stack size of a thread in bytes if the worker's memory is limited: an eighth of the usual
default."""

M_ARENA_MAX: Final = -8
"""``M_ARENA_MAX`` of glibc's ``malloc.h``: the ``mallopt`` option for the number of heaps."""

_STREAM_PREFIX: Final = "rstreams-fast-"
"""The prefix of the names of all threads that streams start."""

_TIMER_NAME: Final = "rstreams-fast-timer"
"""The name of the timer thread. It has the prefix of stream threads, but the timer thread belongs
to no stream, and ends by itself."""

_stack_size_lock = threading.Lock()


def _stack_bytes() -> int:
    """Return the stack size for new threads in bytes; 0: the system's default.

    If ``spark.executor.pyspark.memory`` limits the worker's memory, the limit counts reserved
    memory: stacks, and the heap that glibc reserves for each thread. So stacks are small then.
    Without a limit the default remains, so that a user's function can recurse as deeply as on the
    main thread. 1 000 nested calls through ``sorted(key=...)`` need more than ``STACK_BYTES``.
    """
    try:
        import resource
    except ImportError:  # Windows has no module ``resource``
        return 0
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return 0
    _keep_to_one_heap()
    return STACK_BYTES


@functools.cache
def _keep_to_one_heap() -> None:
    """Make all threads share one heap. Otherwise glibc reserves 64 MiB for each thread's heap."""
    # These errors mean that the C library is not glibc. Then there is nothing to do.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread that calls ``target`` in a copy of the caller's context."""
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
    """Starts the threads of one partition, and waits until they have ended. Thread-safe."""

    def __init__(self) -> None:
        self.on_failure: Callable[[BaseException], object] = lambda _: None
        """A thread calls this function with the exception that its ``target`` has raised."""
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self, target: Callable[[], object], name: str) -> None:
        thread = start_thread(functools.partial(self._run, target), f"rstreams-{name}")
        with self._lock:
            self._threads.append(thread)

    def _run(self, target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as raised:
            self.on_failure(raised)

    def adopt(self) -> None:
        """Add the calling thread to the group. Threads of the loop's executor call this first."""
        with self._lock:
            self._threads.append(threading.current_thread())

    def adopt_streams(self, before: Collection[threading.Thread]) -> None:
        """Add all running threads that streams have started, except the threads in ``before``."""
        with self._lock:
            self._threads.extend(
                thread
                for thread in threading.enumerate()
                if thread.name.startswith(_STREAM_PREFIX)
                and thread.name != _TIMER_NAME
                and thread not in before
            )

    def join(self, seconds: float) -> list[str]:
        """Wait up to ``seconds`` for the threads; return the names of threads still running."""
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]
