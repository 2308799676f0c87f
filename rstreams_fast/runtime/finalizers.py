"""Makes calls for finalizers: at once, or on another thread if the garbage collector is running.

The garbage collector may run at any allocation, on a thread that is inside ``Executor.submit`` or
holds any other lock. A finalizer that cancels a stream there takes a lock, calls user code or
submits work. So it could wait for its own thread for ever. Therefore, during a collection, the call
is only queued, and another thread makes it. When ordinary code drops the last reference, for
instance by leaving a ``for`` loop, the call is made at once, on the thread of that code: the source
of a stream may be bound to the thread.
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
_EVERY_TIME: Final = not hasattr(gc, "callbacks")

# The callbacks of the collector (gc.callbacks) note whether a collection runs, and on which thread.
# They must be C functions: a signal handler could run within a Python callback, and an exception of
# the handler, such as KeyboardInterrupt, would be lost there. So three C functions are used. Each
# gets the phase, "start" or "stop", and a dict that is new for each call.

_phases: Final[dict[str, Any]] = {"stop": None}
"""A dict whose order is used: its last key is the phase of the latest callback."""

_here: Final = threading.local()
"""Its attribute ``start`` is the dict of the latest collection that this thread has started."""

_callbacks: Final[list[Any]] = [partial(setattr, _here), _phases.pop, _phases.setdefault]


def _end_callbacks() -> None:
    gc.callbacks[:] = [callback for callback in gc.callbacks if callback not in _callbacks]


if not _EVERY_TIME:
    gc.callbacks += _callbacks
    # With gevent or eventlet, setattr on the thread-local object fails at exit. So this
    # function removes the callbacks before.
    if type(_here).__module__ != "_thread":
        atexit.register(_end_callbacks)


def _collects_here() -> bool:
    """Whether a collection is running on this thread."""
    return list(_phases)[-1] == "start" and getattr(_here, "start", None) is _phases.get("start")


class _Mailbox:
    """The queued calls of one process, and the lock that lets only one thread make them."""

    def __init__(self) -> None:
        self.notes: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self.at_work = threading.Lock()  # held by the thread that makes the calls; never waited for


_mailbox = _Mailbox()


def call_from_finalizer(call: Callable[..., object], *args: Any) -> None:
    """Call ``call(*args)`` now; during a garbage collection, soon and on another thread.

    Finalizers on any thread may use this at any time. Exceptions of a later call go to
    ``on_dropped_error``. Calls that are still queued at interpreter exit, or at a fork, are not
    made.
    """
    if not (_EVERY_TIME or _collects_here()):
        call(*args)
        return
    _mailbox.notes.put((call, args))  # reentrant: a finalizer may interrupt this put
    _start(_mailbox)


def _start(mailbox: _Mailbox) -> None:
    if mailbox.at_work.acquire(blocking=False):
        try:
            # Start a raw thread: threading.Thread.start() takes locks that this thread may hold.
            _thread.start_new_thread(_start_named, (mailbox,))
        except RuntimeError:  # no thread can be started now: the next call tries again
            mailbox.at_work.release()


def _start_named(mailbox: _Mailbox) -> None:
    """Start a ``threading.Thread``, from a raw thread, which holds no lock that ``start`` takes."""
    thread = threading.Thread(
        target=_work_off, args=(mailbox,), name="rstreams-fast-finalizers", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # the interpreter exits
        mailbox.at_work.release()


def _work_off(mailbox: _Mailbox) -> None:
    while True:
        try:
            while True:
                call, args = mailbox.notes.get_nowait()
                try:
                    call(*args)
                except Exception as raised:
                    report_dropped(raised, "a call that a finalizer left to be made")
                finally:
                    del call, args
        except Empty:
            pass
        mailbox.at_work.release()
        # A call queued just before the release started no thread, because this thread held
        # ``at_work``. So look at the queue once more.
        if mailbox.notes.empty() or not mailbox.at_work.acquire(blocking=False):
            return


def _forget_those_of_the_parent() -> None:
    global _mailbox  # noqa: PLW0603
    _mailbox = _Mailbox()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_those_of_the_parent)
