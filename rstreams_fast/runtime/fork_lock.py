"""A lock for the registries of a process, which a fork leaves usable."""

from __future__ import annotations

import os
import threading

__all__ = ["ForkLock"]


class ForkLock:
    """A reentrant lock that is free in a forked child, whichever thread of the parent held it.

    It is for module variables: the process keeps each ``ForkLock`` until its end.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        # Reentrant: the garbage collector may call a finalizer on the thread that holds the lock.
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
