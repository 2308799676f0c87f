"""The interpreter's exit, as threads that wait for work have to learn of it."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from rstreams_fast.errors import WorkDroppedError, expect

__all__ = ["call_at_exit", "exiting", "too_late"]

_lock = threading.RLock()  # reentrant, for the collector may run anything anywhere
_callbacks: list[Callable[[], object]] = []
_exiting = False
_too_late = False


def call_at_exit(callback: Callable[[], object]) -> bool:
    """Have ``callback()`` called before the threads of this process are joined; once, however often
    it is given. False: it is too late for that, so the interpreter must not wait for the thread
    that would wait for the call. Any thread.
    """
    global _too_late  # noqa: PLW0603
    if callback in _callbacks:
        return True
    with _lock:
        if callback in _callbacks:
            return True
        if not _callbacks and not _exiting:
            # Threads are joined before atexit callbacks run, hence threading's own list, as in
            # concurrent.futures; where there is none, the public one is the best there is.
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
    """Whether something was begun that cannot learn of the exit."""
    return _too_late


def exiting() -> bool:
    """Whether the interpreter has begun to exit: then it is too late to act on it."""
    return _exiting


def _begin() -> None:
    global _exiting  # noqa: PLW0603
    _exiting = True
    expect(WorkDroppedError)


def _call_all() -> None:
    _begin()
    for callback in reversed(_callbacks):
        callback()
