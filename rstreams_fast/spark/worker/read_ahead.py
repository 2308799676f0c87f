"""Reads a partition's batches ahead: a thread puts them in a ring, within a budget of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from rstreams_fast.core import DemandCounter, SpscRing
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.worker.counters import Counters

__all__ = ["READ_AHEAD_BATCHES", "ByteBudget", "ByteLease", "LeasedBatch", "ReadAhead", "size_of"]

READ_AHEAD_BATCHES: Final = 16
"""The most batches in the ring between the reading thread and the thread that takes them."""


def size_of(batch: Any) -> int:
    """Return the bytes that an Arrow array, batch or tuple of arrays keeps alive; at least 1.

    A slice keeps the whole buffers of its array alive.
    """
    if isinstance(batch, tuple):
        return max(1, sum(size_of(array) for array in batch))
    return max(1, int(batch.get_total_buffer_size()))


class ByteLease:
    """The bytes that one batch takes from the budget."""

    __slots__ = ("charge", "released", "rows", "size")

    def __init__(self, size: int, charge: int, rows: int) -> None:
        self.size = size
        self.charge = charge
        self.rows = rows
        self.released = False


class ByteBudget:
    """Bounds the bytes of the batches that a stage holds.

    One thread takes bytes, any thread releases them. The size of a batch is known only after the
    batch was read. So the reading thread first waits until there is room for a batch as large as
    the previous batch, or until no batch is held. If the batch that it then reads is larger than
    the free bytes, the batch takes all free bytes.
    """

    def __init__(self, max_bytes: int, counters: Counters) -> None:
        self._max = max_bytes
        self._free = DemandCounter(max_bytes)
        self._changed = threading.Condition()
        self._counters = counters
        counters.max_buffer_bytes = max_bytes

    def wait_for_room(self, expected: int, patience: float | None = None) -> bool:
        """Wait until ``expected`` bytes are free, or no batch is held.

        Stop waiting if no bytes were released for ``patience`` seconds. Return ``False`` if the
        budget is cancelled, else ``True``.
        """
        wanted = min(expected, self._max)
        with self._changed:
            while 0 <= self._free.value < wanted:
                if not self._changed.wait(patience):
                    break
            return self._free.value >= 0

    def take(self, size: int, rows: int) -> ByteLease:
        with self._changed:
            charge = min(size, self._free.pending)
            self._free.fulfil(charge)
            self._counters.count_buffered(1, rows, size)
        return ByteLease(size, charge, rows)

    def release(self, lease: ByteLease) -> None:
        """Free the bytes of a batch; a second release does nothing."""
        with self._changed:
            if lease.released:
                return
            lease.released = True
            self._counters.count_buffered(-1, -lease.rows, -lease.size)
            if lease.charge:
                self._free.request(lease.charge)
            self._changed.notify_all()

    def cancel(self) -> None:
        """Wake the waiting thread. Later calls of ``wait_for_room`` do not wait."""
        with self._changed:
            self._free.cancel()
            self._changed.notify_all()


class LeasedBatch(NamedTuple):
    """A batch that was read ahead, and the bytes of the budget that it takes."""

    batch: Any
    lease: ByteLease


class ReadAhead:
    """Reads Spark's iterator on its own thread into a ring, as far as the byte budget allows.

    At the end the ring is closed, and ``error`` is the exception of Spark's iterator, if any. After
    ``cancel``, exceptions of Spark's iterator are ignored.
    """

    def __init__(
        self, upstream: Iterator[Any], budget: ByteBudget, count_rows: Callable[[Any], int]
    ) -> None:
        self.ring = SpscRing(READ_AHEAD_BATCHES)
        """Holds a ``LeasedBatch`` per batch: the reading thread puts it in, the stage takes it."""
        self.on_batch: Callable[[], object] = lambda: None
        """Called after a new batch, and at the end, if the last ``poll`` returned ``None``."""
        self.error: BaseException | None = None
        self.ended = False
        """Whether ``poll`` has reached the end, and will always return ``None``."""
        self.patience: float | None = None
        """Seconds to wait for room before a batch may exceed the budget; ``None``: for ever."""
        self._upstream = upstream
        self._budget = budget
        self._count_rows = count_rows
        self._cancelled = False
        self._last_poll_was_empty = False

    def run(self, first: Any) -> None:
        """Read batches until the end or a cancel. ``first`` is a batch that the caller has read."""
        upstream, self._upstream = self._upstream, iter(())
        try:
            while first is not None and not self._cancelled:
                size = size_of(first)
                lease = self._budget.take(size, self._count_rows(first))
                self.ring.put(LeasedBatch(first, lease))
                first = None
                self._notify()
                if not self._budget.wait_for_room(size, self.patience):
                    break
                first = next(upstream, None)
        except RingClosed:
            pass  # ``cancel`` or ``fail`` has closed the ring
        except BaseException as raised:
            if not self._cancelled:
                self.error = raised
        finally:
            del first
            self.ring.close()
            self._notify()

    def fail(self, error: BaseException) -> None:
        """End the reading, as if Spark's iterator had raised ``error``. Thread-safe."""
        self.error = self.error or error
        self.ring.close()
        self._notify()

    def _notify(self) -> None:
        if self._last_poll_was_empty:
            self._last_poll_was_empty = False
            try:
                self.on_batch()
            except BaseException:
                # ``on_batch`` has failed. Set this flag, so that ``run`` calls it again at its end.
                self._last_poll_was_empty = True
                raise

    def poll(self) -> LeasedBatch | None:
        """Return the next batch, or ``None``.

        ``None`` means that no batch is there yet, or that the end was reached (``ended``). If no
        batch is there yet, ``on_batch`` will be called later.
        """
        if self.ended:
            return None
        found: LeasedBatch | None = self.ring.poll()
        if found is None:
            self._last_poll_was_empty = True
            closed = self.ring.closed
            # Poll again: a batch may have come before ``_last_poll_was_empty`` was set. Then
            # ``on_batch`` was not called for the batch.
            found = self.ring.poll()
            if found is not None or closed:
                self._last_poll_was_empty = False
                self.ended = found is None
        return found

    def cancel(self) -> None:
        """Stop reading. Never blocks: a read that has begun goes on in its thread."""
        self._cancelled = True
        self.ring.close()
        self._budget.cancel()
