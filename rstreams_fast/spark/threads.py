"""The threads of a stage: few, with small stacks, and none that outlives its task."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final

__all__ = ["CLOSE_SECONDS", "Crew", "small_stack_thread"]

CLOSE_SECONDS: Final = 2.0
"""How long closing waits for the stage's threads."""

STACK_BYTES: Final = 1 << 20
"""Stack of a stage's thread: enough for Python code and C libraries, an eighth of the default."""

_OF_STREAMS: Final = "rstreams-fast-"
"""What the names of the threads that streams start begin with."""

_TIMER: Final = "rstreams-fast-timer"
"""The one of them that is no stream's own; it ends by itself."""

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

    Made by the main thread in the stage's generator, so that it can find the worker it runs in.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._receiver = _receiver_of_worker()

    def start(self, target: Callable[[], object], name: str) -> None:
        """Start a thread of the crew. Any thread may call."""
        thread = small_stack_thread(target, f"rstreams-{name}")
        with self._lock:
            self._threads.append(thread)

    def adopt(self) -> None:
        """Count the calling thread in: the initializer of an executor of somebody else's."""
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

    def __len__(self) -> int:
        """How many threads were started."""
        return len(self._threads)

    def join(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait for the threads to end, at most about ``seconds``; ``False`` if one did not.

        Then the worker is marked, and Spark discards it after this task: what is left behind, such
        as a reader that waits for an upstream which says nothing, never meets another task.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        ended = not any(thread.is_alive() for thread in threads)
        if not ended:
            discard_worker(self._receiver)
        return ended


def _receiver_of_worker() -> Any:
    """Return what receives Spark's messages in this PySpark worker, if this is one.

    ``pyspark.worker.invoke_udf(message_receiver, outfile)`` is at the bottom of the main thread's
    stack. In another process (a unit test) there is none, and nobody to keep from being reused.
    """
    frame = sys._getframe()  # the stack is the only way to it
    while frame is not None:
        if frame.f_globals.get("__name__") == "pyspark.worker":
            receiver = frame.f_locals.get("message_receiver")
            if receiver is not None:
                return receiver
        frame = frame.f_back  # type: ignore[assignment]
    return None


def discard_worker(receiver: Any) -> None:
    """Let the worker's protocol with Spark end with "do not use me again".

    After a task the worker asks its receiver for Spark's finish signal. A receiver which is not in
    the state for that raises, and the worker then says that it cannot be reused, and exits. The
    task itself is not touched.
    """
    if receiver is not None:
        receiver._state = None
