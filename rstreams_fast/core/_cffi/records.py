"""The ring of numpy records on ``rsf_ring``: one piece of memory, copied in and out by C.

A view of a region is an array on a memoryview of ``ffi.buffer``: while anything made from it is
there, so is the buffer object, which keeps the memory.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from rstreams_fast._checks import check_count, check_timeout
from rstreams_fast.core._cffi._raw import ffi, lib
from rstreams_fast.core._cffi.ring import BoundedRing, Putting, Taking
from rstreams_fast.core._records import (
    ALIGNMENT,
    Records,
    aput_all,
    beyond_region,
    check_most,
    check_wanted,
    put_all,
    view_alive,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RecordRing"]


class _Views:
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
        dtype: np.dtype[Any] = self._records.dtype
        return dtype

    # -- producer --------------------------------------------------------------------------------

    def write(self, array: np.ndarray[Any, Any], /) -> int:
        plain = self._records.source(array)
        inside = Putting(self, 0, "write")
        with inside, inside:
            self._check_reserved_views("write")
            inside.done = self._put(plain)
        return inside.done

    def put(self, array: np.ndarray[Any, Any], timeout: float | None = None) -> None:
        put_all(self._records, self._put_part, array, timeout)

    async def aput(self, array: np.ndarray[Any, Any]) -> None:
        await aput_all(self._records, self._aput_part, array)

    def _put_part(self, array: np.ndarray[Any, Any], timeout: float | None) -> int:
        plain = self._records.source(array)
        inside = Putting(self, 0, "put")
        with inside, inside:
            self._check_reserved_views("put")
            if len(plain):
                self._wait_for_room("put", timeout)
            inside.done = self._put(plain)
        return inside.done

    async def _aput_part(self, array: np.ndarray[Any, Any]) -> int:
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
        wanted = check_count("n", n)
        inside = Putting(self, min(wanted, self._capacity), "reserve")
        with inside, inside:
            at = self._producer.at
            self._reserved = lib.rsf_ring_contiguous(self._ring, at, inside.there)
            return self._view(self._reserved_views, at, self._reserved)

    def commit(self, n: int, /) -> None:
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
        wanted = check_most(max)
        inside = Taking(self)
        with inside, inside:
            self._check_peeked_views("read")
            taken = self._room_for(wanted)
            inside.done = self._take(taken)
        return taken

    def read_into(self, array: np.ndarray[Any, Any], /) -> int:
        plain = self._records.target(array)
        inside = Taking(self)
        with inside, inside:
            self._check_peeked_views("read_into")
            inside.done = self._take(plain)
        return inside.done

    def get(self, max: int | None = None, timeout: float | None = None) -> np.ndarray[Any, Any]:
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
        wanted = check_count("n", n)
        inside = Taking(self, min(wanted, self._capacity))
        with inside, inside:
            at = self._consumer.at
            self._peeked = lib.rsf_ring_contiguous(self._ring, at, inside.there)
            return self._view(self._peeked_views, at, self._peeked, readonly=True)

    def release(self, n: int, /) -> None:
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
