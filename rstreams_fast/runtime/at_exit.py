"""Calls functions at the end of a process.

The functions of ``call_at_exit`` end the package's threads, before Python joins these threads. The
functions of ``call_at_process_end`` store what is left, when other work is done.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from rstreams_fast.errors import WorkDroppedError, expect, report_unraisable

__all__ = ["call_at_exit", "call_at_process_end", "is_exiting", "must_be_daemon"]

# Reentrant: a finalizer may run on the thread that holds the lock, and take the lock, too.
_lock = threading.RLock()
_callbacks: list[Callable[[], object]] = []
_exiting = False
_refused = False


def call_at_exit(callback: Callable[[], object]) -> bool:
    """Register ``callback`` for interpreter exit, and return ``True``.

    ``callback`` is called once, before Python joins the threads of this process. If the interpreter
    is already exiting, return ``False``: ``callback`` will never be called. Then a thread that only
    ``callback`` can end must be a daemon thread. Any thread may call this function.
    """
    global _refused  # noqa: PLW0603
    if callback in _callbacks:
        return True
    with _lock:
        if callback in _callbacks:
            return True
        if not _callbacks and not _exiting:
            # Python calls the functions of ``atexit`` only after it has joined the threads. So use
            # threading._register_atexit, as concurrent.futures does. If this Python's threading has
            # no _register_atexit, use ``atexit``.
            register = getattr(threading, "_register_atexit", atexit.register)
            try:
                register(_call_all)
            except RuntimeError:  # the main thread has ended: threading registers no more functions
                _note_exit()
        if _exiting:
            _refused = True
            return False
        _callbacks.append(callback)
        return True


def call_at_process_end(callback: Callable[[], object]) -> None:
    """Register ``callback`` for the end of this process, also in a child of ``multiprocessing``.

    Such a child does not call the functions of ``atexit``. A forked child does not call the
    functions that its parent has registered here. The function that was registered last is called
    first. Any thread may call this function.
    """
    from multiprocessing.util import Finalize

    Finalize(None, callback, exitpriority=0)


def must_be_daemon() -> bool:
    """Return whether a thread that is started now must be a daemon thread.

    This is so at interpreter exit, when ``call_at_exit`` can register no more functions. Then no
    function would end the thread, so Python must not wait for it.
    """
    return _refused or not call_at_exit(_do_nothing)


def _do_nothing() -> None:
    """Do nothing. ``must_be_daemon`` registers this only to learn if that is still possible."""


def is_exiting() -> bool:
    return _exiting


def _note_exit() -> None:
    global _exiting  # noqa: PLW0603
    _exiting = True
    expect(WorkDroppedError)


def _call_all() -> None:
    _note_exit()
    for callback in reversed(_callbacks):
        try:
            callback()
        except BaseException as error:
            # Report even Ctrl-C, and go on. After an exception here, Python would call no other
            # exit function, neither ours nor those of concurrent.futures, and join no threads.
            report_unraisable(error, "the interpreter exit", callback)
