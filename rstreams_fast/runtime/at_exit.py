"""Calls functions at interpreter exit, so that waiting threads end before Python joins them."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from rstreams_fast.errors import WorkDroppedError, expect

__all__ = ["call_at_exit", "is_exiting", "must_be_daemon"]

# The lock is reentrant: a finalizer that takes it may run on the thread that holds it.
_lock = threading.RLock()
_callbacks: list[Callable[[], object]] = []
_exiting = False
_refused = False


def call_at_exit(callback: Callable[[], object]) -> bool:
    """Register ``callback``. It is called once, before Python joins the threads of this process.

    Returns ``False`` if the interpreter is already exiting. Then ``callback`` is never called. So a
    thread that waits for a signal from ``callback`` must be a daemon. Thread-safe.
    """
    global _refused  # noqa: PLW0603
    if callback in _callbacks:
        return True
    with _lock:
        if callback in _callbacks:
            return True
        if not _callbacks and not _exiting:
            # Python calls atexit functions only after it has joined the threads. So register the
            # function with the threading module, as concurrent.futures does. If threading has no
            # such function, use atexit.
            register = getattr(threading, "_register_atexit", atexit.register)
            try:
                register(_call_all)
            except RuntimeError:  # the main thread has ended, so threading refuses it
                _note_exit()
        if _exiting:
            _refused = True
            return False
        _callbacks.append(callback)
        return True


def must_be_daemon() -> bool:
    """Whether the interpreter is exiting, so that ``call_at_exit`` returns ``False``.

    If so, a thread that is started now must be a daemon.
    """
    return _refused or not call_at_exit(_do_nothing)


def _do_nothing() -> None:
    """Do nothing. ``must_be_daemon`` registers this function to see if registering fails."""


def is_exiting() -> bool:
    return _exiting


def _note_exit() -> None:
    global _exiting  # noqa: PLW0603
    _exiting = True
    expect(WorkDroppedError)


def _call_all() -> None:
    _note_exit()
    for callback in reversed(_callbacks):
        callback()
