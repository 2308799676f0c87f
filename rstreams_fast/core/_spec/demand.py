"""``DemandCounter``: the number of elements that were requested and not yet delivered."""

from __future__ import annotations

import threading
from typing import NoReturn

from rstreams_fast._checks import check_count, safe_repr
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core._common import CANCELLED, TERMINATED, refuse_pickle
from rstreams_fast.errors import DemandExceededError, check_request

__all__ = ["DemandCounter"]


class DemandCounter:
    """The demand: how many elements were requested and not yet delivered. Thread-safe.

    Args:
        initial: The demand at the beginning.
    """

    __slots__ = ("__weakref__", "_lock", "_value")

    def __init__(self, initial: int = 0) -> None:
        # The lock is reentrant, because a finalizer or a signal handler may use the counter on the
        # thread that holds the lock. Python runs finalizers and handlers only where code calls a
        # function. No method calls a function between reading the value and changing it.
        self._lock = threading.RLock()
        self._value = min(check_count("initial", initial), UNBOUNDED)

    def request(self, n: int, /) -> int:
        """Add ``n`` to the demand. Return the previous demand.

        After ``cancel`` or ``terminate``, change nothing, and return ``CANCELLED`` or
        ``TERMINATED`` (§3.6). The demand grows at most to ``UNBOUNDED``, and then stays there
        (§3.17).

        Args:
            n: The number of elements, 1 or more.

        Raises:
            ValueError: ``n <= 0``; nothing changes (§3.9).
            TypeError: ``n`` is not an ``int``; nothing changes (§3.9).
        """
        if self._value < 0:
            return self._value
        n = check_request(n)  # before the lock is taken, because ``n.__index__`` is user code
        with self._lock:
            before = self._value
            if before >= 0:
                self._value = before + n if n < UNBOUNDED - before else UNBOUNDED
            return before

    def fulfil(self, n: int = 1, /) -> int:
        """Subtract ``n`` delivered elements from the demand. Return the demand that is left.

        After ``cancel`` or ``terminate``, change nothing, and return ``CANCELLED`` or
        ``TERMINATED``.

        Args:
            n: The number of delivered elements.

        Raises:
            DemandExceededError: ``n`` is larger than the demand; nothing changes (§1.1).
        """
        n = check_count("n", n)
        with self._lock:
            if self._value < 0 or self._value == UNBOUNDED:
                return self._value
            if n > self._value:
                raise DemandExceededError(
                    f"§1.1: {safe_repr(n)} elements delivered, only {self._value} were requested"
                )
            self._value -= n
            return self._value

    def cancel(self) -> bool:
        """End the demand because downstream has cancelled. Return false if it had ended before."""
        return self._end(CANCELLED)

    def terminate(self) -> bool:
        """End the demand because the stream has ended. Return false if it had ended before."""
        return self._end(TERMINATED)

    def _end(self, sentinel: int) -> bool:
        with self._lock:
            if self._value < 0:
                return False
            self._value = sentinel
            return True

    @property
    def value(self) -> int:
        """The demand, or the negative number ``CANCELLED`` or ``TERMINATED``."""
        return self._value

    @property
    def pending(self) -> int:
        """The demand; 0 after ``cancel`` or ``terminate``."""
        return max(self._value, 0)

    @property
    def cancelled(self) -> bool:
        """Whether a call of ``cancel`` ended the demand."""
        return self._value == CANCELLED

    @property
    def terminated(self) -> bool:
        """Whether a call of ``terminate`` ended the demand."""
        return self._value == TERMINATED

    def __repr__(self) -> str:
        words = {CANCELLED: "cancelled", TERMINATED: "terminated", UNBOUNDED: "unbounded"}
        return f"<DemandCounter {words.get(self._value, self._value)}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self)
