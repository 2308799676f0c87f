"""Parts that the three backends share: result codes, waiting, checks and error messages."""

from __future__ import annotations

import _thread
import contextlib
import enum
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType
from typing import Any, Final, NoReturn

from rstreams_fast.errors import (
    OverlappingCallsError,
    RingClosed,
    report_dropped,
    report_unraisable,
)

__all__ = [
    "CANCELLED",
    "GOES_ON",
    "MISSING",
    "TERMINATED",
    "Emission",
    "Missing",
    "RunStatus",
    "Waiters",
    "cancel_quietly",
    "check_same_process",
    "check_threads",
    "check_waker",
    "end_error",
    "let_others_run",
    "refuse_overlap",
    "refuse_pickle",
    "sleeps",
    "wake_quietly",
]

CANCELLED: Final = -1
"""The value of a ``DemandCounter`` after ``cancel()``."""

TERMINATED: Final = -2
"""The value of a ``DemandCounter`` after ``terminate()``."""


class Missing(enum.Enum):
    """The type of ``MISSING``.

    Attributes:
        MISSING: The only value.
    """

    MISSING = enum.auto()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""Marks a missing value, such as the seed of a ``scan`` or ``reduce`` without a seed."""

GOES_ON: Final = 32
"""After this many elements, a call of ``FusedRun.drain`` ignores demand added during the call.

