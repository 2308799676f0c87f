"""What a finalizer wants done: at once, or, where the garbage collector runs it, by another thread.

The collector may run at any allocation, on a thread that is inside ``Executor.submit`` or holds any
other lock. A finalizer that cancels there, and so takes a lock, calls user code or submits work,
can wait for its own thread for ever. So there it takes no lock and calls nobody: it leaves a note.
When the last reference is dropped by ordinary code, as by leaving a ``for`` loop, the call is made
at once and on that thread, as the interpreter closes a generator: a source may be bound to it.
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

#: Where there is no reference count, every finalizer is the collector's.
_EVERY_TIME: Final = not hasattr(gc, "callbacks")

# A signal that comes in a collection is handled by the first bytecode after it. In a callback, what
# the handler raises, as Ctrl-C does, would be lost. So these are three calls of C, which are given
# the phase, "start" or "stop", and a dict that is new each time.

_phases: Final[dict[str, Any]] = {"stop": None}
"""The phase of the latest call is the last key."""

_here: Final = threading.local()
"""``start`` is what the latest collection that this thread ran was given."""

_callbacks: Final[list[Any]] = [partial(setattr, _here), _phases.pop, _phases.setdefault]


def _end_callbacks() -> None:
    gc.callbacks[:] = [callback for callback in gc.callbacks if callback not in _callbacks]


if not _EVERY_TIME:
    gc.callbacks += _callbacks
    if type(_here).__module__ != "_thread":  # gevent's or eventlet's, which fails at the exit
        atexit.register(_end_callbacks)


def _collects_here() -> bool:
    """Whether the collector runs, and on this thread."""
    return list(_phases)[-1] == "start" and getattr(_here, "start", None) is _phases.get("start")


class _Mailbox:
    """The notes of one process, and who works them off."""

    def __init__(self) -> None:
        self.notes: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self.at_work = threading.Lock()  # held while a thread is at work; nobody waits for it


_mailbox = _Mailbox()


def call_from_finalizer(call: Callable[..., object], *args: Any) -> None:
    """Make the call ``call(*args)`` now, or, within a garbage collection, soon by another thread.

    For finalizers: any thread, any moment. What a later call raises goes to ``on_dropped_error``.
    Calls that are left when the interpreter exits, or in the parent of a fork, are not made.
    """
    if not (_EVERY_TIME or _collects_here()):
        call(*args)
        return
    _mailbox.notes.put((call, args))  # re-entrant, which is what SimpleQueue was made for
    _start(_mailbox)


def _start(mailbox: _Mailbox) -> None:
    if mailbox.at_work.acquire(blocking=False):
        try:
            # Not by threading.Thread, whose start takes locks that this thread may hold.
            _thread.start_new_thread(_start_named, (mailbox,))
        except RuntimeError:  # no thread is to be had: the next note tries again
            mailbox.at_work.release()


def _start_named(mailbox: _Mailbox) -> None:
    """Start a thread that others can see; this one holds no lock."""
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
        # A note that came between the two steps found somebody at work, and relies on this look.
        if mailbox.notes.empty() or not mailbox.at_work.acquire(blocking=False):
            return


def _forget_those_of_the_parent() -> None:
    global _mailbox  # noqa: PLW0603
    _mailbox = _Mailbox()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_those_of_the_parent)
