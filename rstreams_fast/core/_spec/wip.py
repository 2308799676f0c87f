"""``Wip`` and ``Latch`` decide which of several threads does some work.

``Wip`` lets one thread at a time work, ``Latch`` only one thread ever.
"""

from __future__ import annotations

import threading
from typing import NoReturn

from rstreams_fast._checks import check_bool, check_count
from rstreams_fast.core._common import refuse_pickle

__all__ = ["Latch", "Wip"]


class Wip:
    """Work in progress: lets one thread at a time work, while no other thread waits.

    A thread stores its work where the working thread looks for work, and calls ``enter``. If
    ``enter`` returns true, the thread works: it reads ``missed``, does all the work that it finds,
    and calls ``leave(missed)``. It repeats this until ``leave`` returns true. If ``enter`` returns
    false, the thread goes on at once, because the working thread does its work.

    Any thread may call ``enter``. Only the working thread may call ``leave``.

    Args:
        held: Whether the thread that makes this object is the working thread at first.
    """

    __slots__ = ("__weakref__", "_entered", "_lock")

    def __init__(self, held: bool = False) -> None:
        self._lock = threading.RLock()  # reentrant, for finalizers and signal handlers
        self._entered = int(check_bool("held", held))

    def enter(self) -> bool:
        """Return whether this thread must work. Otherwise another thread does its work."""
        with self._lock:
            self._entered += 1
            return self._entered == 1

    @property
    def missed(self) -> int:
        """How many calls of ``enter`` have work that is not done yet; 0: no thread works."""
        return self._entered

    def leave(self, missed: int = 1, /) -> bool:
        """Return true if all work is done. If it returns false, other threads have called ``enter``
        meanwhile: do their work, too.

        Args:
            missed: The value of the attribute ``missed`` before the work that was done.

        Raises:
            RuntimeError: Fewer threads than ``missed`` have entered.
        """
        missed = check_count("missed", missed)
        with self._lock:
            if missed > self._entered:
                raise RuntimeError(f"leave({missed}): only {self._entered} have entered")
            self._entered -= missed
            return self._entered == 0

    def __repr__(self) -> str:
        return f"<Wip {self._entered}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)


class Latch:
    """A flag that is set once: only the thread that sets it gets true. Thread-safe."""

    __slots__ = ("__weakref__", "_lock", "_won")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, for finalizers and signal handlers
        self._won = False

    def win(self) -> bool:
        """Set (close) the latch; return whether this call set it."""
        with self._lock:
            won, self._won = self._won, True
            return not won

    @property
    def won(self) -> bool:
        """Whether the latch is set (closed)."""
        return self._won

    def __repr__(self) -> str:
        return f"<Latch {'won' if self._won else 'open'}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
