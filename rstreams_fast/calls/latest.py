"""``LatestUsed``: objects that a process shares by key. It drops those not used for long."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from rstreams_fast.runtime.fork_lock import ForkLock

__all__ = ["MOST_KEPT", "LatestUsed"]

MOST_KEPT: Final = 64
"""How many objects without another user are kept for later users."""

T = TypeVar("T")


class LatestUsed(Generic[T]):
    """The objects that are in use, and those that were used last. Thread-safe.

    A stream that makes a policy anew for each micro-batch has a new key each time: without a bound
    a worker would keep the objects of all micro-batches. A forked child starts with no objects.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._in_use: WeakValueDictionary[tuple[int, str], T] = WeakValueDictionary()
        self._kept: OrderedDict[tuple[int, str], T] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the object for ``key``; ``make`` it if there is none."""
        place, dropped = (os.getpid(), key), None
        with self._lock:
            found = self._in_use.get(place)
            if found is None:
                # A finalizer within ``make`` may have made the object meanwhile.
                found = self._in_use.setdefault(place, make())
            self._kept[place] = found
            self._kept.move_to_end(place)
            if len(self._kept) > MOST_KEPT:
                dropped = self._kept.popitem(last=False)
        del dropped  # not under the lock: a finalizer may run code of the user
        return found

    def clear(self) -> None:
        """Drop all objects: a later user gets a new one."""
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
            self._in_use = WeakValueDictionary()
        del kept
