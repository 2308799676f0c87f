"""A lock for critical sections (*entries*). Calls that interrupt an entry are deferred to its end.

The garbage collector or a signal can run user code in the middle of an entry, on the same thread: a
finalizer or a signal handler. This code may, for example, cancel a subscription. The cancel cannot
wait for the entry, because both are on one thread, and must not use the state that the entry has
half changed. So the cancel is deferred: the thread makes the call when the entry is over.
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
    """Runs functions (*entries*) one at a time under a lock.

    A finalizer or signal handler that interrupts an entry must pass its calls to ``defer``: they
    are made after the entry. Any thread may call any method. An entry itself must call neither user
    code nor ``defer``.
    """

    __slots__ = ("_deferred", "_lock", "_owner", "_released")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._deferred: deque[Callable[[], object]] = deque()
        self._released: list[object] = []

    def enter(self, entry: Callable[..., R], *args: Any) -> R:
        """Call ``entry(*args)`` under the lock. Then make the calls that were passed to ``defer``.

        Return the result of ``entry``.
        """
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
            except IndexError:  # another thread has just taken the last call
                break
            call()
        return result

    def release(self, thing: object) -> None:
        """Keep ``thing`` alive until the lock is free, because its finalizer may be user code.

        Call this only within a function that ``enter`` runs under the lock.
        """
        self._released.append(thing)

    def defer(self, call: Callable[..., object], *args: Any) -> bool:
        """If this thread is in an entry, defer ``call(*args)`` to the end of the entry.

        An entry is a function that ``enter`` calls under the lock. Return false if this thread is
        not in an entry. Then the caller must make the call itself.
        """
        if self._owner != get_ident():
            return False
        self._deferred.append(lambda: call(*args))
        return True