The number is small, because the caller can let other work run only after the call."""


class Emission(enum.IntEnum):
    """The result of ``SignalSerializer.try_next``.

    Attributes:
        OK: The element was delivered, or is in the mailbox.
        FULL: The mailbox is full.
        BUSY: A signal is being delivered, and ``fail_fast`` is set.
        TERMINATED: A terminal signal came before.
        CANCELLED: The subscriber has cancelled.
    """

    OK = 0
    FULL = 1
    BUSY = 2
    TERMINATED = 3
    CANCELLED = 4


class RunStatus(enum.IntEnum):
    """The reason why a method of ``FusedRun`` returned."""

    MORE = 0
    """Demand is left, and there may be elements: the caller must call ``FusedRun.drain`` again."""
    IDLE = 1
    """No demand is left. When more is requested, the caller must again call the method that
    returned ``IDLE``."""
    EXHAUSTED = 2
    """The source has no more elements now. The caller knows whether more may come."""
    ENDED = 3
    """A stage such as ``take`` needs no more elements.

    The caller must cancel upstream, and then call ``FusedRun.finish``."""
    DONE = 4
    """``FusedRun.finish`` has delivered all results: the caller must signal ``on_complete``."""
    CANCELLED = 5
    """The demand counter was cancelled or terminated."""
    FAILED = 6
    """The source or a stage raised ``FusedRun.error``: the caller must signal this exception."""
    SLOT_FAILED = 7
    """The receiver of the results raised ``FusedRun.error``, an exception. §2.13 forbids this."""
    DROPPED = 8
    """A stage dropped the element that the caller passed to ``FusedRun.push``.

    The caller must request ``FusedRun.refund`` more elements from upstream in its place."""


class FunctionSlot:
    """A slot (receiver of a ``FusedRun``'s results) that calls a user's function directly.

    Args:
        function: The user's function, called with every result.
        over: A list, empty at first. Its maker appends an item to stop the calls of ``function``.
        answered: Called with the return value of ``function`` if it is ``False`` or a coroutine.
        unwanted: Called with each result in place of ``function`` once ``over`` has an item.
        failed: Called with the exception that one of the other functions raised. ``failed`` must
            cancel the demand, or raise an exception.
    """

    __slots__ = ("answered", "failed", "function", "over", "unwanted")

    def __init__(
        self,
        function: Callable[[Any], object],
        over: list[Any],
        answered: Callable[[Any], object],
        unwanted: Callable[[Any], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        self.function = function
        self.over = over
        self.answered = answered
        self.unwanted = unwanted
        self.failed = failed


FIRST_SLEEP: Final = 0.02
"""Seconds until a waiting thread first wakes up to handle process signals, such as Ctrl-C."""

SLEEP_GROWTH: Final = 1 if os.name == "nt" else 2
"""Each sleep of a waiting thread is this many times as long as the previous one.

On Windows all sleeps are equally short, because Ctrl-C cannot interrupt a wait for a lock."""


def sleeps(timeout: float | None) -> Iterator[float]:
    """Yield the lengths of successive sleeps of a waiting thread, until ``timeout`` is over.

    All times are in seconds. If a process signal, such as SIGINT (Ctrl-C), arrives just before a
    sleep, the thread handles the signal only after the sleep. So the first sleeps are short.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    sleep = FIRST_SLEEP
    while (left := until - time.monotonic()) > 0:
        yield min(sleep, left, threading.TIMEOUT_MAX)
        sleep *= SLEEP_GROWTH


class Waiters:
    """The threads that wait for a change of an object.

    A thread that waits here holds no lock. ``threading.Condition`` releases the caller's lock
    during a wait. If a ``KeyboardInterrupt`` comes just after that, the lock stays released, and
    the ``with`` statement that has taken the lock raises a ``RuntimeError`` instead.
    """

    __slots__ = ("_alarms",)

    def __init__(self) -> None:
        self._alarms: set[_thread.LockType] = set()
        """A locked lock for each waiting thread, which waits until ``wake_all`` releases it."""

    def wait_for(self, condition: Callable[[], object], timeout: float | None) -> bool:
        """Block the thread until ``condition()`` holds. Return false if it never held in time.

        Args:
            condition: Called before each sleep.
            timeout: Seconds. ``None`` means no limit.
        """
        for sleep in sleeps(timeout):
            alarm = threading.Lock()
            alarm.acquire()
            try:
                self._alarms.add(alarm)  # before the check: the change may come just after it
                if condition():
                    return True
                alarm.acquire(timeout=sleep)
            finally:
                self._alarms.discard(alarm)
        return bool(condition())

    def wake_all(self) -> None:
        """Have each waiting thread check its condition again."""
        for alarm in list(self._alarms):
            with contextlib.suppress(RuntimeError):  # another thread has released it
                alarm.release()


def let_others_run() -> None:
    """Do nothing. C code calls this function so that other threads may get the GIL meanwhile.

    Whenever a Python function starts, the interpreter passes the GIL to a thread that demands it,
    and raises exceptions that were sent to this thread. If C code instead released the GIL and took
    it again, the waiting thread would wake up too late. That thread would have to wait for another
    switch interval before it could demand the GIL again.
    """


def check_same_process(owner: object, creator: int) -> None:
    """Raise a ``RuntimeError`` if another process has made ``owner``.

    ``creator`` is the id of the process that made ``owner``. Each wait calls this function: in a
    forked child, no other thread exists that could end the wait.
    """
    if os.getpid() != creator:
        raise RuntimeError(
            f"this {type(owner).__name__} was made by process {creator} and cannot be waited for "
            "in a fork of it"
        )


def check_threads(
    what: str,
    instead: str = "the queues of gevent or eventlet, or RSTREAMS_FAST_BACKEND=python, "
    "whose locks they replace",
) -> None:
    """Raise a ``RuntimeError`` if gevent or eventlet has replaced threads by greenlets.

    All greenlets run in one thread of the operating system. A wait in C would block this thread.

    Args:
        what: The subject of the error message.
        instead: The end of the error message: what can be used instead of ``what``.
    """
    if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        raise RuntimeError(  # noqa: TRY004 - no argument has a wrong type
            f"{what} would block every greenlet: gevent's or eventlet's monkey patch has replaced "
            f"threads; take {instead}"
        )


def refuse_overlap(ring: object, side: str) -> NoReturn:
    """Raise ``OverlappingCallsError``: another call is running on this ``side`` of ``ring``."""
    raise OverlappingCallsError(
        f"two calls overlap on the {side} side of this {type(ring).__name__}"
    )


def refuse_pickle(owner: object) -> NoReturn:
    """Raise the ``TypeError`` for pickling ``owner``, which is bound to this process."""
    raise TypeError(f"a {type(owner).__name__} is a live object: it cannot be pickled or copied")


def cancel_quietly(subscription: Any) -> None:
    """Call ``cancel()``. If it raises an exception, which §3.15 forbids, only report it."""
    try:
        subscription.cancel()
    except Exception as raised:
        report_dropped(raised, "§3.15: cancel() raised")


def check_waker(waker: object) -> None:
    """Raise a ``TypeError`` if ``waker`` is not callable."""
    if not callable(waker):
        raise TypeError(f"waker must be callable, got {type(waker).__name__}")


def end_error(error: BaseException | None) -> BaseException:
    """Return the exception that a call on a closed, empty ring must raise.

    ``error`` is the argument of the ring's ``close``. If ``error`` is ``None``, return a
    ``RingClosed``, otherwise ``error``.
    """
    return RingClosed("the ring is closed and empty") if error is None else error


def wake_quietly(waker: Callable[[], object]) -> None:
    """Call the waker of a producer. If the waker raises an exception, only report it.

    The consumer's calls that take elements out use this function. If such a call raised the
    exception, the elements that it has taken out would be lost.
    """
    try:
        waker()
    except Exception as raised:
        report_unraisable(raised, "the waker of a ring's producer", waker)
