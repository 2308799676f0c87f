"""Calls of a plain function, on threads."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.functions import label_of
from rstreams_fast.calls.limits.permits import PermitGate
from rstreams_fast.calls.thread_group import ThreadGroup

__all__ = ["ThreadedCalls"]


class _CallOnThread(asyncio.Future[Any]):
    """A call on a thread. It cannot be stopped: after ``cancel`` it ends with its thread's call."""

    given_up = False

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002
        self.given_up = True
        return not self.done()


class ThreadedCalls:
    """Makes calls of a sync function awaitable, on up to ``size`` threads, started as needed."""

    def __init__(
        self,
        fn: Callable[..., Any],
        size: int,
        loop: asyncio.AbstractEventLoop,
        group: ThreadGroup,
    ) -> None:
        self._fn = fn
        self._size = size
        self._loop = loop
        self._group = group
        self._label = label_of(fn)
        self._work: queue.SimpleQueue[tuple[_CallOnThread, Context, tuple[Any, ...]] | None]
        self._work = queue.SimpleQueue()  # bounded by the window in front of it
        self._outcomes: deque[tuple[_CallOnThread, Any, BaseException | None]] = deque()
        self._notified = False
        self._threads = 0
        self._open: set[_CallOnThread] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._inside = 0  # threads that are in a call
        self._on_leave: Callable[[], object] | None = None

    def __call__(self, *args: Any) -> asyncio.Future[Any]:
        """Start a call; the loop's thread only."""
        future = _CallOnThread(loop=self._loop)
        self._open.add(future)
        if len(self._open) > self._threads and self._threads < self._size:
            self._add_thread()
        self._work.put((future, copy_context(), args))
        return future

    def _add_thread(self) -> None:
        try:
            self._group.start(self._run, f"call-{self._threads + 1}")
        except RuntimeError as refused:  # the system has no more threads: go on with fewer
            if not self._threads:
                raise StageError(f"no thread can be started for {self._label}") from refused
            self._size = self._threads
        else:
            self._threads += 1

    def close(self) -> None:
        """Start no more calls; the threads end. Running calls end in their own time."""
        with self._lock:
            self._closed = True
        for _ in range(self._threads):
            self._work.put(None)

    def abandon(self, gate: PermitGate | None) -> None:
        """After ``close``: cancel the futures, and return the permits to the limit.

        A thread that is still in a call returns its permit when that call ends.
        """
        with self._lock:
            if gate is not None:
                self._on_leave = gate.end(self._inside)
        for future in self._open:
            future.given_up = True
            asyncio.Future.cancel(future)

    def _enter(self) -> bool:
        with self._lock:
            self._inside += not self._closed
            return not self._closed

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            on_leave = self._on_leave
        if on_leave is not None:
            on_leave()

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            future, context, args = job
            result: Any = None
            failure: BaseException | None = None
            try:
                if self._enter():
                    try:
                        result = context.run(self._fn, *args)
                    finally:
                        self._leave()
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError(
                        f"{self._label} returned a coroutine; make it 'async def' itself, "
                        "so that it is run on the loop"
                    )
            except Exception as raised:
                failure = raised
            except BaseException as raised:  # SystemExit and the like would end the loop
                failure = _wrapped(self._label, raised)
            if isinstance(failure, StopIteration):  # a future cannot carry it
                failure = _wrapped(self._label, failure)
            self._outcomes.append((future, result, failure))
            del job, future, context, args, result, failure
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # the loop is closed: nothing awaits the result
                    return

    def _deliver(self) -> None:
        self._notified = False
        while self._outcomes:
            future, result, failure = self._outcomes.popleft()
            self._open.discard(future)
            if future.given_up:
                asyncio.Future.cancel(future)
            elif failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)


def _wrapped(label: str, cause: BaseException) -> RuntimeError:
    wrapper = RuntimeError(f"{label} raised {type(cause).__name__}")
    wrapper.__cause__ = cause
    return wrapper
