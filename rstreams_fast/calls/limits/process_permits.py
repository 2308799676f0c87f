"""Permits of ``Limit(scope="process")``: counters in memory, for all threads of the process."""

from __future__ import annotations

import itertools
import os
import threading
from time import monotonic
from typing import Final

from rstreams_fast.calls.limits.pace import Numbers, Pace
from rstreams_fast.runtime.fork_lock import ForkLock

__all__ = ["ProcessPermits", "permits_of"]

WANTED_SECONDS: Final = 0.05
"""For this many seconds after a user of the limit found no free permit, ``is_wanted`` is true."""


class ProcessPermits:
    """The permits of a limit in a process, with the same methods as ``HostLocks``. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.path = name
        self.pid = os.getpid()
        self.numbers = Numbers(0.0, None, None, 1)
        self.pace = Pace(self.numbers)
        self._clocks = self.pace.new
        self._not_before = 0.0
        self._users = 0
        self._held: set[int] = set()
        self._next = itertools.count()
        self._missed_at = -WANTED_SECONDS
        # Reentrant: a finalizer on the thread that holds the lock may end a call, and lock again.
        self._lock = threading.RLock()

    def join(self, numbers: Numbers) -> None:
        with self._lock:
            if not self._users or numbers.made > self.numbers.made:
                if numbers[1:] != self.numbers[1:]:
                    self.pace = Pace(numbers)
                    new = self._clocks + self.pace.new[len(self._clocks) :]
                    self._clocks = self.pace.restart(monotonic(), new)
                self.numbers = numbers
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1

    def refresh(self) -> None:
        """Do nothing: unlike ``HostLocks``, this class has no file."""

    def take_one(self) -> tuple[int | None, float] | None:
        with self._lock:
            of = self.numbers.concurrency
            if of is None:
                return None, 0.0
            if len(self._held) >= of:
                self._missed_at = monotonic()
                return None
            self._held.add(permit := next(self._next))
            return permit, 0.0

    def is_wanted(self) -> bool:
        return self.has_too_many() or monotonic() < self._missed_at + WANTED_SECONDS

    def has_too_many(self) -> bool:
        of = self.numbers.concurrency
        return of is not None and len(self._held) > of

    def give_back(self, permit: int) -> None:
        with self._lock:
            self._held.discard(permit)

    def reserve(self, weights: tuple[float, ...], latest: float) -> float:
        with self._lock:
            now = monotonic()
            start, clocks = self.pace.reserve(now, self._clocks, self._not_before, weights)
            if start <= latest:
                self._clocks = clocks
            return start

    def withdraw(self, start: float, weights: tuple[float, ...]) -> None:
        with self._lock:
            self._clocks = self.pace.withdraw(self._clocks, start, weights)

    def held_until(self) -> float:
        return self._not_before

    def hold(self, seconds: float) -> None:
        with self._lock:
            self._not_before = max(self._not_before, monotonic() + seconds)

    def spend(self, change: tuple[float, ...]) -> None:
        with self._lock:
            self._clocks = self.pace.spend(monotonic(), self._clocks, change)

    def adopt_remaining(self, left: tuple[float, ...], weights: tuple[float, ...]) -> None:
        with self._lock:
            self._clocks = self.pace.adopt_remaining(monotonic(), self._clocks, left, weights)


_permits: dict[str, ProcessPermits] = {}
_permits_lock: Final = ForkLock()


def permits_of(name: str) -> ProcessPermits:
    """Return the permits of the limit ``name``, which the whole process shares."""
    with _permits_lock:
        found = _permits.get(name)
        # A forked child runs no calls of its parent, so it needs a new object.
        if found is None or found.pid != os.getpid():
            found = _permits[name] = ProcessPermits(name)
        return found
