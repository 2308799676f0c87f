"""The executable specification of ``RecordRing``, a ring of numpy records."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rstreams_fast._checks import check_count, check_timeout
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
from rstreams_fast.core._spec.ring import BoundedRing, PutCall, TakeCall

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RecordRing", "Views"]


class Views:
    """Tells whether a view of the ring's memory still exists.

    The ring has two ``Views``, for the producer and the consumer. All views of one side refer to
    the same *owner*, an object that exposes the memory. The owner exists as long as one of these
    views exists. A weak reference tells whether the owner exists.
    """

    def __init__(self, export: Callable[[], Any]) -> None:
        self._export = export  # makes an owner: an object that exposes the ring's memory
        self._held: weakref.ref[Any] | None = None

    @property
    def alive(self) -> bool:
        return self._held is not None and self._held() is not None

    def memory(self) -> memoryview:
        held: Any = None if self._held is None else self._held()
        if held is None:
            held = self._export()
            self._held = weakref.ref(held)
        return memoryview(held)


class RecordRing(BoundedRing):
    """A bounded first-in first-out buffer of fixed-size records (numpy data), in its own memory.

    The ring allocates all its memory when it is made. Records are copied in and out, or used in
    place:

    * ``write`` copies in as many records as fit. ``put`` waits for room, and copies in all records.
      ``read`` and ``get`` copy records out. Large copies are made without the GIL.
    * ``reserve(n)`` gives a writable view of free room, and ``commit(k)`` puts the first ``k``
      records of the view in. ``peek(n)`` gives a read-only view of the oldest records, and
      ``release(k)`` takes out the first ``k`` of them. These methods copy nothing.
    * ``arm(waker)`` has ``waker()`` called when there is a record, ``arm_producer(waker)`` when
      there is room.

    There is one producer (``write``, ``put``, ``aput``, ``reserve``, ``commit``, ``arm_producer``)
    and one consumer (``read``, ``read_into``, ``get``, ``aget``, ``peek``, ``release``, ``arm``),
    as with ``SpscRing``: two calls that overlap on one side raise ``OverlappingCallsError``. While
    a view that ``reserve`` returned exists, calls that put records in raise ``BufferError``, as
    ``bytearray`` does. While a view that ``peek`` returned exists, calls that take records out also
    raise ``BufferError``. A view keeps the memory alive, even if the ring is gone. To end a view
    while references to it exist, call ``view.base.release()``.

    Args:
        dtype: Any numpy dtype without Python objects.
        capacity: The largest number of records in the ring, 1 or more.
    """

    def __init__(self, dtype: Any, capacity: int) -> None:
        super().__init__(capacity)
        self._records = Records(dtype, self._capacity)
        self._slots = 1 << (self._capacity - 1).bit_length()
        self._itemsize = self._records.itemsize
        size = self._slots * self._itemsize
        try:
            storage = bytearray(size + ALIGNMENT)
        except (MemoryError, OverflowError):
            raise MemoryError(f"no memory for a ring of {capacity} records") from None
        np = self._records.numpy
        whole = np.frombuffer(storage, np.uint8)
        self._start = -ctypes.addressof(ctypes.c_ubyte.from_buffer(storage)) % ALIGNMENT
        self._bytes = whole[self._start : self._start + size]
        # _head counts all records that were ever taken out. _tail counts all records that were ever
        # put in. Modulo _slots, each of the two counts is the index of a record in the memory.
        self._head = 0
        self._tail = 0
        self._view_with(whole.view)

    def _view_with(self, export: Callable[[], Any]) -> None:
        # Number of records in the view that reserve() last returned. 0 after records were put in.
        self._reserved = 0
        self._peeked = 0
        self._reserved_views = Views(export)
        self._peeked_views = Views(export)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a record."""
        dtype: np.dtype[Any] = self._records.dtype
        return dtype

    def __len__(self) -> int:
        # Read _head before _tail. In the other order, other threads might increase both numbers
        # between the two reads, and the difference would be negative.
        head = self._head
        return min(self._tail - head, self._capacity)

    # -- the methods of the producer ---------------------------------------------------------------

    def write(self, array: np.ndarray[Any, Any], /) -> int:
        """Copy in as many of the records of ``array`` as fit. Return how many were copied.

        Args:
            array: An array of one dimension, with exactly the ring's dtype and byte order. If the
                ring has a sub-array dtype, the array has the sub-array's dimensions, too. An array
                that is not contiguous is copied twice.

        Raises:
            TypeError: ``array`` has another dtype, or is a masked array.
            ValueError: ``array`` has another number of dimensions.
            RingClosed: The ring is closed.
        """
        plain = self._records.source(array)
        inside = self._put_call(self, "write")
        with inside, inside:
            self._check_reserved_views("write")
            return self._put(inside, plain)

    def put(self, array: np.ndarray[Any, Any], timeout: float | None = None) -> None:
        """Put in all records of ``array``. Wait for room whenever the ring is full.

        If an exception comes after some records were put in, a note of the exception says how many.

        Args:
            array: As for ``write``.
            timeout: Seconds for the whole call. Default: no limit.

        Raises:
            TimeoutError: The ring had no room for all records within ``timeout`` seconds.
        """
        put_all(self._records, self._put_part, array, timeout)

    async def aput(self, array: np.ndarray[Any, Any]) -> None:
        """Put in all records of ``array``. Await room whenever the ring is full.

        The consumer may be in another thread or loop. If the task that awaits ``aput`` is
        cancelled, some records may have been put in. A note of the exception says how many.

        Args:
            array: As for ``write``.
        """
        await aput_all(self._records, self._aput_part, array)

    def _put_part(self, array: np.ndarray[Any, Any], timeout: float | None) -> int:
        plain = self._records.source(array)
        inside = self._put_call(self, "put")
        with inside, inside:
            self._check_reserved_views("put")
            if len(plain):
                self._wait_for_room("put", timeout)
            return self._put(inside, plain)

    async def _aput_part(self, array: np.ndarray[Any, Any]) -> int:
        plain = self._records.source(array)
        inside = self._put_call(self, "aput")
        with inside, inside:
            self._check_reserved_views("aput")
            if len(plain):
                await self._await_room(inside, "aput")
            return self._put(inside, plain)

    def _put(self, inside: Any, plain: np.ndarray[Any, Any]) -> int:
        # numpy does not resize an array while a weak reference to it exists, even if resize() is
        # called with refcheck=False. So no other thread can resize this array during the copy.
        guard = weakref.ref(plain)
        given = plain.reshape(-1).view(self._records.numpy.uint8)
        count = min(len(given) // self._itemsize, self._capacity - len(self))
        piece = min(count, self._slots - self._tail % self._slots) * self._itemsize
        at, end = self._tail % self._slots * self._itemsize, count * self._itemsize
        self._bytes[at : at + piece] = given[:piece]
        self._bytes[: end - piece] = given[piece:end]
        del guard
        self._commit(inside, count)
        return count

    def reserve(self, n: int, /) -> np.ndarray[Any, Any]:
        """Return a writable view of contiguous, free room for at most ``n`` records.

        The view is empty if the ring is full. Its contents are arbitrary at first. The call changes
        nothing in the ring, so it may be repeated.

        Args:
            n: The largest number of records in the view.

        Raises:
            RingClosed: The ring is closed.
        """
        wanted = check_count("n", n)
        inside = PutCall(self, "reserve")
        with inside, inside, self._lock:
            at = self._tail % self._slots
            self._reserved = min(wanted, self._capacity - len(self), self._slots - at)
            return self._view(self._reserved_views, at, self._reserved)

    def commit(self, n: int, /) -> None:
        """Put in the first ``n`` records of the view that the last ``reserve`` returned.

        Args:
            n: The number of records.

        Raises:
            BufferError: A view of the reserved records still exists.
            ValueError: The last view of ``reserve`` had fewer than ``n`` records.
            RingClosed: The ring is closed.
        """
        count = check_count("n", n)
        inside = self._put_call(self, "commit")
        with inside, inside:
            self._check_reserved_views("commit")
            if count > self._reserved:
                raise beyond_region("commit", count, "reserved", self._reserved)
            self._commit(inside, count)

    def _commit(self, inside: Any, count: int) -> None:
        with self._lock:
            self._check_open(inside._call)
            self._waiters.wake_all()
            self._reserved = 0
            inside.done = count
            self._tail += count

    def _check_reserved_views(self, call: str) -> None:
        if self._reserved_views.alive:
            raise view_alive(call, "reserved")

    # -- the methods of the consumer ---------------------------------------------------------------

    def read(self, max: int | None = None) -> np.ndarray[Any, Any]:
        """Take out records, oldest first. Return them as a new array, which may be empty.

        Args:
            max: The largest number of records to take out. Default: all.
        """
        wanted = check_most(max)
        inside = self._take_call(self)
        with inside, inside:
            self._check_peeked_views("read")
            return self._take(inside, wanted)

    def read_into(self, array: np.ndarray[Any, Any], /) -> int:
        """Take out as many records as fit in ``array``, and copy them into it. Return their number.

        Args:
            array: Contiguous and writable, with the dtype and dimensions that ``write`` requires.

        Raises:
            ValueError: ``array`` is not contiguous or not writable.
        """
        plain = self._records.target(array)
        inside = self._take_call(self)
        with inside, inside:
            self._check_peeked_views("read_into")
            return self._take_into(inside, plain)

    def get(self, max: int | None = None, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """Take out up to ``max`` records, as ``read`` does. First wait until there is a record.

        Args:
            max: The largest number of records to take out. Default: all.
            timeout: Seconds. Default: no limit.

        Raises:
            TimeoutError: There was no record for ``timeout`` seconds.
            RingClosed: The ring is closed and empty, and ``close`` was given no error.
        """
        wanted = check_wanted(max)
        timeout = check_timeout(timeout)
        inside = self._take_call(self)
        with inside, inside:
            self._check_peeked_views("get")
            self._wait_for_data(timeout)
            return self._take(inside, wanted)

    async def aget(self, max: int | None = None) -> np.ndarray[Any, Any]:
        """Take out up to ``max`` records, as ``read`` does. First await a record.

        If the ring is closed and empty, ``aget`` raises the same error as ``get``. The producer may
        be in another thread or loop. If the task that awaits ``aget`` is cancelled, nothing is
        taken out.

        Args:
            max: The largest number of records to take out. Default: all.
        """
        wanted = check_wanted(max)
        inside = self._take_call(self)
        with inside, inside:
            self._check_peeked_views("aget")
            await self._await_data(inside)
            return self._take(inside, wanted)

    def _take(self, inside: Any, wanted: int | None) -> np.ndarray[Any, Any]:
        # Only one call of the consumer runs at a time. So no other call can make len(self) smaller.
        taken = self._records.empty(len(self) if wanted is None else min(wanted, len(self)))
        self._take_into(inside, taken)
        return taken

    def _take_into(self, inside: Any, plain: np.ndarray[Any, Any]) -> int:
        guard = weakref.ref(plain)
        taken = plain.reshape(-1).view(self._records.numpy.uint8)
        count = min(len(taken) // self._itemsize, len(self))
        piece = min(count, self._slots - self._head % self._slots) * self._itemsize
        at, end = self._head % self._slots * self._itemsize, count * self._itemsize
        taken[:piece] = self._bytes[at : at + piece]
        taken[piece:end] = self._bytes[: end - piece]
        del guard
        self._release(inside, count)
        return count

    def peek(self, n: int, /) -> np.ndarray[Any, Any]:
        """Return a read-only view of the oldest records, at most ``n``, without taking them out.

        The view ends where the ring's memory ends, so it may have fewer than ``n`` records. It is
        empty if the ring is empty. The call changes nothing in the ring, so it may be repeated.

        Args:
            n: The largest number of records in the view.
        """
        wanted = check_count("n", n)
        inside = TakeCall(self)
        with inside, inside, self._lock:
            at = self._head % self._slots
            self._peeked = min(wanted, len(self), self._slots - at)
            return self._view(self._peeked_views, at, self._peeked, readonly=True)

    def release(self, n: int, /) -> None:
        """Take out the first ``n`` records of the view that the last ``peek`` returned.

        Args:
            n: The number of records.

        Raises:
            BufferError: A view of the peeked records still exists.
            ValueError: The last view of ``peek`` had fewer than ``n`` records.
        """
        count = check_count("n", n)
        inside = self._take_call(self)
        with inside, inside:
            self._check_peeked_views("release")
            if count > self._peeked:
                raise beyond_region("release", count, "peeked", self._peeked)
            self._release(inside, count)

    def _release(self, inside: Any, count: int) -> None:
        with self._lock:
            self._waiters.wake_all()
            self._peeked = 0
            inside.done = count
            self._head += count

    def _check_peeked_views(self, call: str) -> None:
        if self._peeked_views.alive:
            raise view_alive(call, "peeked")

    def _view(
        self, views: Views, at: int, count: int, readonly: bool = False
    ) -> np.ndarray[Any, Any]:
        if count == 0:
            return self._records.nothing(readonly)
        begin = self._start + at * self._itemsize
        memory = views.memory()[begin : begin + count * self._itemsize]
        return self._records.view(memory.toreadonly() if readonly else memory)

    def __repr__(self) -> str:
        return self._records.describe(super().__repr__())
