"""What the three backends share: answers, argument checks and messages. No state."""

from __future__ import annotations

import enum
import math
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from rstreams_fast.errors import (
    InvalidRequest,
    InvalidRequestType,
    NoneSignal,
    OverlappingCalls,
    RingClosed,
    StageReturnedNone,
    report_dropped,
    report_unraisable,
    shown,
)

__all__ = [
    "CANCELLED",
    "MISSING",
    "TERMINATED",
    "Emission",
    "RunStatus",
    "cancel_quietly",
    "check_bool",
    "check_capacity",
    "check_count",
    "check_element",
    "check_error",
    "check_program",
    "check_request",
    "check_same_process",
    "check_subscriber",
    "check_timeout",
    "check_waker",
    "describe_callable",
    "end_error",
    "let_others_run",
    "none_returned",
    "refuse_overlap",
    "refuse_pickle",
    "sleeps",
    "wake_quietly",
]

CANCELLED: Final = -1
"""``DemandCounter`` state after ``cancel()``."""

TERMINATED: Final = -2
"""``DemandCounter`` state after ``terminate()``."""

MAX_CAPACITY: Final = 2**31
"""The largest ring or mailbox, in elements."""


class _Missing(enum.Enum):
    MISSING = enum.auto()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing.MISSING
"""Stands for "no seed was given" in a program's ``scan`` and ``reduce``."""


class Emission(enum.IntEnum):
    """What ``SignalSerializer.try_next`` answers."""

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


OPCODES: Final = frozenset(
    {
        "map",
        "map_not_none",
        "filter",
        "take",
        "take_while",
        "skip",
        "scan",
        "reduce",
        "batch",
        "do_on_next",
    }
)


_STAGE_LENGTHS: Final = {"scan": 3, "reduce": 3}  # of an op with its name; of the others: 2
_COUNTS: Final = {"take": 0, "skip": 0, "batch": 1}  # whose argument is a number, and the least


def as_int(value: object) -> int | None:
    """Return ``value`` as an ``int``; ``None`` when it is a ``bool`` or no integer at all."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_request(n: object) -> int:
    """Return the demand that ``request(n)`` adds, or raise what §3.9 asks for."""
    count = as_int(n)
    if count is None:
        raise InvalidRequestType(n)
    if count <= 0:
        raise InvalidRequest(n)
    return count


def check_count(name: str, value: object, minimum: int = 0) -> int:
    """Return the integer argument ``name``; ``TypeError`` or ``ValueError`` names it."""
    count = as_int(value)
    if count is None:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if count < minimum:
        raise ValueError(f"{name} must be >= {minimum}, got {shown(count)}")
    return count


def check_bool(name: str, value: object) -> bool:
    """Return the argument ``name``, a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def check_capacity(name: str, value: object) -> int:
    """Return the capacity argument ``name``, 1 to 2**31 elements."""
    capacity = check_count(name, value, 1)
    if capacity > MAX_CAPACITY:
        raise ValueError(f"{name} must be <= 2**31, got {shown(capacity)}")
    return capacity


def check_timeout(timeout: object) -> float | None:
    """Return a time-out in seconds; ``None`` waits for ever."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds, got {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"timeout must be >= 0 seconds, got {shown(timeout)}")
    # What the system cannot wait for is as good as for ever.
    return float(timeout) if timeout <= threading.TIMEOUT_MAX else None


LONGEST_SPIN: Final = 0.001
"""Seconds that a thread may look for work without doing any. Parking takes a few per cent of it."""


def check_spin(spin: object) -> float:
    """Return for how many seconds to spin."""
    if isinstance(spin, bool) or not isinstance(spin, int | float):
        raise TypeError(f"spin must be a number of seconds, got {type(spin).__name__}")
    if not 0 <= spin <= LONGEST_SPIN:
        raise ValueError(f"spin must be 0 to {LONGEST_SPIN} seconds, got {shown(spin)}")
    return float(spin)


FIRST_SLEEP: Final = 0.02
"""Seconds after which a waiting thread looks up first. See :func:`sleeps`."""

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
    the GIL from C and take it again is no substitute: who waits for it is woken, comes too late,
    and begins a new switch interval, at whose end alone it may insist.
    """


def check_same_process(owner: object, creator: int) -> None:
    """Refuse to wait in the child of a fork: the threads that would wake it exist in its parent."""
    if os.getpid() != creator:
        raise RuntimeError(
            f"this {type(owner).__name__} was made by process {creator} and cannot be waited for "
            "in a fork of it"
        )


def refuse_overlap(ring: object, side: str) -> NoReturn:
    """Refuse a second call on one side of a ring while the first goes on."""
    raise OverlappingCalls(f"two calls overlap on the {side} side of this {type(ring).__name__}")


def refuse_pickle(owner: object) -> NoReturn:
    """Refuse to copy or pickle a live object."""
    raise TypeError(f"a {type(owner).__name__} is a live object: it cannot be pickled or copied")


def check_subscriber(subscriber: object) -> None:
    """Refuse ``None`` (§1.9) and what lacks one of a subscriber's methods."""
    if subscriber is None:
        raise NoneSignal("§1.9: subscriber is None")
    for name in ("on_subscribe", "on_next", "on_error", "on_complete"):
        if not callable(getattr(subscriber, name, None)):
            raise TypeError(f"subscriber has no method {name}")


def check_error(error: object) -> None:
    """Refuse what is no exception instance; ``None`` as §2.13 asks for."""
    if error is None:
        raise NoneSignal("§2.13: error is None")
    if not isinstance(error, BaseException):
        raise TypeError(f"error must be an exception instance, got {type(error).__name__}")


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


def check_element(element: object) -> None:
    """Refuse ``None``, which is no element (§2.13)."""
    if element is None:
        raise NoneSignal("§2.13: None is not an element")


def check_program(program: object) -> tuple[tuple[Any, ...], ...]:
    """Return a program of ``(opcode, argument, ...)`` tuples, or name what is wrong with it.

    Its numbers are plain ints: others may overflow, or have no arithmetic at all.
    """
    checked = [tuple(op) for op in program]  # type: ignore[attr-defined]
    for index, op in enumerate(checked):
        if not op or op[0] not in OPCODES:
            raise ValueError(f"stage {index + 1}: unknown opcode {op[:1]!r}")
        name = op[0]
        if len(op) != _STAGE_LENGTHS.get(name, 2):
            takes = (
                "a function and a seed (or MISSING)" if name in _STAGE_LENGTHS else "one argument"
            )
            raise ValueError(f"stage {index + 1}: {name} needs {takes}")
        if name in _COUNTS:
            checked[index] = (name, check_count(f"{name}(n): n", op[1], _COUNTS[name]))
        elif not callable(op[1]):
            raise TypeError(f"{name} needs a callable, got {type(op[1]).__name__}")
    return tuple(checked)


def describe_callable(fn: Callable[..., Any]) -> str:
    """Name a user's function for a message."""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    module = getattr(fn, "__module__", None)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def none_returned(index: int, op: str, fn: Callable[..., Any]) -> StageReturnedNone:
    """Build the error of a stage whose function returned ``None``; ``index`` counts from 0."""
    hint = "; use map_not_none to drop such elements" if op == "map" else ""
    return StageReturnedNone(
        f"§2.13: {describe_callable(fn)}, the function of stage {index + 1} ({op}), "
        f"returned None, which is not an element{hint}"
    )
