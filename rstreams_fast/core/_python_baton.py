"""Waiting for one's turn in pure Python, which cannot spin without the GIL: it sleeps at once."""

from __future__ import annotations

import threading
from typing import NoReturn

from rstreams_fast.core._common import check_spin, refuse_pickle


class Baton:
    """Wakes the one thread that waits for it. ``announce`` and ``give`` are anybody's.

    ``spin``, in seconds, has no effect: it is for the other backends.
    """

    __slots__ = ("__weakref__", "_asleep", "_called", "_event", "_lock")

    def __init__(self, spin: float) -> None:
        check_spin(spin)
        # Reentrant, for the collector may run anything anywhere.
        self._lock = threading.RLock()
        self._called = False
        self._asleep = False
        # An event is a lock that is free only between a wake and the end of the sleep.
        self._event = threading.Lock()
        self._event.acquire()

    def announce(self) -> None:
        """Say that there is something to do soon, when the caller gives."""
        self.give()

    def give(self) -> None:
        """Say that there is something to do now."""
        with self._lock:
            self._called = True
            wake, self._asleep = self._asleep, False
        if wake:
            self._event.release()

    def wait(self, owed: Baton | None = None) -> None:
        """Return soon after it was called, at once if it was since the last ``wait`` returned.

        ``owed`` is given its turn first. There may be nothing to do: look, and wait again. Only
        one thread may wait.
        """
        if owed is not None:
            owed.give()
        with self._lock:
            self._asleep = not self._called
            asleep = self._asleep
        if asleep:
            self._event.acquire()
        with self._lock:
            self._called = False

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
