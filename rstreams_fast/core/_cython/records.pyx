# cython: language_level=3, boundscheck=False, wraparound=False
"""``RecordRing`` on the C type ``rsf_ring``: one piece of memory, which C copies into and out of.

A view of records is an ordinary buffer export. So the ring can count the views that exist. A view
keeps the memory alive, but not the ring. During a copy an array is used only through the buffer
protocol. So its memory stays valid, even if another thread changes the array's attributes.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.ref cimport Py_DECREF
from cpython.weakref cimport PyWeakref_NewRef
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from rstreams_fast.core._cython._csrc cimport *
from rstreams_fast.core._cython._python cimport *
from rstreams_fast.core._cython.ring cimport (
    BoundedRing,
    enter_consumer,
    enter_producer,
    refuse_closed,
)

from rstreams_fast._checks import check_count, check_timeout
from rstreams_fast.core._cython.ring import await_data, await_room
from rstreams_fast.core._records import (
    ALIGNMENT as _ALIGNMENT,
    COPY_UNDER_GIL as _COPY_UNDER_GIL,
    Records,
    aput_all,
    beyond_region,
    check_most,
    check_wanted,
    put_all,
    view_alive,
)


cdef size_t ALIGNMENT = _ALIGNMENT
# The memory of a large ring starts in the middle of a page. Large numpy arrays usually start at the
# beginning of a page. Copies between equal offsets in two pages are slow, because the processor
# wrongly assumes that a load depends on an earlier store.
cdef size_t PAGE = 4096
cdef size_t LARGE = 1 << 16
cdef Py_ssize_t COPY_UNDER_GIL = _COPY_UNDER_GIL


cdef class Memory:
    """One aligned piece of memory, filled with zeros."""

    cdef void *allocated
    cdef char *start
    cdef Py_ssize_t size

    def __cinit__(self, Py_ssize_t count, Py_ssize_t record):
        cdef size_t align, beyond
        if count < 0 or record <= 0 or count > (PY_SSIZE_T_MAX - <Py_ssize_t> (2 * PAGE)) // record:
            raise MemoryError(f"no memory for {count} records of {record} bytes")
        self.size = count * record
        align = PAGE if <size_t> self.size >= LARGE else ALIGNMENT
        beyond = PAGE // 2 if align == PAGE else 0
        # calloc gets pages from the system that are already zeros. malloc and memset would have to
        # write zeros to them.
        self.allocated = calloc(<size_t> self.size + align + beyond, 1)
        if self.allocated == NULL:
            raise MemoryError(f"no memory for {count} records of {record} bytes")
        beyond += (-<size_t> <uintptr_t> self.allocated) % align
        self.start = <char *> self.allocated + beyond

    def __dealloc__(self):
        free(self.allocated)


cdef class Views:
    """Makes and counts the views of the memory. Each side of the ring has one such object."""

    cdef Memory memory
    cdef bint readonly
    cdef Py_ssize_t exports

    def __cinit__(self, Memory memory not None, bint readonly):
        self.memory = memory
        self.readonly = readonly

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(
            buffer, self, self.memory.start, self.memory.size, self.readonly, flags
        )
        Py_DECREF(None)  # Cython had put a reference to None into buffer.obj, now overwritten
        with cython.critical_section(self):
            self.exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        with cython.critical_section(self):
            self.exports -= 1


cdef class RecordRing(BoundedRing):

    cdef object records
    cdef object ndarray  # the type numpy.ndarray; with `base`, for a quick check of arguments
    cdef object base
    cdef Memory memory
    cdef Py_ssize_t itemsize
    cdef uint64_t reserved  # how many records the last view of reserve() had; 0 after a put
    cdef uint64_t peeked
    cdef Views reserved_views
    cdef Views peeked_views

    def __cinit__(self, dtype, capacity):
        cdef uint64_t slots = self.start(capacity)
        self.records = Records(dtype, capacity)
        self.itemsize = self.records.itemsize
        self.ndarray = self.records.numpy.ndarray
        self.base = None if self.records.dtype.shape else self.records.dtype
        try:
            self.memory = Memory(slots, self.itemsize)
        except MemoryError:
            raise MemoryError(f"no memory for a ring of {capacity} records") from None
        self.reserved_views = Views(self.memory, False)
        self.peeked_views = Views(self.memory, True)

    @property
    def dtype(self):
        return self.records.dtype

    cdef bint _is_plain(self, object array, bint writable) except -1:
        """Return true if ``array`` surely passes the checks of ``Records``, which are slower."""
        if type(array) is not self.ndarray or array.dtype is not self.base or array.ndim != 1:
            return False
        flags = array.flags
        return flags.c_contiguous and (not writable or flags.writeable)

    cdef object _source(self, object array):
        return array if self._is_plain(array, False) else self.records.source(array)

    cdef object _target(self, object array):
        return array if self._is_plain(array, True) else self.records.target(array)

    # -- the methods of the producer -------------------------------------------------------------

    def write(self, array, /):
        cdef Py_ssize_t count
        plain = self._source(array)
        self._enter_producer("write")
        try:
            count = self._put(plain)
        finally:
            rsf_ring_leave_producer(&self.ring)
        return self._committed(count)

    def put(self, array, timeout=None):
        put_all(self.records, self._put_part, array, timeout)

    async def aput(self, array):
        await aput_all(self.records, self._aput_part, array)

    def _put_part(self, array, timeout):
        cdef Py_ssize_t count
        plain = self._source(array)
        self._enter_producer("put")
        try:
            if len(plain):
                self.wait_for_room("put", timeout)
            count = self._put(plain)
        finally:
            rsf_ring_leave_producer(&self.ring)
        return self._committed(count)

    async def _aput_part(self, array):
        cdef Py_ssize_t count
        plain = self._source(array)
        self._enter_producer("aput")
        if len(plain):
            await await_room(self, "aput")
        try:
            count = self._put(plain)
        finally:
            rsf_ring_leave_producer(&self.ring)
        return self._committed(count)

    cdef int _enter_producer(self, str call) except -1:
        """Begin a call of the producer. Raises if the ring is closed, or a reserved view exists."""
        enter_producer(self)
        if rsf_ring_is_closed(&self.ring):
            rsf_ring_leave_producer(&self.ring)
            refuse_closed(call)
        if self.reserved_views.exports != 0:
            rsf_ring_leave_producer(&self.ring)
            raise view_alive(call, "reserved")
        return 0

    cdef Py_ssize_t _put(self, object plain) except -1:
        cdef Py_buffer given
        cdef uint64_t index, count
        # numpy does not resize an array while a weak reference to it exists, even if resize() is
        # called with refcheck=False. So no other thread can resize this array during the copy.
        guard = PyWeakref_NewRef(plain, None)
        PyObject_GetBuffer(plain, &given, PyBUF_SIMPLE)
        count = rsf_ring_reserve(&self.ring, given.len // self.itemsize, &index)
        if <Py_ssize_t> count * self.itemsize < COPY_UNDER_GIL:
            rsf_records_put(&self.ring, self.memory.start, self.itemsize, index, count, given.buf)
        else:
            with nogil:
                rsf_records_put(
                    &self.ring, self.memory.start, self.itemsize, index, count, given.buf
                )
        rsf_ring_commit(&self.ring, count)
        self.reserved = 0
        PyBuffer_Release(&given)
        return count

    cdef Py_ssize_t _committed(self, Py_ssize_t count) except -1:
        """Wake the consumer if ``count``, the number of records put in, is not 0. Return ``count``.

        The producer's call must have ended before.
        """
        if count != 0 and rsfpy_take_waiting_consumer(&self.ring):
            self.wake_consumer()
        return count

    def reserve(self, n, /):
        cdef uint64_t index, count
        wanted = check_count("n", n)
        enter_producer(self)
        if rsf_ring_is_closed(&self.ring):
            rsf_ring_leave_producer(&self.ring)
            refuse_closed("reserve")
        count = rsf_ring_reserve(&self.ring, min(wanted, self.ring.capacity), &index)
        count = rsf_ring_contiguous(&self.ring, index, count)
        self.reserved = count
        rsf_ring_leave_producer(&self.ring)
        return self._view(self.reserved_views, index, count)

    def commit(self, n, /):
        cdef uint64_t reserved
        count = check_count("n", n)
        self._enter_producer("commit")
        reserved = self.reserved
        if count > reserved:
            rsf_ring_leave_producer(&self.ring)
            raise beyond_region("commit", count, "reserved", reserved)
        self.reserved = 0
        rsf_ring_commit(&self.ring, count)
        rsf_ring_leave_producer(&self.ring)
        self._committed(count)

    # -- the methods of the consumer -------------------------------------------------------------

    def read(self, max=None):
        wanted = check_most(max)
        taken = self._room_for(wanted)
        self._enter_consumer("read")
        try:
            count = self._take(taken)
        finally:
            rsf_ring_leave_consumer(&self.ring)
        self._released(count)
        return taken if count == len(taken) else taken[:count]

    def read_into(self, array, /):
        cdef Py_ssize_t count
        plain = self._target(array)
        self._enter_consumer("read_into")
        try:
            count = self._take(plain)
        finally:
            rsf_ring_leave_consumer(&self.ring)
        return self._released(count)

    def get(self, max=None, timeout=None):
        wanted = check_wanted(max)
        timeout = check_timeout(timeout)
        self._enter_consumer("get")
        try:
            self.wait_for_data(timeout)
            taken = self._room_for(wanted)
            count = self._take(taken)
        finally:
            rsf_ring_leave_consumer(&self.ring)
        self._released(count)
        return taken if count == len(taken) else taken[:count]

    async def aget(self, max=None):
        wanted = check_wanted(max)
        self._enter_consumer("aget")
        await await_data(self)
        try:
            taken = self._room_for(wanted)
            count = self._take(taken)
        finally:
            rsf_ring_leave_consumer(&self.ring)
        self._released(count)
        return taken if count == len(taken) else taken[:count]

    cdef object _room_for(self, object wanted):
        cdef uint64_t size = rsf_ring_size(&self.ring)
        return self.records.empty(size if wanted is None or wanted > size else wanted)

    cdef int _enter_consumer(self, str call) except -1:
        """Begin a call of the consumer. Raises if a view of peeked records exists."""
        enter_consumer(self)
        if self.peeked_views.exports != 0:
            rsf_ring_leave_consumer(&self.ring)
            raise view_alive(call, "peeked")
        return 0

    cdef Py_ssize_t _take(self, object plain) except -1:
        cdef Py_buffer taken
        cdef uint64_t index, count
        guard = PyWeakref_NewRef(plain, None)
        PyObject_GetBuffer(plain, &taken, PyBUF_WRITABLE)
        count = rsf_ring_peek(&self.ring, taken.len // self.itemsize, &index)
        if <Py_ssize_t> count * self.itemsize < COPY_UNDER_GIL:
            rsf_records_take(&self.ring, self.memory.start, self.itemsize, index, count, taken.buf)
        else:
            with nogil:
                rsf_records_take(
                    &self.ring, self.memory.start, self.itemsize, index, count, taken.buf
                )
        rsf_ring_release(&self.ring, count)
        self.peeked = 0
        PyBuffer_Release(&taken)
        return count

    cdef Py_ssize_t _released(self, Py_ssize_t count) except -1:
        """Wake the producer if ``count``, the number of records taken out, is not 0. Return it.

        The consumer's call must have ended before.
        """
        if count != 0 and rsfpy_take_waiting_producer(&self.ring):
            self.wake_producer()
        return count

    def peek(self, n, /):
        cdef uint64_t index, count
        wanted = check_count("n", n)
        enter_consumer(self)
        count = rsf_ring_peek(&self.ring, min(wanted, self.ring.capacity), &index)
        count = rsf_ring_contiguous(&self.ring, index, count)
        self.peeked = count
        rsf_ring_leave_consumer(&self.ring)
        return self._view(self.peeked_views, index, count)

    def release(self, n, /):
        cdef uint64_t peeked
        count = check_count("n", n)
        self._enter_consumer("release")
        peeked = self.peeked
        if count > peeked:
            rsf_ring_leave_consumer(&self.ring)
            raise beyond_region("release", count, "peeked", peeked)
        self.peeked = 0
        rsf_ring_release(&self.ring, count)
        rsf_ring_leave_consumer(&self.ring)
        self._released(count)

    cdef object _view(self, Views views, uint64_t index, uint64_t count):
        cdef Py_ssize_t begin
        if count == 0:
            return self.records.nothing(views.readonly)
        begin = <Py_ssize_t> rsf_ring_slot(&self.ring, index) * self.itemsize
        memory = memoryview(views)[begin : begin + <Py_ssize_t> count * self.itemsize]
        return self.records.view(memory)

    def __repr__(self):
        return self.records.describe(BoundedRing.__repr__(self))
