# cython: language_level=3, boundscheck=False, wraparound=False
"""``SpscRing``, the single-producer single-consumer ring, on the C type ``rsf_ring``.

The C ring manages indices. The references to the elements are in an array of *slots* here. A ring
has two *sides*, the producer's and the consumer's. One call at a time may run on each side. Three
rules keep the references right. A reference is taken before its slot is published. A reference is
dropped only after its slot was released and the call has ended, because dropping may run any code.
Code in this file shows the garbage collector the slots between the ring's head and tail, because
Cython does not traverse raw pointers.
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New
from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc
from cpython.ref cimport Py_DECREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from rstreams_fast.core._cython._calls cimport *
from rstreams_fast.core._cython._csrc cimport *
from rstreams_fast.core._cython._python cimport *

import _thread as thread_module
from os import getpid
from time import monotonic
from types import GenericAlias

from rstreams_fast._checks import check_capacity, check_count, check_timeout
from rstreams_fast.core._awaiting import Bell
from rstreams_fast.core._common import (
    FIRST_SLEEP as _FIRST_SLEEP,
    SLEEP_GROWTH as _SLEEP_GROWTH,
    check_same_process,
    check_threads,
    check_waker,
    end_error,
    refuse_overlap as _refuse_overlap,
    refuse_pickle,
    wake_quietly,
)
from rstreams_fast.errors import RingClosed, check_element


cdef extern from *:
    """
    static destructor rsfpy_cython_dealloc;

    /*
     * Cython generates no such code for a class without Python attributes. Elements are dropped
     * while the ring still looks alive, so its weak references are cleared before. An element may
     * be a ring that holds a ring, and so on: the trashcan keeps this off the C stack.
     */
    static void
    rsfpy_ring_dealloc(PyObject *self)
    {
        PyObject_GC_UnTrack(self);
        Py_TRASHCAN_BEGIN(self, rsfpy_ring_dealloc)
        PyObject_ClearWeakRefs(self);
        rsfpy_cython_dealloc(self);
        Py_TRASHCAN_END
    }

    static void
    rsfpy_wrap_dealloc(PyTypeObject *type)
    {
        rsfpy_cython_dealloc = type->tp_dealloc;
        type->tp_dealloc = rsfpy_ring_dealloc;
    }
    """
    void rsfpy_wrap_dealloc(PyTypeObject *)


cdef double FIRST_SLEEP = _FIRST_SLEEP
cdef double SLEEP_GROWTH = _SLEEP_GROWTH
cdef double LONGEST_SLEEP = 1000.0  # the longest single sleep, in seconds


cdef int enter_occupied(BoundedRing ring, bint consumer) except -1:
    """Begin a call although another call on the same side of the ring has not ended.

    Raises an error, unless the other call is a coroutine whose event loop was closed.
    """
    bell = ring.data_bell if consumer else ring.room_bell
    if bell is None or not bell.is_lost() or not ring.take_bell(bell, consumer):
        _refuse_overlap(ring, "consumer" if consumer else "producer")
    return 0


cdef int refuse_closed(str call) except -1:
    raise RingClosed(f"{call} on a closed ring")


cdef int refuse_none() except -1:
    check_element(None)
    return 0


cdef bint sleep_on(PyThread_type_lock event, object deadline) except -1:
    """Sleep until the lock ``event`` is free. ``False`` if it is not free at ``deadline``."""
    cdef PyLockStatus status
    cdef long long microseconds
    cdef double left = LONGEST_SLEEP
    cdef double sleep = FIRST_SLEEP
    cdef bint expired = False
    if not PyCFunction_Check(thread_module.start_new_thread):
        check_threads("to wait here")
    while True:
        if deadline is not None:
            left = deadline - monotonic()
            expired = left <= 0
        microseconds = 0 if expired else <long long> (min(left, sleep) * 1e6) + 1
        with nogil:
            status = PyThread_acquire_lock_timed(event, microseconds, 1)
        if status == PY_LOCK_ACQUIRED:
            return True
        if expired and status != PY_LOCK_INTR:
            return False
        # Handle signals after each sleep, because a signal that came just before the sleep has not
        # ended the sleep. See core._common.sleeps.
        PyErr_CheckSignals()
        sleep = min(sleep * SLEEP_GROWTH, LONGEST_SLEEP)


cdef class BoundedRing:

    def __cinit__(self, *args, **kwargs):
        self.consumer_event = PyThread_allocate_lock()
        self.producer_event = PyThread_allocate_lock()
        if self.consumer_event == NULL or self.producer_event == NULL:
            raise MemoryError("no memory for a ring")
        # An event is a lock that is normally locked. A waiting thread waits for the lock. To wake
        # this thread, another thread releases the lock. The woken thread then holds it again.
        PyThread_acquire_lock(self.consumer_event, 1)
        PyThread_acquire_lock(self.producer_event, 1)
        self.creator = getpid()

    def __init__(self, *args, **kwargs):
        pass  # accepts the arguments that subclasses pass on; __cinit__ has used them

    cdef uint64_t start(self, object capacity) except 0:
        # Initialises the C ring, and returns the number of its slots. Only constructors call this,
        # while no other thread knows the ring yet.
        cdef uint64_t count = check_capacity("capacity", capacity)
        if not rsf_ring_init(&self.ring, count):
            raise ValueError(f"capacity must be 1 to 2**31, got {capacity}")
        return rsf_ring_slots(&self.ring)

    def __dealloc__(self):
        for event in (<size_t> self.consumer_event, <size_t> self.producer_event):
            if event != 0:
                # An event is normally locked. Some systems forbid freeing a locked lock.
                PyThread_release_lock(<PyThread_type_lock> <size_t> event)
                PyThread_free_lock(<PyThread_type_lock> <size_t> event)

    @property
    def capacity(self):
        return self.ring.capacity

    @property
    def closed(self):
        return bool(rsf_ring_is_closed(&self.ring))

    def __len__(self):
        return rsf_ring_size(&self.ring)

    def arm(self, waker, /):
        check_waker(waker)
        check_same_process(self, self.creator)
        enter_consumer(self)
        self.set_waker(waker, False)  # set it before the flag in the C ring that announces it
        armed = rsf_ring_prepare_wait_consumer(&self.ring)
        if not armed:  # no other call can have set a waker, as this call has not left its side
            self.set_waker(None, False)
        rsf_ring_leave_consumer(&self.ring)
        return armed

    def disarm(self):
        previous = None
        with cython.critical_section(self):
            if self.data_bell is None:
                previous = self.waker  # keeps the old waker alive until the attribute is set
                self.waker = None

    def arm_producer(self, waker, /):
        check_waker(waker)
        check_same_process(self, self.creator)
        enter_producer(self)
        self.set_producer_waker(waker, False)
        armed = rsf_ring_prepare_wait_producer(&self.ring)
        if not armed:
            self.set_producer_waker(None, False)
        rsf_ring_leave_producer(&self.ring)
        return armed

    def disarm_producer(self):
        previous = None
        with cython.critical_section(self):
            if self.room_bell is None:
                previous = self.producer_waker
                self.producer_waker = None

    def close(self, error=None):
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception instance, got {type(error).__name__}")
        with cython.critical_section(self):
            if rsf_ring_is_closed(&self.ring):
                return
            self.error = error
            rsf_ring_close(&self.ring)
        try:
            if rsf_ring_take_waiting_consumer(&self.ring):
                self.wake_consumer()
        finally:
            if rsf_ring_take_waiting_producer(&self.ring):
                self.wake_producer()

    def __repr__(self):
        state = " closed" if rsf_ring_is_closed(&self.ring) else ""
        return f"<{type(self).__name__} {len(self)}/{self.ring.capacity}{state}>"

    def __reduce__(self):
        refuse_pickle(self)

    # -- waking ----------------------------------------------------------------------------------

    cdef void set_waker(self, object waker, bint awaited) noexcept:
        previous = None
        with cython.critical_section(self):
            previous = self.waker  # keeps the old waker alive until both attributes are set
            self.waker = waker
            self.data_bell = waker if awaited else None

    cdef void set_producer_waker(self, object waker, bint awaited) noexcept:
        previous = None
        with cython.critical_section(self):
            previous = self.producer_waker
            self.producer_waker = waker
            self.room_bell = waker if awaited else None

    cdef bint take_bell(self, object bell, bint consumer) noexcept:
        """Remove ``bell``, which wakes a waiting coroutine. ``False`` if it is not there any more.

        Then the coroutine's call has been ended: the loop of the coroutine was closed, and another
        call came on the same side.
        """
        cdef bint found
        previous = None
        with cython.critical_section(self):
            found = (self.data_bell if consumer else self.room_bell) is bell
            if found and consumer:
                previous = self.waker
                self.waker = self.data_bell = None
            elif found:
                previous = self.producer_waker
                self.producer_waker = self.room_bell = None
        if found and consumer:
            rsf_ring_take_waiting_consumer(&self.ring)
        elif found:
            rsf_ring_take_waiting_producer(&self.ring)
        return found

    cdef int wake_consumer(self) except -1:
        with cython.critical_section(self):
            waker = self.waker
            self.waker = None
        if waker is None:
            PyThread_release_lock(self.consumer_event)
        else:
            waker()
        return 0

    cdef int wake_producer(self) except -1:
        with cython.critical_section(self):
            waker = self.producer_waker
            self.producer_waker = None
        if waker is None:
            PyThread_release_lock(self.producer_event)
        else:
            wake_quietly(waker)
        return 0

    # -- waiting, within a call of the producer or the consumer ----------------------------------

    cdef bint has_data(self) noexcept:
        cdef uint64_t index
        return rsf_ring_peek(&self.ring, 1, &index) != 0

    cdef int wait_for_data(self, object timeout) except -1:
        deadline = None
        if self.waker is not None:
            self.disarm()
        while not self.has_data():
            if rsf_ring_is_drained(&self.ring):
                raise end_error(self.error)
            deadline = self._deadline(timeout, deadline)
            if rsf_ring_prepare_wait_consumer(&self.ring):
                if self._park(True, deadline):
                    # Let signal handlers raise now. An exception after the call has taken an
                    # element out would lose this element.
                    PyErr_CheckSignals()
                elif not self.has_data():
                    raise TimeoutError(f"the ring stayed empty for {timeout} seconds")
            elif rsf_ring_is_closed(&self.ring):
                # The ring is closed, but a call of the producer that began before the close has not
                # ended yet. It may still put in an element. So let the producer's thread run.
                with nogil:
                    rsfpy_yield()
                PyErr_CheckSignals()
        return 0

    cdef int wait_for_room(self, str call, object timeout) except -1:
        cdef uint64_t index
        deadline = None
        if self.producer_waker is not None:
            self.disarm_producer()
        while True:
            if rsf_ring_is_closed(&self.ring):
                refuse_closed(call)
            if rsf_ring_reserve(&self.ring, 1, &index) != 0:
                return 0
            deadline = self._deadline(timeout, deadline)
            if rsf_ring_prepare_wait_producer(&self.ring):
                if self._park(False, deadline):
                    PyErr_CheckSignals()  # as in wait_for_data
                elif rsf_ring_reserve(&self.ring, 1, &index) == 0:
                    raise TimeoutError(f"the ring stayed full for {timeout} seconds")

    cdef object _deadline(self, object timeout, object deadline):
        # Returns the time at which a wait must end, or None for no limit. Each wait calls this
        # first. So it also checks that this process is not a forked child, where no other thread
        # could end the wait.
        check_same_process(self, self.creator)
        if timeout is None or deadline is not None:
            return deadline
        return monotonic() + timeout

    cdef bint _park(self, bint consumer, object deadline) except -1:
        """Sleep until the other side wakes this thread. ``False`` if ``deadline`` comes first.

        The caller must have set the waiting flag of its side of the ring.
        """
        cdef bint woken = False
        try:
            woken = sleep_on(self.consumer_event if consumer else self.producer_event, deadline)
        finally:
            if not woken:
                self._call_off(consumer)
        return woken

    cdef void _call_off(self, bint consumer) noexcept:
        # Clears the waiting flag of this side, after a wait that was not woken. If the other side
        # has cleared the flag already, the other side is about to release the event. Then wait for
        # the release and lock the event again. Otherwise the next wait would end immediately.
        if consumer:
            if not rsf_ring_take_waiting_consumer(&self.ring):
                with nogil:
                    PyThread_acquire_lock(self.consumer_event, 1)
        elif not rsf_ring_take_waiting_producer(&self.ring):
            with nogil:
                PyThread_acquire_lock(self.producer_event, 1)


async def await_data(BoundedRing ring):
    """Wait as ``wait_for_data`` does, in a coroutine, without blocking a thread.

    The caller has begun a call of the consumer. Before this raises an exception, it ends that call.
    """
    from asyncio import sleep

    bell = None
    try:
        ring.disarm()
        while not ring.has_data():
            if rsf_ring_is_drained(&ring.ring):
                raise end_error(ring.error)
            check_same_process(ring, ring.creator)
            bell = Bell()
            ring.set_waker(bell, True)
            if rsf_ring_prepare_wait_consumer(&ring.ring):
                await bell.future
            elif rsf_ring_is_closed(&ring.ring):
                await sleep(0)  # a call of the producer from before the close may not have ended
        if bell is not None:
            refuse_to_go_on(ring.take_bell(bell, True))
    except BaseException:
        if ring.take_bell(bell, True):
            rsf_ring_leave_consumer(&ring.ring)
        raise


async def await_room(BoundedRing ring, str call):
    """Wait as ``wait_for_room`` does, in a coroutine, without blocking a thread.

    The caller has begun a call of the producer. Before this raises an exception, it ends that call.
    """
    cdef uint64_t index
    bell = None
    try:
        ring.disarm_producer()
        while True:
            if rsf_ring_is_closed(&ring.ring):
                refuse_closed(call)
            if rsf_ring_reserve(&ring.ring, 1, &index) != 0:
                break
            check_same_process(ring, ring.creator)
            bell = Bell()
            ring.set_producer_waker(bell, True)
            if rsf_ring_prepare_wait_producer(&ring.ring):
                await bell.future
        if bell is not None:
            refuse_to_go_on(ring.take_bell(bell, False))
    except BaseException:
        if ring.take_bell(bell, False):
            rsf_ring_leave_producer(&ring.ring)
        raise


cdef int refuse_to_go_on(bint inside) except -1:
    if not inside:
        raise RuntimeError("the loop of this coroutine was closed, and another call took its place")
    return 0


cdef class SpscRing(BoundedRing):

    @classmethod
    def __class_getitem__(cls, element):
        return GenericAlias(cls, element)

    def __cinit__(self, capacity):
        cdef uint64_t count = self.start(capacity)
        self.slots = <PyObject **> calloc(count, sizeof(PyObject *))
        if self.slots == NULL:
            raise MemoryError(f"no memory for a ring of {capacity} elements")

    def __dealloc__(self):
        if self.slots != NULL:
            drop_all(&self.ring, self.slots)
            free(self.slots)

    # -- the methods of the producer -------------------------------------------------------------

    def offer(self, element, /):
        return ring_offer(self, <PyObject *> element) != 0

    def offer_many(self, elements, start=0):
        cdef int64_t position = rsfpy_plain_count(start, 0)
        if not isinstance(elements, (list, tuple)):
            raise TypeError(f"elements must be a list or tuple, got {type(elements).__name__}")
        if position < 0:
            position = min(check_count("start", start), INT64_MAX)
        # _offer_many reads the size of the list, and later copies its elements. No other thread may
        # change the list between these steps.
        with cython.critical_section(elements):
            return self._offer_many(elements, min(position, <int64_t> PY_SSIZE_T_MAX))

    cdef Py_ssize_t _offer_many(self, object elements, Py_ssize_t first) except -1:
        cdef bint is_list = isinstance(elements, list)
        cdef Py_ssize_t size = PyList_GET_SIZE(elements) if is_list else PyTuple_GET_SIZE(elements)
        cdef PyObject *element
        cdef uint64_t index, free, i
        enter_producer(self)
        if rsf_ring_is_closed(&self.ring):
            rsf_ring_leave_producer(&self.ring)
            refuse_closed("offer")
        free = rsf_ring_reserve(&self.ring, max(size - first, 0), &index)
        # Even if no element fits, check the first element: None is an error even for a full ring.
        for i in range(max(free, 1 if size > first else 0)):
            element = _item(elements, first + <Py_ssize_t> i, is_list)
            if element == <PyObject *> None:
                rsf_ring_leave_producer(&self.ring)
                refuse_none()
        for i in range(free):
            element = _item(elements, first + <Py_ssize_t> i, is_list)
            Py_INCREF_ptr(element)
            self.slots[rsf_ring_slot(&self.ring, index + i)] = element
        rsf_ring_commit(&self.ring, free)
        rsf_ring_leave_producer(&self.ring)
        if free != 0 and rsfpy_take_waiting_consumer(&self.ring):
            self.wake_consumer()
        return free

    def put(self, element, timeout=None):
        check_element(element)
        timeout = check_timeout(timeout)
        enter_producer(self)
        try:
            self.wait_for_room("put", timeout)
            self._put_one(element)
        finally:
            rsf_ring_leave_producer(&self.ring)
        if rsfpy_take_waiting_consumer(&self.ring):
            self.wake_consumer()

    async def aput(self, element):
        check_element(element)
        enter_producer(self)
        await await_room(self, "aput")
        try:
            self._put_one(element)
        finally:
            rsf_ring_leave_producer(&self.ring)
        if rsfpy_take_waiting_consumer(&self.ring):
            self.wake_consumer()

    cdef int _put_one(self, object element) except -1:
        # The caller must have begun a call of the producer, and the ring must have room.
        cdef uint64_t index
        rsf_ring_reserve(&self.ring, 1, &index)
        Py_INCREF_ptr(<PyObject *> element)
        self.slots[rsf_ring_slot(&self.ring, index)] = <PyObject *> element
        rsf_ring_commit(&self.ring, 1)
        return 0

    # -- the methods of the consumer -------------------------------------------------------------

    def poll(self):
        cdef PyObject *element = ring_poll(self)
        if element == NULL:
            return None
        return _stolen(element)

    def poll_many(self, max, /):
        cdef int64_t wanted = rsfpy_plain_count(max, 0)
        cdef uint64_t size = rsf_ring_size(&self.ring)
        cdef uint64_t index, ready, i
        if wanted < 0:
            wanted = min(check_count("max", max), INT64_MAX)
        if <uint64_t> wanted < size:
            size = wanted
        # Allocate the list before the call on the consumer's side begins. The allocation may run
        # the garbage collector, and so any code. This code may use the ring, too.
        cdef list taken = PyList_New(size)
        enter_consumer(self)
        ready = rsf_ring_peek(&self.ring, size, &index)
        for i in range(ready):
            PyList_SET_ITEM_ptr(
                <PyObject *> taken, i, self.slots[rsf_ring_slot(&self.ring, index + i)]
            )
        rsf_ring_release(&self.ring, ready)
        rsf_ring_leave_consumer(&self.ring)
        if ready != size:  # another call has taken elements out after the allocation
            Py_SET_SIZE(<PyObject *> taken, ready)
        if ready != 0 and rsfpy_take_waiting_producer(&self.ring):
            self.wake_producer()
        return taken

    def get(self, timeout=None):
        timeout = check_timeout(timeout)
        enter_consumer(self)
        try:
            self.wait_for_data(timeout)
            element = self._take_one()
        finally:
            rsf_ring_leave_consumer(&self.ring)
        if rsfpy_take_waiting_producer(&self.ring):
            self.wake_producer()
        return element

    async def aget(self):
        enter_consumer(self)
        await await_data(self)
        try:
            element = self._take_one()
        finally:
            rsf_ring_leave_consumer(&self.ring)
        if rsfpy_take_waiting_producer(&self.ring):
            self.wake_producer()
        return element

    cdef object _take_one(self):
        # The caller must have begun a call of the consumer, and the ring must have an element.
        cdef uint64_t index
        cdef PyObject *element
        rsf_ring_peek(&self.ring, 1, &index)
        element = self.slots[rsf_ring_slot(&self.ring, index)]
        rsf_ring_release(&self.ring, 1)
        return _stolen(element)


cdef inline PyObject *_item(object elements, Py_ssize_t index, bint is_list) noexcept:
    if is_list:
        return PyList_GET_ITEM(elements, index)
    return PyTuple_GET_ITEM(elements, index)


cdef inline object _stolen(PyObject *element):
    # Returns `element` as an object. The caller gets the reference that the slot owned.
    cdef object result = <object> element
    Py_DECREF(result)
    return result


# -- the garbage collector -----------------------------------------------------------------------

cdef void drop_all(rsf_ring *ring, PyObject **slots) noexcept:
    cdef uint64_t index
    cdef PyObject *element
    while rsf_ring_peek(ring, 1, &index) != 0:
        element = slots[rsf_ring_slot(ring, index)]
        rsf_ring_release(ring, 1)
        Py_DECREF_ptr(element)


cdef traverseproc cython_traverse
cdef inquiry cython_clear


cdef int ring_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    # It is safe to read head, tail and slots here: while the garbage collector runs, no thread is
    # between reserve and commit, or between peek and release. With a GIL, the collector's thread
    # holds the GIL. Without a GIL, all other threads are stopped at safe points.
    cdef rsf_ring *ring = &(<SpscRing> self).ring
    cdef PyObject **slots = (<SpscRing> self).slots
    cdef uint64_t index = ring.head
    cdef int stop
    if slots != NULL:
        while index != ring.tail:
            stop = visit(slots[rsf_ring_slot(ring, index)], arg)
            if stop != 0:
                return stop
            index += 1
    return cython_traverse(self, visit, arg)


cdef int ring_clear(PyObject *self) noexcept:
    if (<SpscRing> self).slots != NULL:
        drop_all(&(<SpscRing> self).ring, (<SpscRing> self).slots)
    return cython_clear(self)


cdef PyTypeObject *ring_type = <PyTypeObject *> SpscRing
cython_traverse = rsfpy_traverse_of(ring_type)
cython_clear = rsfpy_clear_of(ring_type)
rsfpy_set_traverse(ring_type, <void *> ring_traverse)
rsfpy_set_clear(ring_type, <void *> ring_clear)
rsfpy_wrap_dealloc(ring_type)
