"""A lock for critical sections (*entries*). Calls that interrupt an entry are deferred to its end.

A garbage collection or a signal may run user code in the middle of an entry, on the same thread: a
finalizer or a signal handler that cancels a subscription. This code must not wait for its own
thread, and must not see the state half written. So its calls are made when the entry is over.
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
    """Runs functions (*entries*) one at a time under a lock, and defers calls made within them.

    Any thread may call any method. An entry must call neither user code nor ``defer``.
    """

    __slots__ = ("_deferred", "_lock", "_owner", "_released")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._deferred: deque[Callable[[], object]] = deque()
        self._released: list[object] = []

    def enter(self, entry: Callable[..., R], *args: Any) -> R:
        """Call ``entry(*args)`` under the lock, make the deferred calls, and return the result."""
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
            except IndexError:  # another thread has taken the call
                break
            call()
        return result

    def release(self, thing: object) -> None:
        """Keep ``thing`` until the lock is free, because its finalizer may be user code.

        Only a function that ``enter`` calls may call this.
        """
        self._released.append(thing)

    def defer(self, call: Callable[..., object], *args: Any) -> bool:
        """Defer ``call(*args)`` to the end of the entry, if this thread is in an entry.

        Return false if this thread is in no entry. The caller must then make the call itself.
        """
        if self._owner != get_ident():
            return False
        self._deferred.append(lambda: call(*args))
        return True
