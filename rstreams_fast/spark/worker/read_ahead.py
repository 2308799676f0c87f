"""Reads a partition's batches ahead: a thread puts them into a ring, within a budget of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from rstreams_fast.core import DemandCounter, SpscRing
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.worker.counters import Counters

__all__ = ["READ_AHEAD_BATCHES", "ByteBudget", "ByteLease", "LeasedBatch", "ReadAhead", "size_of"]

READ_AHEAD_BATCHES: Final = 16
"""The capacity, in batches, of the ring into which the reading thread puts the input batches."""


def size_of(batch: Any) -> int:
    """Return the bytes that an Arrow array, batch or tuple of arrays keeps in memory; at least 1.

    A slice of an array counts with the whole buffers of the array, which it keeps in memory.
    """
    if isinstance(batch, tuple):
        return max(1, sum(size_of(array) for array in batch))
    return max(1, int(batch.get_total_buffer_size()))


class ByteLease:
    """The bytes that one input batch takes from the ``ByteBudget`` until they are released."""

    __slots__ = ("charge", "released", "rows", "size")

    def __init__(self, size: int, charge: int, rows: int) -> None:
        self.size = size
        self.charge = charge
        self.rows = rows
        self.released = False


class ByteBudget:
    """Bounds the bytes of the input batches that a partition has in memory.

    The reading thread takes bytes; any thread may release bytes. The size of a batch is known only
    after the batch was read. So before each read the reading thread waits until a batch of the
    previous batch's size fits, or until all bytes are free. If the batch that was read is larger
    than the free bytes, it takes all free bytes.
    """

    def __init__(self, max_bytes: int, counters: Counters) -> None:
        self._max = max_bytes
        self._free = DemandCounter(max_bytes)
        self._changed = threading.Condition()
        self._counters = counters
        counters.max_buffer_bytes = max_bytes

    def wait_for_room(self, expected: int, patience: float | None = None) -> bool:
        """Wait until ``expected`` bytes of the budget are free.

        If the whole budget is smaller than ``expected``, wait until the whole budget is free. Stop
        waiting if no bytes were released for ``patience`` seconds: then the next batch may
        exceed the budget. Return ``False`` if ``cancel`` was called; otherwise ``True``.
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
        """Return the bytes of a batch to the budget. A second call for a batch does nothing."""
        with self._changed:
            if lease.released:
                return
            lease.released = True
            self._counters.count_buffered(-1, -lease.rows, -lease.size)
            if lease.charge:
                self._free.request(lease.charge)
            self._changed.notify_all()

    def cancel(self) -> None:
        """Wake the thread that is in ``wait_for_room``. Later calls of that method do not wait."""
        with self._changed:
            self._free.cancel()
            self._changed.notify_all()


class LeasedBatch(NamedTuple):
    """An input batch that was read ahead, and the bytes that it takes from the byte budget."""

    batch: Any
    lease: ByteLease


class ReadAhead:
    """Reads the batches of Spark's iterator into a ring, as far as the byte budget allows.

    The reading thread calls ``run``, and at its end closes the ring. If Spark's iterator raised an
    exception, ``error`` is this exception. After ``cancel`` such an exception is ignored.
    """

    def __init__(
        self, upstream: Iterator[Any], budget: ByteBudget, count_rows: Callable[[Any], int]
    ) -> None:
        self.ring = SpscRing(READ_AHEAD_BATCHES)
        """The input batches that were read, each with the bytes that it takes from the budget (as a
        ``LeasedBatch``). The threads that call the user's function remove the batches."""
        self.on_batch: Callable[[], object] = lambda: None
        """If ``poll`` has returned ``None``: called once, when a batch is ready or at the end."""
        self.error: BaseException | None = None
        self.ended = False
        """Whether ``poll`` has reached the end. Then it always returns ``None``."""
        self.patience: float | None = None
        """If no bytes are released for this many seconds, a batch may exceed the byte budget.
        ``None``: never."""
        self._upstream = upstream
        self._budget = budget
        self._count_rows = count_rows
        self._cancelled = False
        self._last_poll_was_empty = False

    def run(self, first: Any) -> None:
        """Read batches until the end of Spark's iterator, or until ``cancel``.

        ``first`` is the first batch, which the caller has already read.
        """
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
            pass  # ``cancel`` or ``fail`` has closed the ring: stop reading
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
                # ``on_batch`` failed, so it may not have passed on that a batch is ready. ``run``
                # calls ``_notify`` again at its end; this flag makes it call ``on_batch`` then.
                self._last_poll_was_empty = True
                raise

    def poll(self) -> LeasedBatch | None:
        """Return the next batch; ``None`` if no batch is ready, or at the end.

        At the end ``ended`` is true. Otherwise ``None`` means that ``on_batch`` is called later,
        when a batch is ready or at the end.
        """
        if self.ended:
            return None
        found: LeasedBatch | None = self.ring.poll()
        if found is None:
            self._last_poll_was_empty = True
            closed = self.ring.closed
            # Poll again. If a batch came before ``_last_poll_was_empty`` was set, the reading
            # thread did not call ``on_batch`` for it.
            found = self.ring.poll()
            if found is not None or closed:
                self._last_poll_was_empty = False
                self.ended = found is None
        return found

    def cancel(self) -> None:
        """Stop reading. This method never blocks: it does not wait for a read that has begun."""
        self._cancelled = True
        self.ring.close()
        self._budget.cancel()
