"""``RecordRing`` on the C type ``rsf_ring``. C code copies records into and out of its memory.

A view of records is a numpy array on a memoryview of an ``ffi.buffer`` object. The view, and every
object that is made from the view, keeps the buffer object and its memory alive.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from rstreams_fast._checks import check_count
from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._cffi.ring import BoundedRing, PutCall, TakeCall
from rstreams_fast.core._records import ALIGNMENT, Records
from rstreams_fast.core._spec import records as spec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RecordRing"]


class RecordRing(BoundedRing, spec.RecordRing):
    def __init__(self, dtype: Any, capacity: int) -> None:
        BoundedRing.__init__(self, capacity)
        self._records = Records(dtype, self._capacity)
        self._itemsize = self._records.itemsize
        size = lib.rsf_ring_slots(self._ring) * self._itemsize + ALIGNMENT
        try:
            memory = ffi.new("unsigned char[]", size)
        except (MemoryError, OverflowError):
            raise MemoryError(f"no memory for a ring of {capacity} records") from None
        self._start = -int(ffi.cast("uintptr_t", memory)) % ALIGNMENT
        self._memory: Any = memory
        self._storage: Any = memory + self._start
        self._view_with(lambda: ffi.buffer(memory, size))

    def _put(self, inside: Any, plain: np.ndarray[Any, Any]) -> int:
        ring = self._ring
        # numpy does not resize an array while a weak reference to it exists, even if resize() is
        # called with refcheck=False. So no other thread can resize this array during the copy.
        guard = weakref.ref(plain)
        given = ffi.from_buffer(plain)
        count: int = lib.rsf_glue_reserve(ring, self._producer, len(given) // self._itemsize)
        lib.rsf_records_put(ring, self._storage, self._itemsize, self._producer.at, count, given)
        del guard
        self._commit(inside, count)
        return count

    def reserve(self, n: int, /) -> np.ndarray[Any, Any]:
        wanted = check_count("n", n)
        inside = PutCall(self, "reserve", min(wanted, self._capacity))
        with inside, inside:
            at = self._producer.at
            self._reserved = lib.rsf_ring_contiguous(self._ring, at, inside.available)
            return self._view(self._reserved_views, at, self._reserved)

    def _commit(self, inside: Any, count: int) -> None:
        self._reserved = 0
        inside.done = count

    def _take_into(self, inside: Any, plain: np.ndarray[Any, Any]) -> int:
        ring = self._ring
        guard = weakref.ref(plain)
        taken = ffi.from_buffer(plain, require_writable=True)
        count: int = lib.rsf_glue_peek(ring, self._consumer, len(taken) // self._itemsize)
        lib.rsf_records_take(ring, self._storage, self._itemsize, self._consumer.at, count, taken)
        del guard
        self._release(inside, count)
        return count

    def peek(self, n: int, /) -> np.ndarray[Any, Any]:
        wanted = check_count("n", n)
        inside = TakeCall(self, None, min(wanted, self._capacity))
        with inside, inside:
            at = self._consumer.at
            self._peeked = lib.rsf_ring_contiguous(self._ring, at, inside.available)
            return self._view(self._peeked_views, at, self._peeked, readonly=True)

    def _release(self, inside: Any, count: int) -> None:
        self._peeked = 0
        inside.done = count
