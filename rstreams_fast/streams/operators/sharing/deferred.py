"""A lock for short entries, which may be interrupted by its own holder.

A garbage collection or a signal may come in the middle of an entry, and with it user code on the
same thread: a finalizer, or a signal handler, that cancels a subscription. It must not wait for
its own thread, nor find the state half written. What it wants is deferred, and done when the entry
is complete.
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
        """Return ``entry(*args)``, called with the lock; then do what was deferred meanwhile."""
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
        """In an entry: keep ``thing``, whose finalizer may be user code, until the lock is free."""
        self._released.append(thing)

    def defer(self, call: Callable[..., object], *args: Any) -> bool:
        """Whether this thread is in the middle of an entry; then ``call(*args)`` comes after it."""
        if self._owner != get_ident():
            return False
        self._deferred.append(lambda: call(*args))
        return True
