"""Lets a finalizer (``__del__``) call a function that takes locks, without a deadlock.

The garbage collector may run finalizers at any allocation, even on a thread that holds a lock, such
as the lock of ``Executor.submit``. A finalizer that cancels a stream takes locks, too. So it could
wait for ever for a lock that its own thread holds. Therefore, during a garbage collection,
``call_from_finalizer`` only queues the call, and another thread makes the call.

If no collection is running, ordinary code has dropped the last reference, for instance by leaving a
``for`` loop. Then ``call_from_finalizer`` makes the call immediately, on the thread of that code,
because the source of a stream may be bound to that thread.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from rstreams_fast.errors import report_dropped

__all__ = ["call_from_finalizer"]

#: Whether this Python has no reference counts (PyPy), so that the collector runs all finalizers.
_NO_REFERENCE_COUNTS: Final = not hasattr(gc, "callbacks")

# Python calls each function in gc.callbacks at the start and at the end of a garbage collection.
# The two arguments are the phase ("start" or "stop") and a new dict. The three functions in
# _callbacks record whether a collection is running, and on which thread. They must be C functions.
# A signal handler could run within a Python function, and Python would ignore the handler's
# exception, such as KeyboardInterrupt.

_phases: Final[dict[str, Any]] = {"stop": None}
"""Maps each phase of a garbage collection, "start" and "stop", to the dict that ``gc`` passed.

The functions in ``_callbacks`` make the current phase the last key."""

_local: Final = threading.local()
"""``_local.start`` is the dict that ``gc`` passed when this thread last started a collection."""

_callbacks: Final[list[Any]] = [partial(setattr, _local), _phases.pop, _phases.setdefault]


def _remove_callbacks() -> None:
    gc.callbacks[:] = [callback for callback in gc.callbacks if callback not in _callbacks]


if not _NO_REFERENCE_COUNTS:
    gc.callbacks += _callbacks
    # If gevent or eventlet has replaced threading.local, the class of _local, setting an attribute
    # of _local fails late at interpreter exit. A function in _callbacks does this in each garbage
    # collection. So an exit function removes _callbacks from gc.callbacks earlier.
    if type(_local).__module__ != "_thread":
        atexit.register(_remove_callbacks)


def _is_collecting_here() -> bool:
    """Return whether a garbage collection is running on this thread."""
    return list(_phases)[-1] == "start" and getattr(_local, "start", None) is _phases.get("start")


class _Mailbox:
    """The queue of calls that finalizers pass to another thread. Each process has its own queue."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        # The thread that makes the queued calls holds this lock. No thread ever waits for the lock.
        self.worker_lock = threading.Lock()


_mailbox = _Mailbox()


def call_from_finalizer(call: Callable[..., object], *args: Any) -> None:
    """Call ``call(*args)`` now, or soon on another thread if a garbage collection is running.

    A finalizer on any thread may use this function. If ``call`` raises an exception on the other
    thread, ``on_dropped_error`` gets the exception. Calls that are queued at interpreter exit are
    not made. A forked child does not make the calls that its parent has queued.
    """
    if not (_NO_REFERENCE_COUNTS or _is_collecting_here()):
        call(*args)
        return
    # SimpleQueue.put is reentrant: a finalizer may interrupt it, and call it on the same thread.
    _mailbox.calls.put((call, args))
    _start(_mailbox)


def _start(mailbox: _Mailbox) -> None:
    if mailbox.worker_lock.acquire(blocking=False):
        try:
            # Do not call threading.Thread.start() here, because it takes locks. A finalizer may
            # have interrupted code that holds these locks on this thread.
            _thread.start_new_thread(_start_named, (mailbox,))
        except RuntimeError:  # no thread can be started now: the next finalizer tries again
            mailbox.worker_lock.release()


def _start_named(mailbox: _Mailbox) -> None:
    """Start the ``threading.Thread`` that makes the queued calls.

    This function runs on a new thread, which ``_thread.start_new_thread`` has started. The new
    thread holds no locks, so it can call ``threading.Thread.start``, which takes locks.
    """
    thread = threading.Thread(
        target=_make_calls, args=(mailbox,), name="rstreams-fast-finalizers", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # the interpreter is exiting, and starts no more threads
        mailbox.worker_lock.release()


def _make_calls(mailbox: _Mailbox) -> None:
    while True:
        try:
            while True:
                call, args = mailbox.calls.get_nowait()
                try:
                    call(*args)
                except Exception as raised:
                    report_dropped(raised, "a call that a finalizer left to be made")
                finally:
                    del call, args
        except Empty:
            pass
        mailbox.worker_lock.release()
        # A finalizer may have queued a call just before the release, but started no thread, because
        # this thread still held ``worker_lock``. So look into the queue once more.
        if mailbox.calls.empty() or not mailbox.worker_lock.acquire(blocking=False):
            return


def _renew_mailbox() -> None:
    global _mailbox  # noqa: PLW0603
    _mailbox = _Mailbox()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_mailbox)
