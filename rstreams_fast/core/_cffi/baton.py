"""Waiting for one's turn on ``rsf_baton``: a spin without the GIL, then asleep on a lock."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._common import check_spin, refuse_pickle


class Baton:
    """Wakes the one thread that waits for it. ``announce`` and ``give`` are anybody's.

    ``spin``: for how long ``wait`` looks before it sleeps, and again for an announced turn, in
    seconds. It looks without the GIL, so that who holds that can call.
    """

    __slots__ = ("__weakref__", "_baton", "_event", "_spin")

    def __init__(self, spin: float) -> None:
        self._spin = int(check_spin(spin) * 1e9)
        self._baton: Any = ffi.new("rsf_baton *")
        # An event is a lock that is free only between a wake and the end of the sleep.
        self._event = threading.Lock()
        self._event.acquire()
        lib.rsf_baton_init(self._baton)

    def announce(self) -> None:
        """Say that there is something to do soon, when the caller gives."""
        if lib.rsf_baton_announce(self._baton):
            self._event.release()

    def give(self) -> None:
        """Say that there is something to do now."""
        if lib.rsf_baton_give(self._baton):
            self._event.release()

    def wait(self, owed: Baton | None = None) -> None:
        """Return soon after it was called, at once if it was since the last ``wait`` returned.

        ``owed`` is given its turn first. There may be nothing to do: look, and wait again. Only
        one thread may wait.
        """
        if owed is not None:
            owed.give()
        if lib.rsf_spin_asleep(self._baton, self._spin):
            self._event.acquire()
        lib.rsf_spin_take(self._baton, self._spin)

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
