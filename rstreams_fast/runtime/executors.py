"""Resources: one interface to a worker thread, a thread pool, an event loop or the calling thread.

A resource runs *work*: functions without arguments that streams submit by ``execute``. Only the
calling thread, as a resource, runs the work within ``execute``. Other resources run the work later.
If a resource refuses work, or accepts work and drops it later, the submitter gets an error.
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
from rstreams_fast.runtime.at_exit import call_at_exit, is_exiting
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.gil_yield import yield_gil

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "CALLER",
    "LoopWork",
    "Resource",
    "Trampoline",
    "Work",
    "WorkDroppedError",
    "cancelled_by_executor",
    "check_executor",
    "describe_executor",
    "nonblocking_submit",
    "process_id",
    "resource",
    "take_held",
]

CALLER: Final = "caller"
"""The argument ``executor="caller"``: run work on the thread that signals or requests elements."""

_process_id = os.getpid()


def _note_process_id() -> None:
    global _process_id  # noqa: PLW0603
    _process_id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_process_id)


def process_id() -> int:
    """Return the id of this process, without the system call of ``os.getpid()``.

    The system call would take most of the time of a subscription. An object that owns a thread
    stores the id when it is made. If ``process_id()`` returns another id later, this process is a
    forked child, and the thread exists only in the parent.
    """
    return _process_id


Work = Callable[[], object]
WhenDropped = Callable[[BaseException], object]
T = TypeVar("T")


class Resource(Protocol):
    """Runs work (functions without arguments). Any thread may call any method."""

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        """Have ``work()`` called soon, by this worker thread, pool, event loop or calling thread.

        If the resource refuses the work, ``execute`` raises an exception. If the resource accepts
        the work but drops it later, ``when_dropped`` is called with an error. For example, a pool
        drops work in ``shutdown(cancel_futures=True)``, and a loop drops work when it is closed.
        """
        ...

    def close(self) -> None:
        """End the threads that this object has started, after all accepted work. Do not wait."""
        ...


# -- one worker thread -----------------------------------------------------------------------------

_numbers = itertools.count(1)
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_Mailbox = SimpleQueue["Work | None"]


def _run_works(mailbox: _Mailbox) -> None:
    # The worker's thread runs this function, and refers to the queue ``mailbox``, but not to the
    # ``Worker``. So an unused ``Worker`` is garbage-collected, and its finalizer ends the thread.
    while (work := mailbox.get()) is not None:
        try:
            work()
        finally:
            del work


def _close_workers() -> None:
    for worker in list(_workers):
        worker.close()


class Worker:
    """A resource with its own thread. The first call of ``execute`` starts the thread.

    The thread ends when the worker is closed or garbage-collected.
    """

    def __init__(self, name: str) -> None:
        self._name = f"{name}-{next(_numbers)}"
        self._mailbox: _Mailbox = SimpleQueue()
        # Reentrant: a finalizer may run on the thread that holds the lock, and take the lock, too.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._starting = False
        self._closed = False
        self._pid = process_id()
        weakref.finalize(self, self._mailbox.put, None).atexit = False

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        """Queue ``work`` for the thread. If the worker is closed, raise a ``WorkDroppedError``."""
        with self._lock:
            if self._closed:
                why = ": the interpreter exits" if is_exiting() else ""
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
                target=_run_works, args=(self._mailbox,), name=self._name, daemon=daemon
            )
            try:
                thread.start()
            except BaseException:
                # After a KeyboardInterrupt in start() the thread may be running. close() ends it.
                self.close()
                raise
            self._thread = thread
            _workers.add(self)
        finally:
            self._starting = False

    def close(self) -> None:
        if self._pid != process_id():
            # This process is a forked child, without the worker's thread. Do not take the lock: if
            # a thread of the parent held it at the fork, it is never released in the child.
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._mailbox.put(None)


# -- an executor of the user, or the calling thread, as a resource ---------------------------------


class Trampoline(threading.local):
    """Prevents deep recursion: a call of ``run`` within ``run`` only queues its work.

    Each thread has its own queue.
    """

    def __init__(self) -> None:
        self.queue: deque[Work] | None = None

    def run(self, work: Work, /) -> None:
        """Call ``work``, and then the work that nested calls of ``run`` have queued meanwhile.

        If this thread is already within ``run``, only queue ``work``. If ``work`` raises an
        exception, the queued work is still called, because it belongs to other callers. Afterwards
        the outermost ``run`` raises the first exception.
        """
        if self.queue is not None:
            self.queue.append(work)
            return
        self.queue = queue = deque((work,))
        del work
        first_error: BaseException | None = None
        try:
            while queue:
                try:
                    while queue:
                        queue.popleft()()
                except BaseException as raised:
                    first_error = raised if first_error is None else first_error
            if first_error is not None:
                raise first_error
        finally:
            self.queue = None
            del first_error  # its traceback refers to this frame: break the reference cycle


def take_held(held: list[T]) -> T | None:
    """Remove and return the only item of ``held``, or return ``None`` if it was removed before."""
    try:
        return held.pop()
    except IndexError:
        return None


def cancelled_by_executor() -> WorkDroppedError:
    """Return the error for work that a pool accepted and later dropped, such as in ``shutdown``."""
    return WorkDroppedError("the executor cancelled work that it had accepted")


def nonblocking_submit(executor: Executor) -> Callable[..., Future[Any]]:
    """Return the method of ``executor`` that submits a call without waiting for room in a queue.

    This method is ``submit_at_once`` of a ``BoundedExecutor``. For an executor without
    ``submit_at_once`` it is ``submit``.
    """
    submit: Callable[..., Future[Any]] = getattr(executor, "submit_at_once", executor.submit)
    return submit


# Each resource has its own trampoline. With one trampoline for all streams, a thread could
# deadlock: work of stream A waits until stream B has ended, but the work of B waits in the
# trampoline's queue until the work of A has returned.


class _ExecutorResource:
    def __init__(self, executor: Executor) -> None:
        self._submit = nonblocking_submit(executor)
        self._trampoline = Trampoline()  # for a user's executor that runs work within submit()

    def _run_held(self, held: list[Work]) -> None:
        work = take_held(held)
        if work is not None:
            self._trampoline.run(work)

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        held = [work]
        del work
        try:
            future = self._submit(self._run_held, held)
        except Exception:
            # If a pool cannot start another thread, its submit() queues the work, and then raises.
            # If ``held`` is empty, another thread of the pool has taken the work out of ``held``,
            # and runs the work: do not raise.
            if take_held(held) is None:
                return
            raise

        def report_dropped(future: Future[Any]) -> None:
            # If a pool's initializer raises, the pool drops the work, and ``future`` gets an
            # exception. Then report that exception.
            if held and take_held(held) is not None:
                dropped = None if future.cancelled() else future.exception()
                when_dropped(dropped or cancelled_by_executor())

        future.add_done_callback(report_dropped)

    def close(self) -> None:
        """Do nothing: the user, who made the executor, shuts it down."""


class _CallerResource:
    def __init__(self) -> None:
        self._trampoline = Trampoline()

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:  # noqa: ARG002
        self._trampoline.run(work)

    def close(self) -> None:
        """Do nothing: the thread that calls ``execute`` is not a thread of this resource."""


# -- an event loop as a resource -------------------------------------------------------------------


class LoopWork:
    """A callback of an event loop that calls ``work`` once.

    If the loop is closed before it runs the callback, the finalizer of this object calls
    ``when_dropped``.
    """

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
        # ``call_from_finalizer`` is None if Python has cleared the globals at interpreter exit.
        if self._work is not None and call_from_finalizer is not None:
            call_from_finalizer(
                self._when_dropped,
                WorkDroppedError("the event loop was closed before the work was run"),
            )


class _LoopResource:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        from asyncio import _get_running_loop

        self._loop = loop
        self._running_loop = _get_running_loop

    def execute(self, work: Work, when_dropped: WhenDropped, /) -> None:
        task = LoopWork(work, when_dropped)
        try:
            if self._running_loop() is self._loop:
                self._loop.call_soon(task)
            else:
                self._loop.call_soon_threadsafe(task)
        except BaseException as raised:
            task._work = None  # the caller gets an exception, so __del__ must not report one, too
            if self._loop.is_closed():
                raise WorkDroppedError("the event loop is closed") from raised
            raise

    def close(self) -> None:
        """Do nothing: the user, who made the event loop, closes it."""


# -- the resource for the argument ``executor`` of an operator -------------------------------------


def check_executor(executor: object) -> None:
    """Raise a ``TypeError`` if a stream cannot run its work on ``executor``."""
    if executor is None:
        return
    if isinstance(executor, str) and executor == CALLER:
        return
    if isinstance(executor, Executor):
        # A stream's work uses objects of this interpreter. So refuse pools of processes and pools
        # of interpreters. The modules of these pools are not imported here: if ``executor`` is such
        # a pool, the module of its class is in sys.modules already.
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
    """Return a resource that runs work on ``executor``, or on a new ``Worker`` if it is ``None``.

    ``name`` is the name of the worker's thread.
    """
    check_executor(executor)
    if executor is None:
        return Worker(name)
    if isinstance(executor, str):
        return _CallerResource()
    if isinstance(executor, Executor):
        return _ExecutorResource(executor)
    return _LoopResource(executor)


def describe_executor(executor: Any) -> str:
    if executor is None:
        return "own worker thread"
    if isinstance(executor, str):
        return "caller"
    if isinstance(executor, Executor):
        return type(executor).__name__
    return f"event loop {type(executor).__name__}"
