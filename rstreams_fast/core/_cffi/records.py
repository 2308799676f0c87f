"""The ring of numpy records on ``rsf_ring``: one piece of memory, copied in and out by C.

A view of a region is an array on a memoryview of ``ffi.buffer``: while anything made from it is
there, so is the buffer object, which keeps the memory.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._cffi.ring import BoundedRing, Putting, Taking
from rstreams_fast.core._common import check_count, check_timeout
from rstreams_fast.core._records import (
    ALIGNMENT,
    Records,
    beyond_region,
    check_most,
    check_wanted,
    view_alive,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RecordRing"]


class _Views:
    """The views of one side: whether one lives is known by what they all hold."""

    __slots__ = ("_held", "_memory", "_size")

    def __init__(self, memory: Any, size: int) -> None:
        self._memory = memory
        self._size = size
        self._held: weakref.ref[Any] | None = None

    @property
    def alive(self) -> bool:
        return self._held is not None and self._held() is not None

    def memory(self) -> memoryview:
        held = None if self._held is None else self._held()
        if held is None:
            held = ffi.buffer(self._memory, self._size)
            self._held = weakref.ref(held)
        return memoryview(held)


class RecordRing(BoundedRing):
    """A bounded first-in first-out buffer of fixed-size records: numpy data, in memory of its own.

    ``dtype`` is any numpy dtype without Python objects; ``capacity`` is the bound, in records. All
    memory is allocated at once, and the records are copied in and out, or worked on in place:

    * ``write`` and ``read`` copy. Large copies are made without the GIL.
    * ``reserve(n)`` gives a writable view of free room, ``commit(k)`` puts its first ``k`` records
      in; ``peek(n)`` gives a read-only view of the oldest records, ``release(k)`` takes its first
      ``k`` out. Neither touches a byte.

    One producer (``write``, ``put``, ``aput``, ``reserve``, ``commit``, ``arm_producer``) and one
    consumer (``read``, ``read_into``, ``get``, ``aget``, ``peek``, ``release``, ``arm``), as with
    ``SpscRing``: two calls that overlap on one side raise ``OverlappingCalls``. While a view of the
    reserved records lives, the producer's calls that put records in raise ``BufferError``, as
    ``bytearray`` does; so do the consumer's that take records out, while a view of the peeked ones
    lives. A view keeps the memory alive, beyond the ring.
    """

    def __init__(self, dtype: Any, capacity: int) -> None:
        super().__init__(capacity)
        self._records = Records(dtype, self._capacity)
        self._itemsize = self._records.itemsize
        size = lib.rsf_ring_slots(self._ring) * self._itemsize + ALIGNMENT
        try:
            memory = ffi.new("unsigned char[]", size)
        except (MemoryError, OverflowError):
            raise MemoryError(f"no memory for a ring of {capacity} records") from None
        self._memory: Any = memory
        self._start = -int(ffi.cast("uintptr_t", memory)) % ALIGNMENT
        self._storage: Any = memory + self._start
        self._reserved = 0  # what reserve gave last, and nothing was put in since
        self._peeked = 0
        self._reserved_views = _Views(memory, size)
        self._peeked_views = _Views(memory, size)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What a record is."""
        dtype: np.dtype[Any] = self._records.dtype
        return dtype

    # -- producer --------------------------------------------------------------------------------

    def write(self, array: np.ndarray[Any, Any], /) -> int:
        """Copy in as many of the records of ``array`` as fit, and return how many that were.

        ``array`` has the ring's dtype, byte order included, or it is a ``TypeError``, and one
        dimension, or it is a ``ValueError``; of a sub-array dtype the array has its dimensions,
        too. An array that is not contiguous is copied twice. ``RingClosed`` when closed.
        """
        plain = self._records.source(array)
        inside = Putting(self, 0, "write")
        with inside, inside:
            self._check_reserved_views("write")
            inside.done = self._put(plain)
        return inside.done

    def put(self, array: np.ndarray[Any, Any], timeout: float | None = None) -> int:
        """``write`` as many records as fit, waiting until one does.

        ``TimeoutError`` after ``timeout`` seconds, with nothing put in.
        """
        plain = self._records.source(array)
        timeout = check_timeout(timeout)
        inside = Putting(self, 0, "put")
        with inside, inside:
            self._check_reserved_views("put")
            if len(plain):
                self._wait_for_room("put", timeout)
            inside.done = self._put(plain)
        return inside.done

    async def aput(self, array: np.ndarray[Any, Any]) -> int:
        """``write`` as many records as fit, awaiting that one does.

        The other side may be in another thread or loop. When the awaiting task is cancelled,
        nothing has been put in.
        """
        plain = self._records.source(array)
        inside = Putting(self, 0, "aput")
        with inside, inside:
            self._check_reserved_views("aput")
            if len(plain):
                await self._await_room("aput")
            inside.done = self._put(plain)
        return inside.done

    def _put(self, plain: np.ndarray[Any, Any]) -> int:
        ring = self._ring
        # numpy refuses to resize an array that has a weak reference, asked not to look or not.
        guard = weakref.ref(plain)
        given = ffi.from_buffer(plain)
        count: int = lib.rsf_glue_reserve(ring, self._producer, len(given) // self._itemsize)
        lib.rsf_records_put(ring, self._storage, self._itemsize, self._producer.at, count, given)
        self._reserved = 0
        del guard
        return count

    def reserve(self, n: int, /) -> np.ndarray[Any, Any]:
        """A writable view of free room for at most ``n`` contiguous records; empty when full.

        Reserving changes nothing: it may be repeated, or forgotten. What is in the room before it
        is written is anything. ``RingClosed`` when closed.
        """
        wanted = check_count("n", n)
        inside = Putting(self, min(wanted, self._capacity), "reserve")
        with inside, inside:
            at = self._producer.at
            self._reserved = lib.rsf_ring_contiguous(self._ring, at, inside.there)
            return self._view(self._reserved_views, at, self._reserved)

    def commit(self, n: int, /) -> None:
        """Put in the first ``n`` records of what ``reserve`` gave last; the rest is given up.

        ``BufferError`` while a view of them lives; ``ValueError`` if they are fewer;
        ``RingClosed`` when closed.
        """
        count = check_count("n", n)
        inside = Putting(self, 0, "commit")
        with inside, inside:
            self._check_reserved_views("commit")
            if count > self._reserved:
                raise beyond_region("commit", count, "reserved", self._reserved)
            self._reserved = 0
            inside.done = count

    def _check_reserved_views(self, call: str) -> None:
        if self._reserved_views.alive:
            raise view_alive(call, "reserved")

    # -- consumer --------------------------------------------------------------------------------

    def read(self, max: int | None = None) -> np.ndarray[Any, Any]:
        """Take up to ``max`` records out (``None``: all), oldest first, as a new array."""
        wanted = check_most(max)
        inside = Taking(self)
        with inside, inside:
            self._check_peeked_views("read")
            taken = self._room_for(wanted)
            inside.done = self._take(taken)
        return taken

    def read_into(self, array: np.ndarray[Any, Any], /) -> int:
        """Take out as many records as there are and ``array`` has room for; return how many.

        ``array`` is as for ``write``, and contiguous and writable, or it is a ``ValueError``.
        """
        plain = self._records.target(array)
        inside = Taking(self)
        with inside, inside:
            self._check_peeked_views("read_into")
            inside.done = self._take(plain)
        return inside.done

    def get(self, max: int | None = None, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """``read`` up to ``max`` records, waiting until there is one.

        ``TimeoutError`` after ``timeout`` seconds. Once closed and empty: raises the error given to
        ``close``, else ``RingClosed``.
        """
        wanted = check_wanted(max)
        timeout = check_timeout(timeout)
        inside = Taking(self)
        with inside, inside:
            self._check_peeked_views("get")
            self._wait_for_data(timeout)
            taken = self._room_for(wanted)
            inside.done = self._take(taken)
        return taken

    async def aget(self, max: int | None = None) -> np.ndarray[Any, Any]:
        """``read`` up to ``max`` records, awaiting that there is one. At the end it raises what
        ``get`` does.

        The other side may be in another thread or loop. When the awaiting task is cancelled,
        nothing has been taken out.
        """
        wanted = check_wanted(max)
        inside = Taking(self)
        with inside, inside:
            self._check_peeked_views("aget")
            await self._await_data()
            taken = self._room_for(wanted)
            inside.done = self._take(taken)
        return taken

    def _room_for(self, wanted: int | None) -> np.ndarray[Any, Any]:
        """Inside the consumer's side, where what there is cannot become less."""
        return self._records.empty(len(self) if wanted is None else min(wanted, len(self)))

    def _take(self, plain: np.ndarray[Any, Any]) -> int:
        ring = self._ring
        guard = weakref.ref(plain)
        taken = ffi.from_buffer(plain, require_writable=True)
        count: int = lib.rsf_glue_peek(ring, self._consumer, len(taken) // self._itemsize)
        lib.rsf_records_take(ring, self._storage, self._itemsize, self._consumer.at, count, taken)
        self._peeked = 0
        del guard
        return count

    def peek(self, n: int, /) -> np.ndarray[Any, Any]:
        """A read-only view of at most ``n`` contiguous records, the oldest; empty when empty.

        Peeking changes nothing: it may be repeated, or forgotten.
        """
        wanted = check_count("n", n)
        inside = Taking(self, min(wanted, self._capacity))
        with inside, inside:
            at = self._consumer.at
            self._peeked = lib.rsf_ring_contiguous(self._ring, at, inside.there)
            return self._view(self._peeked_views, at, self._peeked, readonly=True)

    def release(self, n: int, /) -> None:
        """Take out the first ``n`` records of what ``peek`` gave last; the rest stays.

        ``BufferError`` while a view of them lives; ``ValueError`` if they are fewer.
        """
        count = check_count("n", n)
        inside = Taking(self)
        with inside, inside:
            self._check_peeked_views("release")
            if count > self._peeked:
                raise beyond_region("release", count, "peeked", self._peeked)
            self._peeked = 0
            inside.done = count

    def _check_peeked_views(self, call: str) -> None:
        if self._peeked_views.alive:
            raise view_alive(call, "peeked")

    def _view(
        self, views: _Views, at: int, count: int, readonly: bool = False
    ) -> np.ndarray[Any, Any]:
        if count == 0:
            return self._records.nothing(readonly)
        begin = self._start + at * self._itemsize
        memory = views.memory()[begin : begin + count * self._itemsize]
        return self._records.view(memory.toreadonly() if readonly else memory)

    def __repr__(self) -> str:
        return self._records.describe(super().__repr__())
