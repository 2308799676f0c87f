"""Shared by the three backends: result codes, waiting, checks, and error messages. No state."""

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
"""``DemandCounter`` state after ``cancel()``."""

TERMINATED: Final = -2
"""``DemandCounter`` state after ``terminate()``."""


class Missing(enum.Enum):
    """The type of ``MISSING``.

    Attributes:
        MISSING: The only value.
    """

    MISSING = enum.auto()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING

GOES_ON: Final = 32
"""The most elements for which a drain of several bursts goes on. The caller looks at the clock only
after that, and other work may be waiting for its turn."""
"""Stands for "no seed was given" in a program's ``scan`` and ``reduce``."""


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
    """Why a call of ``FusedRun`` returned."""

    MORE = 0
    """There is demand left, and there may be elements: call again."""
    IDLE = 1
    """The demand is used up."""
    EXHAUSTED = 2
    """The source has no more elements now; the caller knows whether it may get more."""
    ENDED = 3
    """A stage (``take``, ``take_while``) needs no more: cancel upstream, then call ``finish()``."""
    DONE = 4
    """``finish()`` has flushed everything: signal ``on_complete``."""
    CANCELLED = 5
    """The demand counter was cancelled or terminated."""
    FAILED = 6
    """The source or a stage raised ``run.error``: signal ``on_error``."""
    SLOT_FAILED = 7
    """The slot raised ``run.error``: the subscriber broke §2.13."""
    DROPPED = 8
    """``push`` only: the element was left out; ``run.refund`` more may be requested upstream."""


class FunctionSlot:
    """A slot for a user's function: a ``FusedRun`` calls it directly, without a frame in between.

    Args:
        function: Called with every result.
        over: A list. Once it has an item, no more results are wanted.
        answered: Called with the return value of ``function`` if it is ``False`` or a coroutine.
        unwanted: Called with each result after the end, in place of ``function``.
        failed: Called with an exception of the other functions. It cancels the demand, or raises.
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
"""Seconds until a waiting thread wakes up for the first time. See ``sleeps``."""

SLEEP_GROWTH: Final = 1 if os.name == "nt" else 2
"""The factor of the next sleep; 1 where a signal cannot interrupt the wait for a lock."""


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
    """Do nothing, in Python: when a Python function starts, the interpreter handles requests.

    It passes the GIL to a thread that wants it, and raises an exception that was sent to this
    thread. Releasing and retaking the GIL in C is no substitute: the waiting thread wakes too late,
    and has to wait for a new switch interval, at whose end it may force a switch.
    """


def check_same_process(owner: object, creator: int) -> None:
    """Refuse to wait in the child of a fork: the waking threads exist only in the parent."""
    if os.getpid() != creator:
        raise RuntimeError(
            f"this {type(owner).__name__} was made by process {creator} and cannot be waited for "
            "in a fork of it"
        )


def check_threads(what: str) -> None:
    """Refuse to wait if gevent or eventlet has replaced threads by greenlets.

    A wait in C stops the thread of the system, and with it the loop that runs all greenlets.
    """
    if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        raise RuntimeError(  # noqa: TRY004 - no argument has a wrong type
            f"{what} would block every greenlet: gevent's or eventlet's monkey patch has replaced "
            "threads; take the queues of gevent or eventlet, or RSTREAMS_FAST_BACKEND=python, "
            "whose locks they replace"
        )


def refuse_overlap(ring: object, side: str) -> NoReturn:
    """Refuse a second call on one side of a ring while the first goes on."""
    raise OverlappingCallsError(
        f"two calls overlap on the {side} side of this {type(ring).__name__}"
    )


def refuse_pickle(owner: object) -> NoReturn:
    """Refuse to copy or pickle an object that is bound to this process."""
    raise TypeError(f"a {type(owner).__name__} is a live object: it cannot be pickled or copied")


def cancel_quietly(subscription: Any) -> None:
    """Cancel; report an exception, which §3.15 forbids, without raising it."""
    try:
        subscription.cancel()
    except Exception as raised:
        report_dropped(raised, "§3.15: cancel() raised")


def check_waker(waker: object) -> None:
    """Refuse a waker that the other side could not call later."""
    if not callable(waker):
        raise TypeError(f"waker must be callable, got {type(waker).__name__}")


def end_error(error: BaseException | None) -> BaseException:
    """Return the exception at the end of a ring: ``error``, even a falsy one, or ``RingClosed``."""
    return RingClosed("the ring is closed and empty") if error is None else error


def wake_quietly(waker: Callable[[], object]) -> None:
    """Call the waker of a producer. Its exception is reported: raised, it would lose the elements
    that the calling consumer has taken out.
    """
    try:
        waker()
    except Exception as raised:
        report_unraisable(raised, "the waker of a ring's producer", waker)
