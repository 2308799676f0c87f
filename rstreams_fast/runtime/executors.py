"""The resources that drains run on: a worker, a thread pool, an event loop, or the caller.

A resource takes work and runs it later, one piece after the other or several at once; it never
blocks the thread that submits work. Work that it refuses, or accepts and then drops, is reported.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from rstreams_fast.errors import WorkDroppedError
from rstreams_fast.runtime.at_exit import call_at_exit, exiting
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.gil_yield import yield_gil

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "CALLER",
    "Resource",
    "Trampoline",
    "Work",
    "WorkDroppedError",
    "cancelled_by_executor",
    "check_executor",
    "describe_executor",
    "process_id",
    "resource",
    "submit_of",
    "taken",
]

CALLER: Final = "caller"
"""Instead of an executor: the thread that signals or requests works, one piece at a time."""

_process_id = os.getpid()


def _note_process_id() -> None:
    global _process_id  # noqa: PLW0603
    _process_id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_process_id)


def process_id() -> int:
    """Return the process id: objects compare it to see that a fork left their threads behind.

    ``os.getpid()`` without a system call, which would dominate the cost of a subscription.
    """
    return _process_id


Work = Callable[[], object]
WhenDropped = Callable[[BaseException], object]
T = TypeVar("T")


class Resource(Protocol):
    """Something that runs work. Any thread may call any method."""

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        """Run ``work`` soon, on the resource.

        Raises if the work is refused. If it is accepted but dropped later (the pool is shut down
        with ``cancel_futures``, the loop is closed), ``when_dropped`` is called instead.
        """
        ...

    def close(self) -> None:
        """End what the resource owns, after all accepted work. Never blocks."""
        ...


# -- one worker thread -----------------------------------------------------------------------------

_numbers = itertools.count(1)
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_Mailbox = SimpleQueue["Work | None"]


def _work_off(mailbox: _Mailbox) -> None:
    # Refers to the mailbox only: so an abandoned worker can be collected, which ends this thread.
    while (work := mailbox.get()) is not None:
        try:
            work()
        finally:
            del work


def _close_workers() -> None:
    for worker in list(_workers):
        worker.close()


class Worker:
    """One thread, started for the first work; it ends when the worker is closed or collected."""

    def __init__(self, name: str) -> None:
        self._name = f"{name}-{next(_numbers)}"
        self._mailbox: _Mailbox = SimpleQueue()
        # Reentrant: the garbage collector may run anything, even while the thread is made.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._starting = False
        self._closed = False
        self._pid = process_id()
        weakref.finalize(self, self._mailbox.put, None).atexit = False

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        """Queue ``work`` for the thread."""
        with self._lock:
            if self._closed:
                why = ": the interpreter exits" if exiting() else ""
                raise WorkDroppedError(f"the worker {self._name} is closed{why}")
            if self._thread is None and not self._starting:
                self._start()
                if self._closed:
                    raise WorkDroppedError(
                        f"the worker {self._name} was closed while it was started"
                    )
            self._mailbox.put(work)

    def _start(self) -> None:
        self._starting = True
        try:
            daemon = not call_at_exit(_close_workers)
            thread = threading.Thread(
                target=_work_off, args=(self._mailbox,), name=self._name, daemon=daemon
            )
            try:
                thread.start()
            except BaseException:  # KeyboardInterrupt, say: the thread may run already, so end it
                self.close()
                raise
            self._thread = thread
            _workers.add(self)
        finally:
            self._starting = False

    def close(self) -> None:
        """Let the thread end after the work that it was given."""
        if self._pid != process_id():
            return  # in a fork's child the thread is missing, and the lock may be held
        with self._lock:
            if not self._closed:
                self._closed = True
                self._mailbox.put(None)


# -- the user's executor ---------------------------------------------------------------------------


class Trampoline(threading.local):
    """Queues work for a thread that is running work already, instead of nesting it."""

    def __init__(self) -> None:
        self.queue: deque[Work] | None = None

    def run(self, work: Work, /) -> None:
        """Run ``work``, and what it submits here meanwhile; only queue it if a run is under way.

        The first exception is raised after all work is done: others submitted the rest.
        """
        if self.queue is not None:
            self.queue.append(work)
            return
        self.queue = queue = deque((work,))
        del work
        leaving: BaseException | None = None
        try:
            while queue:
                try:
                    while queue:
                        queue.popleft()()
                except BaseException as raised:
                    leaving = raised if leaving is None else leaving
            if leaving is not None:
                raise leaving
        finally:
            self.queue = None
            del leaving  # the error's traceback keeps this frame, and so itself


_trampoline = Trampoline()


def taken(held: list[T]) -> T | None:
    """Take the item in ``held``: the first caller gets it, later callers get ``None``."""
    try:
        return held.pop()
    except IndexError:
        return None


def cancelled_by_executor() -> WorkDroppedError:
    """Return the error for work that a pool dropped, as by ``shutdown(cancel_futures=True)``."""
    return WorkDroppedError("the executor cancelled work that it had accepted")


def _run_held(held: list[Work]) -> None:
    work = taken(held)
    if work is not None:
        _trampoline.run(work)


def submit_of(executor: Executor) -> Callable[..., Future[Any]]:
    """Return the function that submits to ``executor`` and never waits: ``submit_at_once`` if the
    executor has it, as a ``BoundedExecutor`` does; else ``submit``.
    """
    submit: Callable[..., Future[Any]] = getattr(executor, "submit_at_once", executor.submit)
    return submit


class _OnExecutor:
    def __init__(self, executor: Executor) -> None:
        self._submit = submit_of(executor)

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        held = [work]
        del work
        try:
            future = self._submit(_run_held, held)
        except Exception:
            # A pool that fails to start another thread still keeps the work for a running one.
            if taken(held) is None:
                return
            raise

        def look(future: Future[Any]) -> None:
            if future.cancelled():
                when_dropped(cancelled_by_executor())

        future.add_done_callback(look)

    def close(self) -> None:
        """Do nothing: the executor's owner shuts it down."""


