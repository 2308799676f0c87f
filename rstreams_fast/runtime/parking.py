"""Lets a thread wait without polling, and refuses waits that would block a loop or never end.

A thread without work arms a ``Doorbell``: it stores a function that wakes the thread. Then it
sleeps. A thread that has work for the sleeping thread rings the bell, which calls the function.

This module does not import asyncio, so that a program without an event loop does not load asyncio.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.core._common import FIRST_SLEEP

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "HAS_GIL",
    "Doorbell",
    "Signaller",
    "acquire",
    "new_event",
    "refuse_in_loop",
    "refuse_to_wait_for_oneself",
    "running_loop",
    "signallers_of_thread",
]

#: The longest single wait of the main thread on Windows, in seconds. On Windows a signal cannot
#: interrupt a wait for a lock. So the main thread wakes up again and again to handle signals.
UNINTERRUPTIBLE_SLEEP: Final = 0.05

_UNINTERRUPTIBLE: Final = os.name == "nt"

#: Whether this Python has a global interpreter lock (GIL).
HAS_GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()


def new_event() -> threading.Lock:
    """Return a locked lock that serves as an event.

    ``release`` sets the event. ``acquire`` waits until the event is set.
    """
    event = threading.Lock()
    event.acquire()
    return event


def acquire(event: threading.Lock, timeout: float | None = None) -> bool:
    """Wait until ``event`` is set. Return ``False`` if it is not set within ``timeout`` seconds.

    ``event`` is a lock of ``new_event``. If a signal handler raises an exception, such as
    ``KeyboardInterrupt``, the wait ends, and the exception propagates.
    """
    # Only the main thread handles signals. So only the main thread must wake up to handle them.
    if threading.current_thread() is not threading.main_thread():
        longest = threading.TIMEOUT_MAX
        return event.acquire(timeout=longest if timeout is None else min(timeout, longest))
    until = math.inf if timeout is None else time.monotonic() + timeout
    sleep = UNINTERRUPTIBLE_SLEEP if _UNINTERRUPTIBLE else FIRST_SLEEP
    while not event.acquire(timeout=max(0.0, min(sleep, until - time.monotonic()))):
        if time.monotonic() >= until:
            return False
        if not _UNINTERRUPTIBLE:
            sleep = min(2 * sleep, threading.TIMEOUT_MAX)
    return True


class Doorbell:
    """Wakes one waiting thread or task, without a lost wake-up.

    To wait for a change of some state: call ``arm(waker)``, check the state again, then sleep. To
    wake the waiter: change the state, then call ``ring``. A lock or the GIL prevents that ``arm``
    and ``ring`` overlap. So either the waiter's check sees the change, or ``ring`` calls ``waker``.
    After each ``arm``, ``waker`` is called at most once.
    """

    __slots__ = ("_lock", "_waker")

    def __init__(self) -> None:
        # Reentrant: a finalizer may interrupt the thread that holds this lock, and call ``ring``.
        self._lock = threading.RLock()
        self._waker: Callable[[], object] | None = None

    def arm(self, waker: Callable[[], object]) -> None:
        """Store ``waker``. The next ``ring`` calls ``waker`` once, on the thread that rings."""
        with self._lock:
            self._waker = waker

    def disarm(self) -> None:
        with self._lock:
            self._waker = None

    def ring(self) -> None:
        """Call the ``waker`` of the last ``arm``, unless an earlier ``ring`` has called it."""
        if HAS_GIL and self._waker is None:
            return
        with self._lock:
            waker, self._waker = self._waker, None
        if waker is not None:
            waker()


Signaller = Callable[[], bool]
"""A function that returns whether the calling thread is within a signal of a certain stream.

A signal is a call such as ``on_next``. Until it returns, no other thread can signal (§1.3)."""

_thread_state: Final = threading.local()


def signallers_of_thread() -> list[Signaller]:
    """Return this thread's list of ``Signaller`` functions, to detect a wait that cannot end.

    A window or a group gets its elements from the signals of the stream that it is a part of.
    Suppose that a function of this stream subscribes to the window, and then waits for elements of
    the window. The thread would wait for itself, because only this thread can send the elements. To
    detect this, ``subscribe`` of a window or a group adds a ``Signaller`` to the list: a function
    that returns whether the calling thread is within a signal of the stream. A wait checks this.
    """
    try:
        return _thread_state.signallers  # type: ignore[no-any-return]
    except AttributeError:
        _thread_state.signallers = signallers = list[Signaller]()
        return signallers


def refuse_to_wait_for_oneself(signallers: list[Signaller]) -> None:
    """Raise ``RuntimeError`` if this thread would wait for signals that only this thread can send.

    ``signallers`` has a function for each stream whose signals the wait needs. This function
    returns whether the calling thread is within a signal (such as ``on_next``) of the stream.
    """
    if any(signals_here() for signals_here in signallers):
        raise RuntimeError(
            "this would wait for ever for the elements of a window or a group: the thread that is "
            "to bring them is this one, within a function of the stream that they are a part of; "
            "use flat_map there, or publish_on() above that function"
        )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or ``None`` if no loop runs in it."""
    get: Any = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    loop: asyncio.AbstractEventLoop | None = None if get is None else get()
    return loop


def refuse_in_loop(what: str, instead: str) -> None:
    """Raise ``RuntimeError`` if an event loop runs in this thread: a wait would block the loop.

    Args:
        what: The name of the blocking call, for the error message.
        instead: What the user should do instead of the blocking call, for the error message.
    """
    if running_loop() is not None:
        raise RuntimeError(
            f"{what} would block the running event loop, and whatever it waits for there; {instead}"
        )
