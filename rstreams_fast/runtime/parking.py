"""Waiting without polling: a side that finds nothing arms a bell and sleeps until it is rung.

Nothing here imports asyncio: a program that has no loop never loads it.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

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
    "signallers_here",
]

#: The main thread looks up after this many seconds, then after twice as many, and so on. A signal
#: that comes between its last look and its falling asleep does not wake it, for letting signals in
#: and waiting for a lock is not one step; it is handled at the next look.
FIRST_SLEEP: Final = 0.02

#: Where a lock cannot be interrupted at all, it looks up this often.
UNINTERRUPTIBLE_SLEEP: Final = 0.05

_UNINTERRUPTIBLE: Final = os.name == "nt"

#: Whether threads of this process run Python code one at a time.
HAS_GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()


def new_event() -> threading.Lock:
    """Return a lock that is held: ``release`` is the event, ``acquire`` waits for it."""
    event = threading.Lock()
    event.acquire()
    return event


def acquire(event: threading.Lock, timeout: float | None = None) -> bool:
    """Wait until ``event`` is released; ``False`` after ``timeout`` seconds.

    What a signal raises (``KeyboardInterrupt``) leaves at once.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are no concern here
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
    """Wakes the one side that waits, once for each time it says that it does.

    To wait: ``arm``, look again, sleep. To bring news: bring it, then ``ring``. As both go
    through one lock (or the GIL), either the look sees the news or the bell is answered.
    """

    __slots__ = ("_answer", "_lock")

    def __init__(self) -> None:
        # Reentrant, for the collector may run anything anywhere, and so ring while it is rung.
        self._lock = threading.RLock()
        self._answer: Callable[[], object] | None = None

    def arm(self, answer: Callable[[], object]) -> None:
        """Have ``answer`` called by the next ``ring``, in the thread that rings."""
        with self._lock:
            self._answer = answer

    def disarm(self) -> None:
        """Forget the answer."""
        with self._lock:
            self._answer = None

    def ring(self) -> None:
        """Any thread: call the answer, if somebody waits."""
        if HAS_GIL and self._answer is None:
            return
        with self._lock:
            answer, self._answer = self._answer, None
        if answer is not None:
            answer()


Signaller = Callable[[], bool]
"""Whether this thread is the one that signals, at this moment, and so nobody else can."""

_here: Final = threading.local()


def signallers_here() -> list[Signaller]:
    """Return those that signal in this thread, and were subscribed to while they do.

    A thread that subscribes to wait compares: a new entry waits for this very thread.
    """
    try:
        return _here.signallers  # type: ignore[no-any-return]
    except AttributeError:
        _here.signallers = signallers = list[Signaller]()
        return signallers


def refuse_to_wait_for_oneself(signallers: list[Signaller]) -> None:
    """Raise ``RuntimeError`` where this thread would wait for signals that it is to send itself."""
    if any(signals_here() for signals_here in signallers):
        raise RuntimeError(
            "this would wait for ever for the elements of a window or a group: the thread that is "
            "to bring them is this one, within a function of the stream that they are a part of; "
            "use flat_map there, or publish_on() above that function"
        )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if one does."""
    get: Any = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    loop: asyncio.AbstractEventLoop | None = None if get is None else get()
    return loop


def refuse_in_loop(what: str, instead: str) -> None:
    """Raise ``RuntimeError`` inside a running event loop, which ``what`` would block."""
    if running_loop() is not None:
        raise RuntimeError(
            f"{what} would block the running event loop, and whatever it waits for there; {instead}"
        )
