"""The threads of a stage: few, with small stacks, and none that outlives its task."""

from __future__ import annotations

import contextlib
import contextvars
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["CLOSE_SECONDS", "Crew", "small_stack_thread"]

CLOSE_SECONDS: Final = 2.0
"""How long closing waits for the stage's threads."""

AFTER_SHUTDOWN_SECONDS: Final = 0.5
"""How long it waits again after the worker's input was shut down."""

STACK_BYTES: Final = 1 << 20
"""Stack of a stage's thread: enough for Python code and C libraries, an eighth of the default."""

_stack_size_lock = threading.Lock()


def small_stack_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread with a small stack, in a copy of the caller's context.

    Where the memory of a worker is limited (``spark.executor.pyspark.memory``), reserved stacks
    count.
    """
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(target,), name=name, daemon=True)
    with _stack_size_lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


class Crew:
    """Starts the threads of one partition and sees to it that they end.

    Made by the main thread in the call of the stage's generator, so that it can find the worker's
    input.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._input = _worker_input()

    def start(self, target: Callable[[], object], name: str) -> None:
        """Start a thread of the crew. Any thread may call."""
        thread = small_stack_thread(target, f"rstreams-{name}")
        with self._lock:
            self._threads.append(thread)

    def adopt(self) -> None:
        """Count the calling thread in: the initializer of an executor of somebody else's."""
        with self._lock:
            self._threads.append(threading.current_thread())

    def __len__(self) -> int:
        """How many threads were started."""
        return len(self._threads)

    def join(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait for the threads to end, at most about ``seconds``; ``False`` if one did not.

        Then the worker's input is shut down. This wakes a reader that waits for an upstream which
        says nothing; and as the task cannot finish its protocol without input, Spark discards the
        worker: what is left behind never meets another task.
        """
        if self._join(seconds):
            return True
        if self._input is not None:
            shut_down_input(self._input)
            return self._join(AFTER_SHUTDOWN_SECONDS)
        return False

    def _join(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)


def _worker_input() -> int | None:
    """Return the file descriptor of the socket that this PySpark worker reads, if it is one.

    ``pyspark.worker.main(infile, outfile)`` is at the bottom of the main thread's stack. Elsewhere
    (a unit test, another version of PySpark) there is none, and nothing is shut down.
    """
    frame = sys._getframe()
    found: Any = None
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == "pyspark.worker":
            found = frame.f_locals.get("infile")
            break
        frame = frame.f_back  # type: ignore[assignment]
    try:
        return int(found.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def shut_down_input(descriptor: int) -> None:
    """Shut the reading half of the socket ``descriptor`` down; what is no socket is left alone."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RD)
