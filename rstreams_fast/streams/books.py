"""A lock for short entries, which may be interrupted by its own holder.

A garbage collection may happen at any allocation, and with it finalizers: an iteration that was
forgotten cancels its subscription. So the thread that holds the lock may come back for it in the
middle of an entry. It must not wait for itself, nor find the books half written: what it wants is
noted, and done when the entry is complete.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

__all__ = ["Books"]

R = TypeVar("R")


class Books:
    """Entries one after the other, by any thread. No user code belongs in an entry."""

    __slots__ = ("_later", "_lock", "_owner")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = 0
        self._later: deque[Callable[[], object]] = deque()

    def enter(self, entry: Callable[..., R], *args: Any) -> R:
        """Return ``entry(*args)``, called with the lock."""
        me = get_ident()
        with self._lock:
            self._owner = me
            try:
                return entry(*args)
            finally:
                self._owner = 0

    def put_off(self, call: Callable[..., object], *args: Any) -> bool:
        """Whether this thread is in the middle of an entry; then ``call(*args)`` comes after it."""
        if self._owner != get_ident():
            return False
        self._later.append(lambda: call(*args))
        return True

    def catch_up(self) -> None:
        """Do what was put off; to be called after entries."""
        while self._later:
            try:
                call = self._later.popleft()
            except IndexError:  # another thread was faster
                return
            call()
