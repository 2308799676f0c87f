"""``LatestUsed``: shares objects by key in a process, and drops objects not used recently."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from rstreams_fast.runtime.fork_lock import ForkLock

__all__ = ["MOST_KEPT", "LatestUsed"]

MOST_KEPT: Final = 64
"""How many of the most recently used objects are kept, even if nothing else refers to them."""

T = TypeVar("T")


class LatestUsed(Generic[T]):
    """Shares objects by key: the objects in use, and the most recently used objects. Thread-safe.

    A streaming query may make a new policy, and so a new key, for each micro-batch. So only
    ``MOST_KEPT`` objects are kept: otherwise a worker would keep the objects of all micro-batches.
    A forked child process starts without objects.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._in_use: WeakValueDictionary[tuple[int, str], T] = WeakValueDictionary()
        self._kept: OrderedDict[tuple[int, str], T] = OrderedDict()

    def find(self, key: str) -> T | None:
        """Return the object for ``key``, or ``None``."""
        with self._lock:
            return self._in_use.get((os.getpid(), key))

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the object for ``key``. If there is no object, call ``make`` to create it."""
        place, dropped = (os.getpid(), key), None
        with self._lock:
            found = self._in_use.get(place)
            if found is None:
                # During ``make()``, a finalizer on this thread may have stored an object for the
                # same key. Then ``setdefault`` returns that object.
                found = self._in_use.setdefault(place, make())
            self._kept[place] = found
            self._kept.move_to_end(place)
            if len(self._kept) > MOST_KEPT:
                dropped = self._kept.popitem(last=False)
        del dropped  # not under the lock: a finalizer of the object may run code of the user
        return found

    def clear(self) -> None:
        """Drop all objects. The next ``get`` for a key makes a new object."""
        with self._lock:
            kept, self._kept = self._kept, OrderedDict()
            self._in_use = WeakValueDictionary()
        del kept
