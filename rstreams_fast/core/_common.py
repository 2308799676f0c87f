"""Parts that the three backends share: result codes, waiting, checks and error messages."""

from __future__ import annotations

import _thread
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
"""Stands for the seed of a ``scan`` or ``reduce`` that has no seed."""

GOES_ON: Final = 32
"""The most elements that one ``FusedRun.drain`` processes if the demand grows meanwhile.

There are few, because the caller looks at the clock only after the call, and other work may
wait."""


class Emission(enum.IntEnum):
    """The result of ``SignalSerializer.try_next``.

    Attributes:
        OK: The element was delivered, or is in the mailbox.
        FULL: The mailbox is full.
        BUSY: Another thread delivers, and ``fail_fast`` is set.
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
    """There is demand left, and there may be elements: call ``drain`` again."""
    IDLE = 1
    """The demand is used up."""
    EXHAUSTED = 2
    """The source has no more elements now. The caller knows whether more may come."""
    ENDED = 3
    """A stage (``take``, ``take_while``) needs no more: cancel upstream, then call ``finish()``."""
    DONE = 4
    """``finish()`` has delivered everything: signal ``on_complete``."""
    CANCELLED = 5
    """The demand counter was cancelled or terminated."""
    FAILED = 6
    """The source or a stage raised ``run.error``: signal ``on_error``."""
    SLOT_FAILED = 7
    """The receiver of the results (slot) raised ``run.error``: the subscriber broke §2.13."""
    DROPPED = 8
    """Only ``push`` returns this: a stage dropped the element. Request ``run.refund`` more."""


class FunctionSlot:
    """A receiver (slot) of a ``FusedRun``'s results that calls a user's function directly.

    Args:
        function: The user's function, called with every result.
        over: A list. If it has an item, ``function`` is not called any more.
        answered: Called with the return value of ``function`` if it is ``False`` or a coroutine.
        unwanted: Called with each result after the end, in place of ``function``.
        failed: Called with an exception that another of these functions raised. ``failed`` must
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
"""Seconds until a waiting thread first wakes up to check for signals. See ``sleeps``."""

SLEEP_GROWTH: Final = 1 if os.name == "nt" else 2
"""The factor by which each sleep is longer than the previous one.

1 on systems where a signal cannot interrupt the wait for a lock."""


def sleeps(timeout: float | None) -> Iterator[float]:
    """Yield the lengths of successive sleeps, in seconds, until ``timeout`` is over.

    A signal that arrives after the last check for signals, but before the thread sleeps, does not
    wake the thread. So the first sleeps are short.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    sleep = FIRST_SLEEP
    while (left := until - time.monotonic()) > 0:
        yield min(sleep, left, threading.TIMEOUT_MAX)
        sleep *= SLEEP_GROWTH


def let_others_run() -> None:
    """Do nothing. C code calls this because the interpreter acts when a Python function starts.

    The interpreter then passes the GIL to a thread that wants it, and raises an exception that was
    sent to this thread. To release and retake the GIL in C is not enough: the waiting thread wakes
    too late, and then waits for another switch interval before it can force a switch.
    """


def check_same_process(owner: object, creator: int) -> None:
    """Raise a ``RuntimeError`` in a forked child, where no other thread could end a wait."""
    if os.getpid() != creator:
        raise RuntimeError(
            f"this {type(owner).__name__} was made by process {creator} and cannot be waited for "
            "in a fork of it"
        )


def check_threads(what: str) -> None:
    """Raise a ``RuntimeError`` if gevent or eventlet has replaced threads by greenlets.

    A wait in C blocks the thread of the operating system, and so the loop that runs all greenlets.
    """
    if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        raise RuntimeError(  # noqa: TRY004 - no argument has a wrong type
            f"{what} would block every greenlet: gevent's or eventlet's monkey patch has replaced "
            "threads; take the queues of gevent or eventlet, or RSTREAMS_FAST_BACKEND=python, "
            "whose locks they replace"
        )


def refuse_overlap(ring: object, side: str) -> NoReturn:
    """Raise the error of a second call on one side of a ring while another call is running."""
    raise OverlappingCallsError(
        f"two calls overlap on the {side} side of this {type(ring).__name__}"
    )


def refuse_pickle(owner: object) -> NoReturn:
    """Raise a ``TypeError``, as ``owner`` belongs to this process and cannot be pickled."""
    raise TypeError(f"a {type(owner).__name__} is a live object: it cannot be pickled or copied")


def cancel_quietly(subscription: Any) -> None:
    """Call ``cancel()``. An exception, which §3.15 forbids, is reported, not raised."""
    try:
        subscription.cancel()
    except Exception as raised:
        report_dropped(raised, "§3.15: cancel() raised")


def check_waker(waker: object) -> None:
    """Raise a ``TypeError`` if ``waker``, which is to be called later, cannot be called."""
    if not callable(waker):
        raise TypeError(f"waker must be callable, got {type(waker).__name__}")


def end_error(error: BaseException | None) -> BaseException:
    """Return the exception of a call on a closed, empty ring: ``error``, or ``RingClosed``."""
    return RingClosed("the ring is closed and empty") if error is None else error


def wake_quietly(waker: Callable[[], object]) -> None:
    """Call the waker of a producer. An exception of the waker is reported, not raised.

    If it were raised, the calling consumer would lose the elements that it has taken out.
    """
    try:
        waker()
    except Exception as raised:
        report_unraisable(raised, "the waker of a ring's producer", waker)
