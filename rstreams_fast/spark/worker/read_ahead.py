"""Reading ahead of the calls: one thread, one ring, and a byte budget that bounds both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from rstreams_fast.core import DemandCounter, SpscRing
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.worker.counters import Counters

__all__ = ["READ_AHEAD_BATCHES", "ByteBudget", "ByteLease", "ReadAhead", "Waiting", "size_of"]

READ_AHEAD_BATCHES: Final = 16
"""Batches in the ring between the thread that reads and the one that works on them."""


def size_of(batch: Any) -> int:
    """Return the bytes that an Arrow array, a batch or a tuple of arrays keeps, at least 1.

    A slice keeps all of its buffers.
    """
    if isinstance(batch, tuple):
        return max(1, sum(size_of(array) for array in batch))
    return max(1, int(batch.get_total_buffer_size()))


class ByteLease:
    """What one batch that was read is charged for."""

    __slots__ = ("charge", "released", "rows", "size")

    def __init__(self, size: int, charge: int, rows: int) -> None:
        self.size = size
        self.charge = charge
        self.rows = rows
        self.released = False


class ByteBudget:
    """Bytes that may be held, as demand: reading a batch fulfils it, releasing one requests it.

    One thread takes, any thread releases. How large a batch is turns out only when it has been
    read. So the reading thread first waits until there is room for one like the last; a batch that
    is larger than what is left takes all of it, and one always passes when nothing is held.
    """

    def __init__(self, max_bytes: int, counters: Counters) -> None:
        self._max = max_bytes
        self._free = DemandCounter(max_bytes)
        self._changed = threading.Condition()
        self._counters = counters
        counters.max_buffer_bytes = max_bytes

    def wait_for_room(self, expected: int, patience: float | None = None) -> bool:
        """Wait until ``expected`` bytes fit, or nothing is held; ``False`` once cancelled.

        With ``patience``, gives up waiting after so many seconds without a release.
        """
        wanted = min(expected, self._max)
        with self._changed:
            while 0 <= self._free.value < wanted:
                if not self._changed.wait(patience):
                    break
            return self._free.value >= 0

    def take(self, size: int, rows: int) -> ByteLease:
        """Charge a batch that was read."""
        with self._changed:
            charge = min(size, self._free.pending)
            self._free.fulfil(charge)
            self._counters.hold(1, rows, size)
        return ByteLease(size, charge, rows)

    def release(self, lease: ByteLease) -> None:
        """Release a batch; a second time is a NOP."""
        with self._changed:
            if lease.released:
                return
            lease.released = True
            self._counters.hold(-1, -lease.rows, -lease.size)
            if lease.charge:
                self._free.request(lease.charge)
            self._changed.notify_all()

    def cancel(self) -> None:
        """Let no thread wait any more."""
        with self._changed:
            self._free.cancel()
            self._changed.notify_all()


class Waiting(NamedTuple):
    """A batch that was read, and what it is charged for."""

    batch: Any
    lease: ByteLease


class ReadAhead:
    """Pulls Spark's iterator into a ring, on a thread of its own, as far as the byte budget allows.

    The ring is closed at the end; ``error`` is then what upstream raised. After ``cancel`` the rest
    is not wanted, and an end of file or a broken connection is no error.
    """

    def __init__(
        self, upstream: Iterator[Any], budget: ByteBudget, count_rows: Callable[[Any], int]
    ) -> None:
        self.ring = SpscRing(READ_AHEAD_BATCHES)
        """Elements are ``Waiting``."""
        self.on_batch: Callable[[], object] = lambda: None
        """Called when ``poll`` found nothing and there is something now, or an end."""
        self.error: BaseException | None = None
        self.ended = False
        """``poll`` will find nothing any more."""
        self.patience: float | None = None
        """Seconds to wait for room before a batch may exceed the budget; ``None``: for ever."""
        self._upstream = upstream
        self._budget = budget
        self._count_rows = count_rows
        self._cancelled = False
        self._polled_in_vain = False

    def run(self, first: Any) -> None:
        """Body of the thread. ``first`` is a batch that was pulled before it started."""
        upstream, self._upstream = self._upstream, iter(())
        try:
            while first is not None and not self._cancelled:
                size = size_of(first)
                lease = self._budget.take(size, self._count_rows(first))
                self.ring.put(Waiting(first, lease))
                first = None
                self._notify()
                if not self._budget.wait_for_room(size, self.patience):
                    break
                first = next(upstream, None)
        except RingClosed:
            pass  # cancelled
        except BaseException as raised:
            if not self._cancelled:
                self.error = raised
        finally:
            del first
            self.ring.close()
            self._notify()

    def fail(self, error: BaseException) -> None:
        """End as if upstream had raised ``error``. Any thread may call."""
        self.error = self.error or error
        self.ring.close()
        self._notify()

    def _notify(self) -> None:
        if self._polled_in_vain:
            self._polled_in_vain = False
            try:
                self.on_batch()
            except BaseException:
                self._polled_in_vain = True  # nobody knows yet: the end of the thread says it again
                raise

    def poll(self) -> Waiting | None:
        """Return the next batch; ``None``: none now (``on_batch`` will be called), or ``ended``."""
        if self.ended:
            return None
        found: Waiting | None = self.ring.poll()
        if found is None:
            self._polled_in_vain = True
            closed = self.ring.closed
            found = self.ring.poll()  # what came before the thread could see that we wait
            if found is not None or closed:
                self._polled_in_vain = False
                self.ended = found is None
        return found

    def cancel(self) -> None:
        """Read no more. Never blocks; a read under way ends in its own time."""
        self._cancelled = True
        self.ring.close()
        self._budget.cancel()
