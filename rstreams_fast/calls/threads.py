"""Calls plain (not ``async``) functions on threads, so that an event loop can await the calls."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

from rstreams_fast._checks import refuse_coroutine
from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.functions import label_of
from rstreams_fast.calls.limits.permits import PermitGate
from rstreams_fast.calls.thread_group import ThreadGroup

__all__ = ["CallThreads", "ThreadedCalls"]

W = TypeVar("W")


class CallThreads(Generic[W]):
    """A pool of up to ``size`` threads, which call ``do`` with each item in the order of ``put``.

    ``start`` is a function like ``ThreadGroup.start``; it is called when another thread is needed.
    ``close`` calls ``abandon``, instead of ``do``, with each item that no thread has begun. Items
    that are put after ``close`` are abandoned, too. Any thread may call any method.
    """

    def __init__(
        self,
        do: Callable[[W], object],
        abandon: Callable[[W], object],
        size: int,
        start: Callable[[Callable[[], object], str], object],
        name: str,
    ) -> None:
        self.closed = False
        self._do = do
        self._abandon = abandon
        self._size = size
        self._start = start
        self._name = name
        self._threads = 0
        # The queue has no bound: the callers of ``put`` bound the number of items.
        self._work: queue.SimpleQueue[W | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def put(self, work: W, wanted: int) -> None:
        """Queue ``work`` for a thread. Start a thread if fewer than ``wanted`` threads exist."""
        if self._threads < wanted and self._threads < self._size:
            self._add_thread()
        self._work.put(work)
        if self.closed:
            self.close()

    def _add_thread(self) -> None:
        with self._lock:
            if self._threads < self._size:
                try:
                    self._start(self._run, f"{self._name}-{self._threads + 1}")
                except RuntimeError as refused:
                    # The system cannot start another thread: go on with the existing threads.
                    if not self._threads:
                        raise StageError(f"no thread can be started for {self._name}") from refused
                    self._size = self._threads
                else:
                    self._threads += 1

    def _run(self) -> None:
        get, do = self._work.get, self._do
        while (work := get()) is not None:
            do(work)
            del work

    def close(self) -> None:
        """Abandon the queued work, and end each thread when it has finished its present work."""
        with self._lock:
            self._size, self.closed = 0, True
        with contextlib.suppress(queue.Empty):
            while True:
                if (work := self._work.get_nowait()) is not None:
                    self._abandon(work)
        for _ in range(self._threads):
            self._work.put(None)


class _CallOnThread(asyncio.Future[Any]):
    """The future of a call on a thread. ``cancel`` cannot stop the thread: a cancelled future is
    done when the call has ended.
    """

    is_abandoned = False

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002
        self.is_abandoned = True
        return not self.done()


_Job = tuple[_CallOnThread, Context, tuple[Any, ...]]


class ThreadedCalls:
    """Calls a plain function on up to ``size`` threads. Each call returns an asyncio future.

    Only the event loop's thread may use the object.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        size: int,
        loop: asyncio.AbstractEventLoop,
        group: ThreadGroup,
    ) -> None:
        self._fn = fn
        self._loop = loop
        self._label = label_of(fn)
        self._threads = CallThreads(self._run_job, self._abandon, size, group.start, "call")
        self.close = self._threads.close
        self._outcomes: deque[tuple[_CallOnThread, Any, BaseException | None]] = deque()
        self._notified = False
        self._open: set[_CallOnThread] = set()
        self._lock = threading.Lock()
        self._running_threads = 0  # the number of threads that are executing a call
        self._on_leave: Callable[[], object] | None = None

    def __call__(self, *args: Any) -> asyncio.Future[Any]:
        """Queue a call with ``args``; return the future of its result."""
        future = _CallOnThread(loop=self._loop)
        self._open.add(future)
        self._threads.put((future, copy_context(), args), len(self._open))
        return future

    def abandon(self, gate: PermitGate | None) -> None:
        """Cancel all open futures, and return the permits of ``gate`` to the limit.

        The caller must call ``close`` first. A thread that is still executing a call returns its
        permit when the call ends.
        """
        with self._lock:
            if gate is not None:
                self._on_leave = gate.end(self._running_threads)
        for future in self._open:
            future.is_abandoned = True
            asyncio.Future.cancel(future)

    def _enter(self) -> bool:
        with self._lock:
            begins = not self._threads.closed
            self._running_threads += begins
            return begins

    def _leave(self) -> None:
        with self._lock:
            self._running_threads -= 1
            on_leave = self._on_leave
        if on_leave is not None:
            on_leave()

    def _run_job(self, job: _Job) -> None:
        future, context, args = job
        result: Any = None
        failure: BaseException | None = None
        try:
            if self._enter():
                try:
                    result = context.run(self._fn, *args)
                finally:
                    self._leave()
            refuse_coroutine("fn", self._fn, result, "; make it 'async def' itself")
        except BaseException as raised:
            failure = _settable_error(self._label, raised)
        self._outcomes.append((future, result, failure))
        # Delete these variables: the traceback of ``failure`` refers to this frame, which would
        # keep their objects alive.
        del job, future, context, args, result, failure
        if not self._notified:
            self._notified = True
            # RuntimeError: the loop is closed, so nothing awaits the call.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _abandon(self, job: _Job) -> None:
        self._open.discard(job[0])
        asyncio.Future.cancel(job[0])

    def _deliver(self) -> None:
        self._notified = False
        while self._outcomes:
            future, result, failure = self._outcomes.popleft()
            self._open.discard(future)
            if future.is_abandoned:
                asyncio.Future.cancel(future)
            elif failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)


def _settable_error(label: str, raised: BaseException) -> Exception:
    """Return ``raised``, or a replacement if a future must not have this exception.

    A future cannot have a ``StopIteration``; a ``RuntimeError`` replaces it. ``SystemExit`` or
    ``KeyboardInterrupt`` in a future would end the loop. A ``StageError`` replaces them, so that
    the stage fails, not only one row.
    """
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    kind = RuntimeError if isinstance(raised, Exception) else StageError
    wrapper = kind(f"{label} raised {type(raised).__name__}")
    wrapper.__cause__ = raised
    return wrapper
