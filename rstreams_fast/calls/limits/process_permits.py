"""The permits of ``Limit(scope="process")``: counts in memory, for the threads of a process."""

from __future__ import annotations

import itertools
import os
import threading
from time import monotonic
from typing import Final

from rstreams_fast.calls.limits.pace import Numbers, Pace

__all__ = ["ProcessPermits", "permits_of"]

WANTED_SECONDS: Final = 0.05
"""How long it counts that somebody looked for a permit, and there was none."""


class ProcessPermits:
    """What ``HostLocks`` is to a host, for one process. Thread-safe."""

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
        # Reentrant: the garbage collector may end a call.
        self._lock = threading.RLock()

    def join(self, numbers: Numbers) -> None:
        """Use it, until ``leave``; the numbers hold if no others that were made later do."""
        with self._lock:
            if not self._users or numbers.made > self.numbers.made:
                if numbers[1:] != self.numbers[1:]:
                    self.pace = Pace(numbers)
                    new = self._clocks + self.pace.new[len(self._clocks) :]
                    self._clocks = self.pace.restart(monotonic(), new)
                self.numbers = numbers
            self._users += 1

    def leave(self) -> None:
        """Use it no more."""
        with self._lock:
            self._users -= 1

    def follow(self) -> None:
        """Do nothing: there is no file."""

    def take_one(self) -> tuple[int | None, float] | None:
        """Return a permit and 0 seconds, or ``None``: there is none now."""
        with self._lock:
            of = self.numbers.concurrency
            if of is None:
                return None, 0.0
            if len(self._held) >= of:
                self._missed_at = monotonic()
                return None
            self._held.add(permit := next(self._next))
            return permit, 0.0

    def wanted(self) -> bool:
        """Whether a permit was missed a moment ago, or there are more than the limit has."""
        of = self.numbers.concurrency
        too_many = of is not None and len(self._held) > of
        return too_many or monotonic() < self._missed_at + WANTED_SECONDS

    def give_back(self, permit: int) -> None:
        """Free a permit."""
        with self._lock:
            self._held.discard(permit)

    def reserve(self, weights: tuple[float, ...], latest: float) -> float:
        """Return when a call of ``weights`` may start; up to ``latest`` it has that time, too."""
        with self._lock:
            now = monotonic()
            start, clocks = self.pace.reserve(now, self._clocks, self._not_before, weights)
            if start <= latest:
                self._clocks = clocks
            return start

    def held_until(self) -> float:
        """Return the time before which no call may start."""
        return self._not_before

    def hold(self, seconds: float) -> None:
        """Have no call start for so long."""
        with self._lock:
            self._not_before = max(self._not_before, monotonic() + seconds)

    def spend(self, change: tuple[float, ...]) -> None:
        """Take so many more units than were reserved, or give them back."""
        with self._lock:
            self._clocks = self.pace.spend(monotonic(), self._clocks, change)

    def see(self, left: tuple[float, ...], weights: tuple[float, ...]) -> None:
        """Follow what the service says is left of each unit, after a call of ``weights``."""
        with self._lock:
            self._clocks = self.pace.follow(monotonic(), self._clocks, left, weights)


_permits: dict[str, ProcessPermits] = {}
_permits_lock = threading.Lock()


def permits_of(name: str) -> ProcessPermits:
    """Return the permits of a limit's name, which this process shares."""
    with _permits_lock:
        found = _permits.get(name)
        if found is None or found.pid != os.getpid():  # a child has none of its parent's calls
            found = _permits[name] = ProcessPermits(name)
        return found


def _after_fork() -> None:
    global _permits_lock  # noqa: PLW0603
    _permits_lock = threading.Lock()  # a thread that is not in the child may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
