"""The interpreter's exit, as threads that wait for work have to learn of it."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["call_at_exit", "exiting"]

_lock = threading.RLock()  # reentrant, for the collector may run anything anywhere
_callbacks: list[Callable[[], object]] = []
_exiting = False


def call_at_exit(callback: Callable[[], object]) -> None:
    """Have ``callback()`` called before the threads of this process are joined; once, however often
    it is given. Any thread.
    """
    if callback in _callbacks:
        return
    with _lock:
        if callback in _callbacks:
            return
        if not _callbacks:
            # Threads are joined before atexit callbacks run, hence threading's own list, as in
            # concurrent.futures; where there is none, the public one is the best there is.
            register = getattr(threading, "_register_atexit", atexit.register)
            with suppress(RuntimeError):  # the threads have been joined
                register(_call_all)
        _callbacks.append(callback)


def exiting() -> bool:
    """Whether the interpreter has begun to exit: who is told of it then can do nothing about it."""
    return _exiting


def _call_all() -> None:
    global _exiting  # noqa: PLW0603
    _exiting = True
    for callback in reversed(_callbacks):
        callback()
