"""A lock that is usable in a forked child."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final

__all__ = ["ForkLock"]


class ForkLock:
    """A reentrant lock that is free in a forked child, whichever thread of the parent held it.

    The process may be forked while a thread changes the data that the lock guards. Then the child
    sees half a change. Use this lock only where half a change does no harm.
    """

    def __init__(self) -> None:
        self._renew()
        _locks.add(self)

    def _renew(self) -> None:
        # The lock is reentrant: a finalizer that takes it may run on the thread that holds it.
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
