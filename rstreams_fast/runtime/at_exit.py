"""The interpreter's exit: lets threads that wait for work end before Python joins them."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from rstreams_fast.errors import WorkDroppedError, expect

__all__ = ["call_at_exit", "exiting", "too_late"]

_lock = threading.RLock()  # reentrant: the garbage collector may call this
_callbacks: list[Callable[[], object]] = []
_exiting = False
_too_late = False


def call_at_exit(callback: Callable[[], object]) -> bool:
    """Register ``callback``, to be called once before Python joins the threads of this process.
    ``False``: it is too late, so a thread that relies on the call must be a daemon. Thread-safe.
    """
    global _too_late  # noqa: PLW0603
    if callback in _callbacks:
        return True
    with _lock:
        if callback in _callbacks:
            return True
        if not _callbacks and not _exiting:
            # Threads are joined before atexit functions run, so this uses threading's own list, as
            # concurrent.futures does; if Python has no such list, atexit must do.
            register = getattr(threading, "_register_atexit", atexit.register)
            try:
                register(_call_all)
            except RuntimeError:  # the main thread has ended
                _begin()
        if _exiting:
            _too_late = True
            return False
        _callbacks.append(callback)
        return True


def too_late() -> bool:
    """Whether callbacks cannot be registered any more, so that a thread must be a daemon."""
    return _too_late or not call_at_exit(_nothing)


def _nothing() -> None:
    """The callback of a thread that needs no call, but must know whether it would get one."""


def exiting() -> bool:
    """Whether the interpreter has begun to exit."""
    return _exiting


def _begin() -> None:
    global _exiting  # noqa: PLW0603
    _exiting = True
    expect(WorkDroppedError)


def _call_all() -> None:
    _begin()
    for callback in reversed(_callbacks):
        callback()
