"""``Wip`` and ``Latch`` decide which of several threads does some work.

``Wip`` lets one thread at a time work. ``Latch`` lets only one thread do the work, once.
"""

from __future__ import annotations

import threading
from typing import NoReturn

from rstreams_fast._checks import check_bool, check_count
from rstreams_fast.core._common import refuse_pickle

__all__ = ["Latch", "Wip"]


class Wip:
    """Work in progress: lets one thread at a time work, while no other thread waits.

    A thread that has work stores it, for example in a queue, and then calls ``enter``. If ``enter``
    returns true, this thread becomes the working thread. It reads ``missed``, the number of calls
    of ``enter`` so far, does all stored work, and calls ``leave(missed)``. It repeats these three
    steps until ``leave`` returns true: no thread has called ``enter`` meanwhile. If ``enter``
    returns false, another thread is the working thread, and does the stored work. So this thread
    does not wait.

    Any thread may call ``enter``. Only the working thread may call ``leave``.

    Args:
        held: Whether the thread that creates this object starts as the working thread.
    """

    __slots__ = ("__weakref__", "_entered", "_lock")

    def __init__(self, held: bool = False) -> None:
        # Reentrant: a finalizer or signal handler may take the lock on the thread that holds it.
        self._lock = threading.RLock()
        self._entered = int(check_bool("held", held))

    def enter(self) -> bool:
        """Return whether this thread must do the stored work. If not, another thread does it."""
        with self._lock:
            self._entered += 1
            return self._entered == 1

    @property
    def missed(self) -> int:
        """The number of calls of ``enter`` whose work is not done yet. 0 if no thread works."""
        return self._entered

    def leave(self, missed: int = 1, /) -> bool:
        """Return true if all work is done.

        If ``leave`` returns false, other threads have called ``enter`` meanwhile. Then this thread
        must do their work, too.

        Args:
            missed: The value of the attribute ``missed`` that was read before the work.

        Raises:
            RuntimeError: The argument is larger than the attribute ``missed``.
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
    """A flag that is set once: only the first call of ``win`` returns true. Thread-safe."""

    __slots__ = ("__weakref__", "_lock", "_won")

    def __init__(self) -> None:
        # Reentrant: a finalizer or signal handler may take the lock on the thread that holds it.
        self._lock = threading.RLock()
        self._won = False

    def win(self) -> bool:
        """Set the latch. Return true if this call set the latch, and false if it was set before."""
        with self._lock:
            won, self._won = self._won, True
            return not won

    @property
    def won(self) -> bool:
        """Whether this flag is set: true once ``win`` was called."""
        return self._won

    def __repr__(self) -> str:
        return f"<Latch {'won' if self._won else 'open'}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