class _OnCaller:
    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        _trampoline.run(work)

    def close(self) -> None:
        """Do nothing: the calling thread is not the resource's to end."""


# -- an event loop ---------------------------------------------------------------------------------


class _LoopWork:
    """Work in a loop's queue. If the loop drops it unrun, its finalizer reports that."""

    __slots__ = ("_when_dropped", "_work")

    def __init__(self, work: Work, when_dropped: WhenDropped) -> None:
        self._work: Work | None = work
        self._when_dropped = when_dropped

    def __call__(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()
            yield_gil()

    def __del__(self) -> None:
        # While Python exits, module globals may be None.
        if self._work is not None and call_from_finalizer is not None:
            call_from_finalizer(
                self._when_dropped,
                WorkDroppedError("the event loop was closed before the work was run"),
            )


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
        except BaseException as raised:
            task._work = None  # the work was refused, not dropped
            if self._loop.is_closed():
                raise WorkDroppedError("the event loop is closed") from raised
            raise

    def close(self) -> None:
        """Do nothing: the loop's owner closes it."""


# -- choosing --------------------------------------------------------------------------------------


def check_executor(executor: object) -> None:
    """Raise ``TypeError`` for an executor that drains cannot run on."""
    if executor is None:
        return
    if isinstance(executor, str) and executor == CALLER:
        return
    if isinstance(executor, Executor):
        # Drains need the memory of their stream. These classes are looked up, not imported: if the
        # executor is of one of them, its module is loaded.
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
    """Return the resource for ``executor``; ``None`` makes a worker thread called ``name``."""
    check_executor(executor)
    if executor is None:
        return Worker(name)
    if isinstance(executor, str):
        return _OnCaller()
    if isinstance(executor, Executor):
        return _OnExecutor(executor)
    return _OnLoop(executor)


def describe_executor(executor: Any) -> str:
    """Describe the resource in a few words."""
    if executor is None:
        return "own worker thread"
    if isinstance(executor, str):
        return "caller"
    if isinstance(executor, Executor):
        return type(executor).__name__
    return f"event loop {type(executor).__name__}"
