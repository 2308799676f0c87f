"""Helpers for threads that wait without polling, and checks that a thread may wait at all.

A thread without work arms a *bell*: it stores a function in the bell that wakes this thread. Then
it sleeps. A thread with work for the sleeping thread rings the bell, which calls the function.

This module does not import asyncio: a program without a loop never loads it.
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

#: The longest single wait of the main thread on Windows, in seconds. There a signal cannot
#: interrupt a wait for a lock. So the main thread wakes up again and again to handle signals.
UNINTERRUPTIBLE_SLEEP: Final = 0.05

_UNINTERRUPTIBLE: Final = os.name == "nt"

#: Whether only one thread of this process runs Python code at a time.
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

    If a signal handler raises an exception (``KeyboardInterrupt``), the wait ends.
    """
    # Only the main thread handles signals. Other threads need not wake up to check for signals.
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
    """Wakes one waiting thread or task.

    To wait: call ``arm``, check the state again, then sleep. To wake: change the state, then call
    ``ring``. ``arm`` and ``ring`` exclude each other by a lock or the GIL. So either the check sees
    the change, or ``ring`` calls the function that ``arm`` got, which wakes the waiter. ``ring``
    calls this function at most once after each ``arm``.
    """

    __slots__ = ("_lock", "_waker")

    def __init__(self) -> None:
        # Reentrant: a finalizer that calls ``ring`` may run on the thread that holds the lock.
        self._lock = threading.RLock()
        self._waker: Callable[[], object] | None = None

    def arm(self, waker: Callable[[], object]) -> None:
        """Set ``waker``. The next call of ``ring`` calls it once, on the thread of that call."""
        with self._lock:
            self._waker = waker

    def disarm(self) -> None:
        with self._lock:
            self._waker = None

    def ring(self) -> None:
        """Call the function that the last ``arm`` got, unless a ``ring`` has done so already."""
        if HAS_GIL and self._waker is None:
            return
        with self._lock:
            waker, self._waker = self._waker, None
        if waker is not None:
            waker()


Signaller = Callable[[], bool]
"""A function of one stream: returns whether this thread is just sending a signal of that stream.

If so, no other thread can send signals of that stream meanwhile."""

_thread_state: Final = threading.local()


def signallers_of_thread() -> list[Signaller]:
    """Return this thread's list of ``Signaller`` functions.

    A window or a group gets its elements from the signals of its stream. Suppose that code within
    such a signal subscribes to the window, and then waits for elements of the window: its thread
    would wait for itself. So on subscription a window or a group adds a function to the list.
    """
    try:
        return _thread_state.signallers  # type: ignore[no-any-return]
    except AttributeError:
        _thread_state.signallers = signallers = list[Signaller]()
        return signallers


def refuse_to_wait_for_oneself(signallers: list[Signaller]) -> None:
    """Raise ``RuntimeError`` if this thread would wait for signals that only itself can send.

    ``signallers`` are the ``Signaller`` functions of the streams for whose signals it would wait.
    """
    if any(signals_here() for signals_here in signallers):
        raise RuntimeError(
            "this would wait for ever for the elements of a window or a group: the thread that is "
            "to bring them is this one, within a function of the stream that they are a part of; "
            "use flat_map there, or publish_on() above that function"
        )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or ``None``."""
    get: Any = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    loop: asyncio.AbstractEventLoop | None = None if get is None else get()
    return loop


def refuse_in_loop(what: str, instead: str) -> None:
    """Raise ``RuntimeError`` if an event loop runs in this thread: a wait would block the loop.

    Args:
        what: The name of the blocking call, for the message.
        instead: What to do instead, for the message.
    """
    if running_loop() is not None:
        raise RuntimeError(
            f"{what} would block the running event loop, and whatever it waits for there; {instead}"
        )
