"""What the three backends share: answers, checks of programs, waiting, messages. No state."""

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
"""Stands for "no seed was given" in a program's ``scan`` and ``reduce``."""


class Emission(enum.IntEnum):
    """An answer of ``SignalSerializer.try_next``.

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
    """Why ``FusedRun`` gave control back."""

    MORE = 0
    """There is demand left, and perhaps elements: call again."""
    IDLE = 1
    """The demand is used up."""
    EXHAUSTED = 2
    """The source has nothing more at the moment; the caller knows whether that is its end."""
    ENDED = 3
    """A stage (``take``, ``take_while``) needs no more: cancel upstream, then ``finish()``."""
    DONE = 4
    """``finish()`` has flushed everything: signal ``on_complete``."""
    CANCELLED = 5
    """The demand counter was cancelled or terminated."""
    FAILED = 6
    """The source or a stage raised ``run.error``: signal ``on_error``."""
    SLOT_FAILED = 7
    """The slot raised ``run.error``: the subscriber broke §2.13."""
    DROPPED = 8
    """``push`` only: the element was filtered out; ``run.refund`` more may be asked upstream."""


class FunctionSlot:
    """A slot that is somebody's function: a ``FusedRun`` calls it without a frame between.

    Args:
        function: Called with every result.
        over: While this list is empty, results are wanted.
        answered: Called with what ``function`` returned, if that is ``False`` or a coroutine.
        unwanted: Called with a result that is not wanted any more.
        failed: Called with an exception of the others. It cancels the demand, or raises.
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
"""Seconds after which a waiting thread looks up first. See ``sleeps``."""

SLEEP_GROWTH: Final = 1 if os.name == "nt" else 2
"""By how much its next sleep is longer. Where locks cannot be interrupted, it must keep looking."""


def sleeps(timeout: float | None) -> Iterator[float]:
    """Yield how long to sleep, again and again, until ``timeout`` seconds are over.

    A signal that comes between the last look at signals and the falling asleep does not wake the
    thread, since the two are not one step. So the first sleeps are short.
    """
    until = math.inf if timeout is None else time.monotonic() + timeout
    sleep = FIRST_SLEEP
    while (left := until - time.monotonic()) > 0:
        yield min(sleep, left, threading.TIMEOUT_MAX)
        sleep *= SLEEP_GROWTH


def let_others_run() -> None:
    """Do nothing, in Python: where a function starts, the interpreter looks around.

    It hands the GIL to a thread that asks for it, and raises what was sent to this one. To release
    the GIL from C and take it again is no substitute: a waiting thread is woken, comes too late,
    and begins a new switch interval, at whose end alone it may insist.
    """


def check_same_process(owner: object, creator: int) -> None:
    """Refuse to wait in the child of a fork: the threads that would wake it exist in its parent."""
    if os.getpid() != creator:
        raise RuntimeError(
            f"this {type(owner).__name__} was made by process {creator} and cannot be waited for "
            "in a fork of it"
        )


def check_threads(what: str) -> None:
    """Refuse to wait where gevent or eventlet has made greenlets of the threads.

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
    """Refuse to copy or pickle a live object."""
    raise TypeError(f"a {type(owner).__name__} is a live object: it cannot be pickled or copied")


def cancel_quietly(subscription: Any) -> None:
    """Cancel; an exception, which §3.15 forbids, is reported and does not stop the caller."""
    try:
        subscription.cancel()
    except Exception as raised:
        report_dropped(raised, "§3.15: cancel() raised")


def check_waker(waker: object) -> None:
    """Refuse at once what the other side could not call later."""
    if not callable(waker):
        raise TypeError(f"waker must be callable, got {type(waker).__name__}")


def end_error(error: BaseException | None) -> BaseException:
    """Return what the end of a ring raises that was closed with ``error``, which may be falsy."""
    return RingClosed("the ring is closed and empty") if error is None else error


def wake_quietly(waker: Callable[[], object]) -> None:
    """Call the waker of a producer. What it raises must not get in the way of who took elements
    out: these would be lost.
    """
    try:
        waker()
    except Exception as raised:
        report_unraisable(raised, "the waker of a ring's producer", waker)
