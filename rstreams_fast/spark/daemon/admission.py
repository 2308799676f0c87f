"""Decides whether further calls of a task may start, and lets threads wait for running calls."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import itertools
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.calls.thread_group import STAGE_CLOSE_SECONDS
from rstreams_fast.spark.worker.counters import task_context
from rstreams_fast.spark.worker.hang_up import hang_up_check

if TYPE_CHECKING:
    from rstreams_fast.spark.daemon.calls import UdfCall

__all__ = ["LARGE_RESULT", "NEVER_LARGE", "Abandoned", "Admission"]

MAIN_CHECK_SECONDS: Final = 0.1
"""While the main thread waits: seconds between two checks whether Spark has closed its socket."""

LARGE_RESULT: Final = 4096
"""Results of fewer bytes are not counted in the bound on bytes. The bound on rows limits them."""

SAMPLED_ELEMENTS: Final = 8
"""How many elements of a container are measured, to estimate the bytes of all its elements."""

MOST_DEPTH: Final = 4
"""To estimate the bytes of a result, this many levels of nested containers are measured."""

#: Results of these types are always small, so their bytes are not estimated.
NEVER_LARGE: Final = frozenset(
    (int, float, bool, type(None), dt.date, dt.datetime, decimal.Decimal)
)


class Abandoned(RuntimeError):
    """The exception of a call that, after ``stop``, was not made or did not end in time."""

    def __init__(self) -> None:
        super().__init__("the task ended before this call was made")


def _bytes_of(result: Any, depth: int = MOST_DEPTH) -> int:
    """Estimate the bytes of ``result`` from some of its elements, down to ``depth`` levels."""
    size = sys.getsizeof(result, 0)
    if depth and isinstance(result, list | tuple | set | frozenset | dict) and result:
        elements: Any = result.items() if isinstance(result, dict) else result
        some = [element for element, _ in zip(elements, range(SAMPLED_ELEMENTS), strict=False)]
        taken = sum(_bytes_of(element, depth - 1) for element in some)
        size += taken * len(result) // len(some)
    elif depth and hasattr(result, "__dict__"):
        size += _bytes_of(result.__dict__, depth - 1)
    return size


class Admission:
    """Decides when the calls of one task may start, and bounds the bytes of results in memory.

    If a call has failed, only calls that were submitted earlier may start. The task holds a result
    from the end of the call until the main thread passes the result to Spark. While the task holds
    ``most_bytes`` or more (0: no bound), the object is ``full``: then no call starts except the
    call whose result Spark needs next. After ``stop`` the task waits for running calls until the
    deadline, ``STAGE_CLOSE_SECONDS`` later. ``on_wait`` is called with the seconds for which the
    main thread waited for calls.
    """

    def __init__(
        self, most_bytes: int = 0, on_wait: Callable[[float], object] | None = None
    ) -> None:
        #: ``True`` if the task is stopped, or if its results in memory have reached their bound.
        #: While it is ``False``, every call may start, and the calling thread takes no lock.
        self.attention = False
        self.stopped = False
        self.full = False
        self._most_bytes = most_bytes
        self._on_wait = on_wait
        self._held_bytes = 0
        self._failure: BaseException | None = None
        self._failed_number = 0
        #: Gives each ``UdfCall`` its number when the call is submitted.
        self.numbers = itertools.count(1)
        self._deadline = 0.0
        self._needed: UdfCall | None = None
        self._changed = threading.Condition()
        self._waiters: set[Any] = set()
        self._on_loop: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._main = threading.get_ident()
        self._has_hung_up: Callable[[], bool] | None = None

    def stop(self, failed: UdfCall | None = None) -> None:
        """Let no call start except those submitted before ``failed``. Thread-safe, idempotent."""
        with self._changed:
            if self.stopped:
                return
            if failed is not None:
                self._failure, self._failed_number = failed.failure, failed.number
            self._deadline = time.monotonic() + STAGE_CLOSE_SECONDS
            self.stopped = self.attention = True
            self._wake_all()

    # -- methods for the threads and event loops that make calls ----------------------------------

    def may_start(self, call: UdfCall) -> bool:
        """Block this thread until ``call`` may start. Return ``False`` if it must never start."""
        if not self.attention:
            return True
        with self._changed:
            self._changed.wait_for(lambda: not self._must_wait(call))
            return not self._must_not_start(call)

    async def may_start_on_loop(self, call: UdfCall) -> bool:
        """Do the same as ``may_start``, without blocking the event loop."""
        if not self.attention:
            return True
        entry = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            self._on_loop.add(entry)
        try:
            while self._must_wait(call):
                await entry[1].wait()
                entry[1].clear()
        except asyncio.CancelledError:  # ``LoopCalls`` cancels this wait at the end of the task
            return False
        finally:
            with self._changed:
                self._on_loop.discard(entry)
        return not self._must_not_start(call)

    def _must_wait(self, call: UdfCall) -> bool:
        return self.full and not self.stopped and self._needed is not call

    def _must_not_start(self, call: UdfCall) -> bool:
        # Spark gets the outcomes in the order of submission. So calls that were submitted before
        # the failed call must still be made: their outcomes come before the failure.
        return self.stopped and call.number >= self._failed_number

    def count_result(self, call: UdfCall) -> None:
        """Add the bytes of the result of ``call`` to those that the task holds, if it is large."""
        if not self._most_bytes:
            return
        try:
            size = _bytes_of(call.result)
        except Exception:  # __sizeof__ or __len__ of a user's class may raise any exception
            return
        if size >= LARGE_RESULT:
            call.size = size
            with self._changed:
                self._held_bytes += size
                if self._held_bytes >= self._most_bytes and not self.full:
                    self.full = self.attention = True
                    self._wake_all()

    # -- methods for the threads that wait for the outcomes of calls ------------------------------

    def wait(self, call: UdfCall) -> None:
        """Wait until ``call`` has ended, or until the task is stopped or full (``attention``)."""
        if not (call.done or self.attention):
            self._wait(call, lambda: not self.attention, None)

    def wait_for_end(self, call: UdfCall, grace: float = 0.0) -> None:
        """Wait until ``call`` ends; after ``stop`` only until ``grace`` seconds past the deadline,
        which is ``STAGE_CLOSE_SECONDS`` after ``stop``.
        """
        while not call.done:
            state = (self.stopped, self.full)
            left = self._deadline + grace - time.monotonic() if state[0] else None
            if left is not None and left <= 0:
                break
            with self._letting_start(call):
                self._wait(call, partial(self._state_is, state), left)

    def release_result(self, call: UdfCall) -> None:
        """Subtract the bytes of the result of ``call``: Spark gets the result now."""
        if call.size:
            with self._changed:
                self._held_bytes -= call.size
                if self.full and self._held_bytes < self._most_bytes:
                    self.full = False
                    self.attention = self.stopped
                    self._wake_all()

    def failure_among(self, calls: Iterable[UdfCall]) -> BaseException:
        """Return the first exception among ``calls``, else the exception that stopped the task."""
        for call in calls:
            failed = call.failure if call.done else None
            if failed is not None and not isinstance(failed, Abandoned):
                return failed
        return self._failure or Abandoned()

    def _state_is(self, state: tuple[bool, bool]) -> bool:
        return state == (self.stopped, self.full)

    @contextmanager
    def _letting_start(self, call: UdfCall) -> Iterator[None]:
        # The task holds the results of later calls until ``call`` has a result. So ``call`` must
        # start even if the held bytes have reached their bound. Otherwise the task would hang.
        if not self.full:
            yield
            return
        with self._changed:
            self._needed = call
            self._wake_calls()
        try:
            yield
        finally:
            self._needed = None

    def _wait(self, call: UdfCall, goes_on: Callable[[], bool], seconds: float | None) -> None:
        waiter = allocate_lock()
        waiter.acquire()
        with self._changed:
            self._waiters.add(waiter)
        call.waiter = waiter
        main = threading.get_ident() == self._main
        begun = time.monotonic()
        ends = None if seconds is None else begun + seconds
        try:
            # Set ``call.waiter`` before reading ``call.done`` and ``goes_on()``: a thread that
            # changes one of them later releases ``waiter``, so this thread misses no change.
            while not call.done and goes_on():
                left = -1.0
                if ends is not None:
                    left = max(0.0, ends - time.monotonic())
                if main:
                    left = MAIN_CHECK_SECONDS if ends is None else min(MAIN_CHECK_SECONDS, left)
                if not waiter.acquire(timeout=left):
                    now = time.monotonic()
                    if main:
                        begun = self._count_wait(begun, now)
                        self._check_hang_up()
                    if ends is not None and now >= ends:
                        break
        finally:
            with self._changed:
                self._waiters.discard(waiter)
            if main:
                self._count_wait(begun, time.monotonic())

    def _count_wait(self, begun: float, now: float) -> float:
        if self._on_wait is not None:
            self._on_wait(now - begun)
        return now

    def _check_hang_up(self) -> None:
        if self._has_hung_up is None:
            found = hang_up_check() if task_context() is not None else None
            self._has_hung_up = found or (lambda: False)
        if self._has_hung_up():
            self.stop()
            raise GeneratorExit("Spark has hung up")

    def _wake_all(self) -> None:
        self._wake_calls()
        for waiter in self._waiters:
            # RuntimeError: the lock was released already, so the waiting thread wakes anyway.
            with suppress(RuntimeError):
                waiter.release()

    def _wake_calls(self) -> None:
        self._changed.notify_all()
        for loop, event in self._on_loop:
            with suppress(RuntimeError):  # RuntimeError: the loop is closed, so no call waits on it
                loop.call_soon_threadsafe(event.set)
