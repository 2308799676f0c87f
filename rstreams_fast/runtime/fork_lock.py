"""A lock that a forked child can use, even if a thread of the parent held the lock at the fork."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final

__all__ = ["ForkLock"]


class ForkLock:
    """A reentrant lock that is free in a forked child, even if the parent held it at the fork.

    The process may be forked while a thread changes the data that the lock protects. Then the child
    sees an incomplete change. Use this lock only where this does no harm.
    """

    def __init__(self) -> None:
        self._renew()
        _locks.add(self)

    def _renew(self) -> None:
        # Reentrant: a finalizer may run on the thread that holds the lock, and take the lock, too.
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks: Final[weakref.WeakSet[ForkLock]] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
