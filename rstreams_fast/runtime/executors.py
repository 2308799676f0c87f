"""The resources that drains run on: a worker of one's own, a thread pool, an event loop, the
caller.

A resource takes work and runs it later, one piece after the other or several at once; it never
blocks the thread that hands work over. What it refuses, or accepts and then drops, is made known.
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
"""In place of an executor: the thread that signals or requests works, one piece at a time."""

_process_id = os.getpid()


def _note_process_id() -> None:
    global _process_id  # noqa: PLW0603
    _process_id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_process_id)


def process_id() -> int:
    """What a live object remembers and compares: in the child of a fork its threads are missing.

    ``os.getpid()`` without its system call, which would cost each subscription more than the rest.
    """
    return _process_id


Work = Callable[[], object]
WhenDropped = Callable[[BaseException], object]
T = TypeVar("T")


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
_Mailbox = SimpleQueue["Work | None"]


def _work_off(mailbox: _Mailbox) -> None:
    # Knows the mailbox only, so that an abandoned worker can be collected, which stops this.
    while (work := mailbox.get()) is not None:
        try:
            work()
        finally:
            del work


def _close_workers() -> None:
    for worker in list(_workers):
        worker.close()


class Worker:
    """One thread, started by the first piece of work, that ends when it is closed or collected."""

    def __init__(self, name: str) -> None:
        self._name = f"{name}-{next(_numbers)}"
        self._mailbox: _Mailbox = SimpleQueue()
        # Reentrant, for the collector may run anything anywhere, and a thread is made under it.
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
            except BaseException:  # KeyboardInterrupt, say, when it runs already: send it home
                self.close()
                raise
            self._thread = thread
            _workers.add(self)
        finally:
            self._starting = False

    def close(self) -> None:
        """Let the thread end after what it has been given."""
        if self._pid != process_id():
            return  # it was left behind in the parent, and the lock may be held for ever
        with self._lock:
            if not self._closed:
                self._closed = True
                self._mailbox.put(None)


# -- somebody else's executor ----------------------------------------------------------------------


class Trampoline(threading.local):
    """Work that was handed to the thread that is at work already: it waits, instead of nesting."""

    def __init__(self) -> None:
        self.queue: deque[Work] | None = None

    def run(self, work: Work, /) -> None:
        """Do ``work``, and what it hands over meanwhile; or leave it to the call that is doing so.

        What is raised leaves when all is done: the rest belongs to others.
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
            del leaving  # the traceback keeps this frame


_trampoline = Trampoline()


def taken(held: list[T]) -> T | None:
    """Take what is in ``held``: the first caller gets it, later callers get ``None``."""
    try:
        return held.pop()
    except IndexError:
        return None


def cancelled_by_executor() -> WorkDroppedError:
    """Return the error of work that a pool dropped: ``shutdown(cancel_futures=True)``, say."""
    return WorkDroppedError("the executor cancelled work that it had accepted")


def _run_held(held: list[Work]) -> None:
    work = taken(held)
    if work is not None:
        _trampoline.run(work)


def submit_of(executor: Executor) -> Callable[..., Future[Any]]:
    """Return what submits to ``executor`` and never waits: ``submit``, unless that may wait for
    room and the executor has a ``submit_at_once``, as a ``BoundedExecutor`` has.
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
            # A pool that fails to start one more thread keeps the work, for a thread that it has.
            if taken(held) is None:
                return
            raise

        def look(future: Future[Any]) -> None:
            if future.cancelled():
                when_dropped(cancelled_by_executor())

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
            yield_gil()

    def __del__(self) -> None:
        # At the exit modules are empty.
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
            task._work = None  # it was refused, not dropped
            if self._loop.is_closed():
                raise WorkDroppedError("the event loop is closed") from raised
            raise

    def close(self) -> None:
        """The loop is its owner's to close."""


# -- choosing --------------------------------------------------------------------------------------


def check_executor(executor: object) -> None:
    """Refuse, with a ``TypeError``, what drains cannot run on."""
    if executor is None:
        return
    if isinstance(executor, str) and executor == CALLER:
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
