"""Makes calls for finalizers: at once, or on another thread if the garbage collector is running.

The garbage collector may run at any allocation, even on a thread that holds a lock, such as the
lock of ``Executor.submit``. A finalizer that cancels a stream takes locks, too. So it could wait
for ever for a lock that its own thread holds. Therefore, during a collection, the call is only
queued, and another thread makes it. If no collection is running, ordinary code has dropped the last
reference, for instance by leaving a ``for`` loop. Then the call is made at once, on the thread of
that code, because the source of a stream may be bound to that thread.
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

#: Whether this Python has no reference counts, so that the collector runs every finalizer.
_NO_REFERENCE_COUNTS: Final = not hasattr(gc, "callbacks")

# Python calls the functions in gc.callbacks at the start and the end of each collection. The three
# functions of this module record that a collection is running, and on which thread. They must be C
# functions: a signal handler could run within a Python function, and its exception, such as
# KeyboardInterrupt, would be lost there. Python passes two arguments to each function: the phase,
# which is "start" or "stop", and a new dict.

_phases: Final[dict[str, Any]] = {"stop": None}
"""The dict that ``gc`` passed last for each phase. The last key is the phase that came last."""

_local: Final = threading.local()
"""``_local.start`` is the dict that ``gc`` passed when this thread last started a collection."""

_callbacks: Final[list[Any]] = [partial(setattr, _local), _phases.pop, _phases.setdefault]


def _remove_callbacks() -> None:
    gc.callbacks[:] = [callback for callback in gc.callbacks if callback not in _callbacks]


if not _NO_REFERENCE_COUNTS:
    gc.callbacks += _callbacks
    # With gevent or eventlet, setattr(_local, ...) fails late at interpreter exit. So an exit
    # function removes the callbacks before that.
    if type(_local).__module__ != "_thread":
        atexit.register(_remove_callbacks)


def _is_collecting_here() -> bool:
    """Whether a collection is running on this thread."""
    return list(_phases)[-1] == "start" and getattr(_local, "start", None) is _phases.get("start")


class _Mailbox:
    """The calls that finalizers of one process have queued. One thread at a time makes them."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        # The thread that makes the calls holds this lock. No thread waits for the lock.
        self.worker_lock = threading.Lock()


_mailbox = _Mailbox()


def call_from_finalizer(call: Callable[..., object], *args: Any) -> None:
    """Call ``call(*args)`` now, or soon on another thread if a garbage collection is running.

    Finalizers on any thread may use this at any time. If ``call`` raises an exception on the other
    thread, ``on_dropped_error`` gets the exception. Calls still queued at interpreter exit are not
    made. A forked child does not make the calls that its parent has queued.
    """
    if not (_NO_REFERENCE_COUNTS or _is_collecting_here()):
        call(*args)
        return
    # SimpleQueue.put is reentrant: a finalizer may run within put, and call put on the same thread.
    _mailbox.calls.put((call, args))
    _start(_mailbox)


def _start(mailbox: _Mailbox) -> None:
    if mailbox.worker_lock.acquire(blocking=False):
        try:
            # Do not call threading.Thread.start() here. It takes locks that this thread may hold,
            # because a finalizer may have interrupted any code.
            _thread.start_new_thread(_start_named, (mailbox,))
        except RuntimeError:  # no thread can be started now: the next queued call tries again
            mailbox.worker_lock.release()


def _start_named(mailbox: _Mailbox) -> None:
    """Start the ``threading.Thread`` that makes the queued calls.

    This function runs on a new thread, which ``_thread`` started. So the thread holds none of the
    locks that ``threading.Thread.start`` takes.
    """
    thread = threading.Thread(
        target=_make_calls, args=(mailbox,), name="rstreams-fast-finalizers", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # the interpreter is exiting, and starts no thread
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
        # A finalizer may have queued a call just before the release. This finalizer started no
        # thread, because this thread still held ``worker_lock``. So look at the queue once more.
        if mailbox.calls.empty() or not mailbox.worker_lock.acquire(blocking=False):
            return


def _renew_mailbox() -> None:
    global _mailbox  # noqa: PLW0603
    _mailbox = _Mailbox()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_mailbox)
