"""Which of several threads does the work: each time (``Wip``), or once and for all (``Latch``)."""

from __future__ import annotations

import threading
from typing import NoReturn

from rstreams_fast._checks import check_bool, check_count
from rstreams_fast.core._common import refuse_pickle

__all__ = ["Latch", "Wip"]


class Wip:
    """Work in progress: lets one thread at a time drain, and makes no other thread wait.

    A thread leaves its news where the drain looks, and enters. If ``enter`` returns true, it
    drains: it reads ``missed``, does all the work that it sees, and calls ``leave(missed)``, until
    that returns true. The other threads go on at once.

    Any thread may call ``enter``; ``leave`` is for the thread that drains.

    Args:
        held: Whether the drain is held from the start, by the thread that makes this.
    """

    __slots__ = ("__weakref__", "_entered", "_lock")

    def __init__(self, held: bool = False) -> None:
        self._lock = threading.RLock()  # reentrant, for finalizers and signal handlers
        self._entered = int(check_bool("held", held))

    def enter(self) -> bool:
        """Return whether this thread is to drain; otherwise another thread sees its news."""
        with self._lock:
            self._entered += 1
            return self._entered == 1

    @property
    def missed(self) -> int:
        """How many threads have entered, and have not been worked for; 0: no thread drains."""
        return self._entered

    def leave(self, missed: int = 1, /) -> bool:
        """Return whether the drain is left; otherwise threads have entered meanwhile.

        Args:
            missed: The value of ``missed`` before the work that was done for these threads.

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
    """Closes once: of all threads that try, one wins. Any thread may call any method."""

    __slots__ = ("__weakref__", "_lock", "_won")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, for finalizers and signal handlers
        self._won = False

    def win(self) -> bool:
        """Close the latch; return whether this call was the one that closed it."""
        with self._lock:
            won, self._won = self._won, True
            return not won

    @property
    def won(self) -> bool:
        """Whether the latch is closed."""
        return self._won

    def __repr__(self) -> str:
        return f"<Latch {'won' if self._won else 'open'}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
