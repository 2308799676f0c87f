"""How much a stage holds: a byte budget, and the thread that reads ahead within it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from rstreams_fast.core import DemandCounter, SpscRing
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.figures import Counters

__all__ = ["READ_AHEAD_BATCHES", "ByteBudget", "Reader", "Reading", "describe_reading", "size_of"]

READ_AHEAD_BATCHES: Final = 16
"""Batches in the ring between the reader and whoever works on them."""


def describe_reading(max_bytes: int) -> str:
    """Say what bounds the reading ahead: a line of ``describe()``."""
    return (
        f"  read ahead: a ring of {READ_AHEAD_BATCHES} batches, under a demand counter of "
        f"{max_bytes} bytes (one larger batch passes alone)"
    )


def size_of(batch: Any) -> int:
    """Return the bytes an Arrow array, a batch or a tuple of arrays holds, at least 1."""
    if isinstance(batch, tuple):
        return max(1, sum(size_of(array) for array in batch))
    try:
        return max(1, int(batch.nbytes))
    except (TypeError, ValueError, NotImplementedError):  # a type whose slices Arrow cannot measure
        return max(1, int(batch.get_total_buffer_size()))


class ByteBudget:
    """Bytes that may be held, as demand: reading a batch fulfils it, letting go requests it back.

    One thread takes, any thread gives back. How large a batch is turns out only when it has been
    read. So the reader first waits until there is room for one like the last; a batch that is
    larger than what is left takes all of it, and one always passes when nothing is held.
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

    def take(self, size: int, rows: int) -> Reading:
        """Charge a batch that was read."""
        with self._changed:
            charge = min(size, self._free.pending)
            self._free.fulfil(charge)
            held = self._counters
            held.rows_in += rows
            held.batches_in += 1
            held.buffered_rows += rows
            held.buffered_bytes += size
            held.buffered_batches += 1
            held.max_buffered_rows = max(held.max_buffered_rows, held.buffered_rows)
            held.max_buffered_bytes = max(held.max_buffered_bytes, held.buffered_bytes)
            held.max_buffered_batches = max(held.max_buffered_batches, held.buffered_batches)
        return Reading(size, charge, rows)

    def give_back(self, reading: Reading) -> None:
        """Let go of a batch; a second time is a NOP."""
        with self._changed:
            if reading.released:
                return
            reading.released = True
            self._counters.buffered_rows -= reading.rows
            self._counters.buffered_bytes -= reading.size
            self._counters.buffered_batches -= 1
            if reading.charge:
                self._free.request(reading.charge)
            self._changed.notify_all()

    def cancel(self) -> None:
        """Let no one wait any more."""
        with self._changed:
            self._free.cancel()
            self._changed.notify_all()


class Reading:
    """What one batch that was read is charged for."""

    __slots__ = ("charge", "released", "rows", "size")

    def __init__(self, size: int, charge: int, rows: int) -> None:
        self.size = size
        self.charge = charge
        self.rows = rows
        self.released = False


class Reader:
    """Pulls Spark's iterator into a ring, on a thread of its own, as far as the byte budget allows.

    Elements of the ring are ``(batch, Reading)``. ``on_batch`` is called after each, and at the
    end. The ring is closed at the end; ``error`` is then what upstream raised, unless the reading
    had been cancelled: when nobody wants the rest any more, an end of file or a broken connection
    is no error.
    """

    def __init__(
        self,
        upstream: Iterator[Any],
        budget: ByteBudget,
        count_rows: Callable[[Any], int],
    ) -> None:
        self.ring = SpscRing(READ_AHEAD_BATCHES)
        self.on_batch: Callable[[], object] = _nothing
        self.error: BaseException | None = None
        self.waited = 0.0
        """Seconds spent waiting for upstream."""
        self.patience: float | None = None
        """Seconds to wait for room before a batch may exceed the budget; ``None``: for ever."""
        self._upstream = upstream
        self._budget = budget
        self._count_rows = count_rows
        self._cancelled = False

    def run(self, first: Any) -> None:
        """Body of the thread. ``first`` is a batch that was pulled before it started."""
        upstream, self._upstream = self._upstream, iter(())
        try:
            while first is not None and not self._cancelled:
                size = size_of(first)
                self.ring.put((first, self._budget.take(size, self._count_rows(first))))
                first = None
                self.on_batch()
                if not self._budget.wait_for_room(size, self.patience):
                    break
                begin = time.monotonic()
                first = next(upstream, None)
                self.waited += time.monotonic() - begin
        except RingClosed:
            pass  # cancelled
        except BaseException as raised:
            if not self._cancelled:
                self.error = raised
        finally:
            del first
            self.ring.close()
            self.on_batch()

    def cancel(self) -> None:
        """Read no more. Never blocks; a read under way ends in its own time."""
        self._cancelled = True
        self.ring.close()
        self._budget.cancel()


def _nothing() -> None:
    pass
