"""The resources that drains run on: a worker of one's own, a thread pool, an event loop, the
caller.

A resource takes work and runs it later, one piece after the other or several at once; it never
blocks whoever hands work over. What it refuses, or accepts and then drops, is made known.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "CALLER",
    "Resource",
    "Work",
    "WorkDropped",
    "check_executor",
    "describe_executor",
    "process_id",
    "resource",
]

CALLER: Final = "caller"
"""In place of an executor: whoever signals or requests does the work, one piece at a time."""

process_id = os.getpid
"""What a live object remembers and compares: in the child of a fork its threads are missing."""

Work = Callable[[], object]
WhenDropped = Callable[[BaseException], object]


class WorkDropped(RuntimeError):
    """An executor or event loop refused work, or accepted it and will never run it."""


class Resource(Protocol):
    """What can run work. Any thread may call any method."""

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        """Run ``work`` soon, on the resource.

        Raises if it is refused. Accepted and dropped later (a pool shut down with
        ``cancel_futures``, a loop closed): ``when_dropped`` is called instead.
        """
        ...

    def close(self) -> None:
        """End what the resource owns, after the work accepted so far. Never blocks."""
        ...


# -- a worker of one's own -------------------------------------------------------------------------

_numbers = itertools.count(1)
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_exit_hook = threading.Lock()


def _work_off(mailbox: SimpleQueue[Work | None]) -> None:
    # Knows the mailbox only, so that an abandoned worker can be collected, which stops this.
    while (work := mailbox.get()) is not None:
        try:
            work()
        finally:
            del work


def _close_workers() -> None:
    for worker in list(_workers):
        worker.close()


def _close_workers_at_exit() -> None:
    """Register, once, that workers still parked when the interpreter exits are sent home."""
    if _exit_hook.acquire(blocking=False):
        # Threads are joined before atexit callbacks run, hence threading's own list, as in
        # concurrent.futures; where there is none, the public one is the best there is.
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_close_workers)


class Worker:
    """One thread, started by the first piece of work, that ends when it is closed or collected."""

    def __init__(self, name: str) -> None:
        self._name = f"{name}-{next(_numbers)}"
        self._mailbox: SimpleQueue[Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        weakref.finalize(self, self._mailbox.put, None).atexit = False

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        """Queue ``work`` for the thread."""
        with self._lock:
            if self._closed:
                raise WorkDropped(f"the worker {self._name} is closed")
            if self._thread is None:
                self._start()
            self._mailbox.put(work)

    def _start(self) -> None:
        _close_workers_at_exit()
        thread = threading.Thread(
            target=_work_off, args=(self._mailbox,), name=self._name, daemon=False
        )
        try:
            thread.start()
        except BaseException:  # KeyboardInterrupt, say, when it runs already: send it home
            self._closed = True
            self._mailbox.put(None)
            raise
        self._thread = thread
        _workers.add(self)

    def close(self) -> None:
        """Let the thread end after what it has been given."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._mailbox.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end; ``False`` on time-out, or when called by the thread itself."""
        thread = self._thread
        if thread is threading.current_thread():
            return False
        if thread is not None:
            thread.join(timeout)
            return not thread.is_alive()
        return True


# -- somebody else's executor ----------------------------------------------------------------------


class _Trampoline(threading.local):
    """Work that was handed to the thread that is at work already: it waits, instead of nesting."""

    def __init__(self) -> None:
        self.queue: deque[Work] | None = None

    def run(self, work: Work) -> None:
        if self.queue is not None:
            self.queue.append(work)
            return
        self.queue = queue = deque((work,))
        del work
        try:
            while queue:
                queue.popleft()()
        finally:
            self.queue = None


_trampoline = _Trampoline()


class _OnExecutor:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        future = self._executor.submit(_trampoline.run, work)
        del work

        def look(future: Future[Any]) -> None:
            if future.cancelled():
                when_dropped(WorkDropped("the executor cancelled work that it had accepted"))

        future.add_done_callback(look)

    def close(self) -> None:
        """The executor is its owner's to shut down."""


class _OnCaller:
    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        _trampoline.run(work)

    def close(self) -> None:
        """There is nothing to end."""


# -- an event loop ---------------------------------------------------------------------------------


class _LoopWork:
    """Work in a loop's queue; if that queue is thrown away, so is this, and says so."""

    __slots__ = ("_when_dropped", "_work")

    def __init__(self, work: Work, when_dropped: WhenDropped) -> None:
        self._work: Work | None = work
        self._when_dropped = when_dropped

    def __call__(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()

    def forget(self) -> None:
        self._work = None

    def __del__(self) -> None:
        if self._work is not None:
            self._when_dropped(WorkDropped("the event loop was closed before the work was run"))


class _OnLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        from asyncio import _get_running_loop

        self._loop = loop
        self._running_loop = _get_running_loop

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        task = _LoopWork(work, when_dropped)
        try:
            if self._running_loop() is self._loop:
                self._loop.call_soon(task)
            else:
                self._loop.call_soon_threadsafe(task)
        except BaseException:
            task.forget()
            raise

    def close(self) -> None:
        """The loop is its owner's to close."""


# -- choosing --------------------------------------------------------------------------------------


def check_executor(executor: object) -> None:
    """Refuse, with a ``TypeError``, what drains cannot run on."""
    if executor is None or (isinstance(executor, str) and executor == CALLER):
        return
    if isinstance(executor, Executor):
        # Drains share memory with their stream. The classes are looked up, not imported: if the
        # executor is one of them, its module is there.
        for module, name in (
            ("concurrent.futures.process", "ProcessPoolExecutor"),
            ("concurrent.futures.interpreter", "InterpreterPoolExecutor"),
        ):
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None and isinstance(executor, kind):
                raise TypeError(
                    f"executor must run its work in threads of this process, {name} does not"
                )
        return
    if callable(getattr(executor, "call_soon_threadsafe", None)):
        return
    raise TypeError(
        "executor must be a thread-based concurrent.futures.Executor, an asyncio event loop, "
        f"{CALLER!r} or None (a worker thread of its own), got {type(executor).__name__}"
    )


def resource(executor: Any, name: str = "rstreams-fast") -> Resource:
    """Return the resource that stands for ``executor``; ``None`` makes a worker called ``name``."""
    check_executor(executor)
    if executor is None:
        return Worker(name)
    if isinstance(executor, str):
        return _OnCaller()
    if isinstance(executor, Executor):
        return _OnExecutor(executor)
    return _OnLoop(executor)


def describe_executor(executor: Any) -> str:
    """Name the resource in a few words."""
    if executor is None:
        return "own worker thread"
    if isinstance(executor, str):
        return "caller"
    if isinstance(executor, Executor):
        return type(executor).__name__
    return f"event loop {type(executor).__name__}"
