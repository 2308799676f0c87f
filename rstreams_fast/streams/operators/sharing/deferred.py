"""A lock for short entries, which user code on the same thread may interrupt.

A garbage collection or a signal may run user code in the middle of an entry, on the same thread: a
finalizer, or a signal handler, that cancels a subscription. This code must not wait for its own
thread, nor find the state half written. Its calls are deferred until the entry is complete.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

__all__ = ["DeferredWork"]

R = TypeVar("R")


class DeferredWork:
    """Entries one after the other, by any thread. An entry calls no user code, and none of the
    methods that begin with ``defer``.
    """

    __slots__ = ("_deferred", "_lock", "_owner", "_released")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._deferred: deque[Callable[[], object]] = deque()
        self._released: list[object] = []

    def enter(self, entry: Callable[..., R], *args: Any) -> R:
        """Return ``entry(*args)``, called under the lock. Then make the deferred calls."""
        with self._lock:
            self._owner = get_ident()
            try:
                result = entry(*args)
            finally:
                if released := self._released:
                    self._released = []
                self._owner = 0
        del released
        while self._deferred:
            try:
                call = self._deferred.popleft()
            except IndexError:  # another thread was faster
                break
            call()
        return result

    def release(self, thing: object) -> None:
        """In an entry: keep ``thing`` until the lock is free, as its finalizer may be user code."""
        self._released.append(thing)

    def defer(self, call: Callable[..., object], *args: Any) -> bool:
        """Call ``call(*args)`` after the entry that this thread is in; false if it is in none."""
        if self._owner != get_ident():
            return False
        self._deferred.append(lambda: call(*args))
        return True
