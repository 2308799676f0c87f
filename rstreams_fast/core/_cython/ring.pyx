# cython: language_level=3, boundscheck=False, wraparound=False
"""The bounded single-producer single-consumer ring on ``rsf_ring``.

The C ring hands out slot indices; the slots here hold references. Three rules keep them right: a
reference is taken before its slot is published; a reference is dropped only after its slot
was released and the side left, because dropping may run any code; and the garbage collector
sees what lies between the ring's head and tail (Cython does not traverse raw pointers).
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New
from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc
from cpython.ref cimport Py_DECREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from rstreams_fast.core._cython._csrc cimport (
    PY_LOCK_ACQUIRED,
    PY_LOCK_INTR,
    PyErr_CheckSignals,
    PyLockStatus,
    PyThread_acquire_lock,
    PyThread_acquire_lock_timed,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
    rsf_ring,
    rsf_ring_close,
    rsf_ring_commit,
    rsf_ring_init,
    rsf_ring_is_closed,
    rsf_ring_is_drained,
    rsf_ring_leave_consumer,
    rsf_ring_leave_producer,
    rsf_ring_peek,
    rsf_ring_prepare_wait_consumer,
    rsf_ring_prepare_wait_producer,
    rsf_ring_release,
    rsf_ring_reserve,
    rsf_ring_size,
    rsf_ring_slot,
    rsf_ring_slots,
    rsf_ring_take_waiting_consumer,
    rsf_ring_take_waiting_producer,
    rsfpy_enter_consumer,
    rsfpy_enter_producer,
    rsfpy_take_waiting_consumer,
    rsfpy_take_waiting_producer,
    rsfpy_yield,
)

from os import getpid
from time import monotonic

from rstreams_fast.core._common import (
    FIRST_SLEEP as _FIRST_SLEEP,
    SLEEP_GROWTH as _SLEEP_GROWTH,
    check_capacity,
    check_count,
    check_element,
    check_same_process,
    check_timeout,
    refuse_pickle,
)
from rstreams_fast.errors import OverlappingCalls, RingClosed


cdef extern from "Python.h":
    ctypedef int (*inquiry)(PyObject *)
    void Py_DECREF_ptr "Py_DECREF"(PyObject *)
    void PyList_SET_ITEM_ptr "PyList_SET_ITEM"(PyObject *, Py_ssize_t, PyObject *)
    void Py_SET_SIZE(PyObject *, Py_ssize_t)
    const Py_ssize_t PY_SSIZE_T_MAX


cdef extern from *:
    """
    /* Cython's own view of these slots has other argument types. */
    #define rsfpy_traverse_of(type) ((type)->tp_traverse)
    #define rsfpy_clear_of(type) ((type)->tp_clear)
    #define rsfpy_set_traverse(type, f) ((type)->tp_traverse = (traverseproc)(f))
    #define rsfpy_set_clear(type, f) ((type)->tp_clear = (inquiry)(f))
    """
    traverseproc rsfpy_traverse_of(PyTypeObject *)
    inquiry rsfpy_clear_of(PyTypeObject *)
    void rsfpy_set_traverse(PyTypeObject *, void *)
    void rsfpy_set_clear(PyTypeObject *, void *)


cdef double FIRST_SLEEP = _FIRST_SLEEP
cdef double SLEEP_GROWTH = _SLEEP_GROWTH
cdef double LONGEST_SLEEP = 1000.0  # seconds asked of the system at once


cdef int refuse_overlap(str side) except -1:
    raise OverlappingCalls(f"two calls overlap on the {side} side of an SpscRing")


cdef int refuse_closed(str call) except -1:
    raise RingClosed(f"{call} on a closed ring")


cdef int refuse_none() except -1:
    check_element(None)
    return 0


@cython.trashcan(True)
cdef class SpscRing:
    """A bounded first-in first-out buffer between one producer and one consumer.

    The producer's calls are ``offer``, ``offer_many``, ``put``; the consumer's ``poll``,
    ``poll_many``, ``get``, ``arm``, ``disarm``. Two calls that overlap on one side raise
    ``OverlappingCalls``; which thread makes them does not matter. ``close``, ``closed`` and ``len``
    are anybody's.
    """

    def __cinit__(self, capacity):
        cdef uint64_t count = check_capacity("capacity", capacity)
        if not rsf_ring_init(&self.ring, count):
            raise ValueError(f"capacity must be 1 to 2**31, got {capacity}")
        self.slots = <PyObject **> calloc(rsf_ring_slots(&self.ring), sizeof(PyObject *))
        self.consumer_event = PyThread_allocate_lock()
        self.producer_event = PyThread_allocate_lock()
        if self.slots == NULL or self.consumer_event == NULL or self.producer_event == NULL:
            raise MemoryError(f"no memory for a ring of {capacity} elements")
        # An event is a lock that is free only between a wake and the end of the wait.
        PyThread_acquire_lock(self.consumer_event, 1)
        PyThread_acquire_lock(self.producer_event, 1)
        self.creator = getpid()

    def __dealloc__(self):
        if self.slots != NULL:
            drop_all(&self.ring, self.slots)
            free(self.slots)
        for event in (<size_t> self.consumer_event, <size_t> self.producer_event):
            if event != 0:
                # A locked lock may not be freed everywhere, and these always are.
                PyThread_release_lock(<PyThread_type_lock> <size_t> event)
                PyThread_free_lock(<PyThread_type_lock> <size_t> event)

    @property
    def capacity(self):
        """The bound, in elements."""
        return self.ring.capacity

    @property
    def closed(self):
        """Whether ``close`` was called. Elements may still be inside."""
        return bool(rsf_ring_is_closed(&self.ring))

    def __len__(self):
        return rsf_ring_size(&self.ring)

    # -- producer --------------------------------------------------------------------------------

    def offer(self, element, /):
        """Put ``element`` in; ``False`` when full. ``RingClosed`` when closed."""
        return ring_offer(self, <PyObject *> element) != 0

    def offer_many(self, elements, start=0):
        """Put in as many of ``elements[start:]`` as fit and return how many that were.

        An element that is ``None`` among those that would fit is a ``TypeError`` and nothing is put
        in.
        """
        cdef object position
        cdef Py_ssize_t first
        cdef int fitting
        if not isinstance(elements, (list, tuple)):
            raise TypeError(f"elements must be a list or tuple, got {type(elements).__name__}")
        position = check_count("start", start)
        first = min(position, PY_SSIZE_T_MAX)
        # The list must not change between the look at its size and the last reference taken.
        with cython.critical_section(elements):
            return self._offer_many(elements, first)

    cdef Py_ssize_t _offer_many(self, object elements, Py_ssize_t first) except -1:
        cdef bint is_list = isinstance(elements, list)
        cdef Py_ssize_t size = PyList_GET_SIZE(elements) if is_list else PyTuple_GET_SIZE(elements)
        cdef PyObject *element
        cdef uint64_t index, free, i
        if not rsfpy_enter_producer(&self.ring):
            refuse_overlap("producer")
        if rsf_ring_is_closed(&self.ring):
            rsf_ring_leave_producer(&self.ring)
            refuse_closed("offer")
        free = rsf_ring_reserve(&self.ring, max(size - first, 0), &index)
        # One look beyond what fits: None is refused by a full ring, too.
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
        """Put ``element`` in, waiting for room. ``TimeoutError`` after ``timeout`` seconds."""
        cdef uint64_t index
        check_element(element)
        timeout = check_timeout(timeout)
        if not rsfpy_enter_producer(&self.ring):
            refuse_overlap("producer")
        try:
            deadline = None
            while True:
                if rsf_ring_is_closed(&self.ring):
                    refuse_closed("put")
                if rsf_ring_reserve(&self.ring, 1, &index) != 0:
                    Py_INCREF_ptr(<PyObject *> element)
                    self.slots[rsf_ring_slot(&self.ring, index)] = <PyObject *> element
                    rsf_ring_commit(&self.ring, 1)
                    break
                deadline = self._deadline(timeout, deadline)
                if rsf_ring_prepare_wait_producer(&self.ring) and not self._park(False, deadline):
                    if rsf_ring_reserve(&self.ring, 1, &index) == 0:
                        raise TimeoutError(f"the ring stayed full for {timeout} seconds")
        finally:
            rsf_ring_leave_producer(&self.ring)
        if rsfpy_take_waiting_consumer(&self.ring):
            self.wake_consumer()

    # -- consumer --------------------------------------------------------------------------------

    def poll(self):
        """Take the oldest element out; ``None`` when empty, closed or not."""
        cdef PyObject *element = ring_poll(self)
        if element == NULL:
            return None
        return _stolen(element)

    def poll_many(self, max, /):
        """Take up to ``max`` elements out, oldest first."""
        cdef object wanted = check_count("max", max)
        cdef uint64_t size = rsf_ring_size(&self.ring)
        cdef uint64_t index, ready, i
        if wanted < size:
            size = wanted
        # Before the side is entered, because allocating may run the collector, and so any code.
        cdef list taken = PyList_New(size)
        if not rsfpy_enter_consumer(&self.ring):
            refuse_overlap("consumer")
        ready = rsf_ring_peek(&self.ring, size, &index)
        for i in range(ready):
            PyList_SET_ITEM_ptr(
                <PyObject *> taken, i, self.slots[rsf_ring_slot(&self.ring, index + i)]
            )
        rsf_ring_release(&self.ring, ready)
        rsf_ring_leave_consumer(&self.ring)
        if ready != size:  # somebody else was faster
            Py_SET_SIZE(<PyObject *> taken, ready)
        if ready != 0 and rsfpy_take_waiting_producer(&self.ring):
            self.wake_producer()
        return taken

    def get(self, timeout=None):
        """Take the oldest element out, waiting for one.

        ``TimeoutError`` after ``timeout`` seconds. Once closed and empty: raises the error given to
        ``close``, else ``RingClosed``.
        """
        cdef uint64_t index
        cdef PyObject *element
        timeout = check_timeout(timeout)
        if not rsfpy_enter_consumer(&self.ring):
            refuse_overlap("consumer")
        try:
            deadline = None
            self.waker = None
            while rsf_ring_peek(&self.ring, 1, &index) == 0:
                if rsf_ring_is_drained(&self.ring):
                    raise self.error or RingClosed("the ring is closed and empty")
                deadline = self._deadline(timeout, deadline)
                if rsf_ring_prepare_wait_consumer(&self.ring):
                    if not self._park(True, deadline) and rsf_ring_peek(&self.ring, 1, &index) == 0:
                        raise TimeoutError(f"the ring stayed empty for {timeout} seconds")
                elif rsf_ring_is_closed(&self.ring):
                    # A producer that came before the close is about to leave.
                    with nogil:
                        rsfpy_yield()
                    PyErr_CheckSignals()
            element = self.slots[rsf_ring_slot(&self.ring, index)]
            rsf_ring_release(&self.ring, 1)
        finally:
            rsf_ring_leave_consumer(&self.ring)
        if rsfpy_take_waiting_producer(&self.ring):
            self.wake_producer()
        return _stolen(element)

    def arm(self, waker, /):
        """Have ``waker()`` called, once, by whoever next puts an element in, or closes the ring.

        The consumer's way to wait without a thread. ``False`` if there is an element, or the ring
        is closed: look again. What the waker raises leaves through the call that put the element
        in. ``get`` disarms.
        """
        check_same_process(self, self.creator)
        if not rsfpy_enter_consumer(&self.ring):
            refuse_overlap("consumer")
        self.waker = waker  # before the flag that it is there for
        armed = rsf_ring_prepare_wait_consumer(&self.ring)
        rsf_ring_leave_consumer(&self.ring)
        if not armed:
            self.waker = None
        return armed

    def disarm(self):
        """Forget the waker; it may be about to be called by another thread all the same."""
        self.waker = None

    # -- anybody ---------------------------------------------------------------------------------

    def close(self, error=None):
        """Let nothing more in. The first call counts; ``get`` raises ``error`` at the end."""
        if error is not None and not isinstance(error, BaseException):
            raise TypeError(f"error must be an exception instance, got {type(error).__name__}")
        with cython.critical_section(self):
            if rsf_ring_is_closed(&self.ring):
                return
            self.error = error
            rsf_ring_close(&self.ring)
        if rsf_ring_take_waiting_consumer(&self.ring):
            self.wake_consumer()
        if rsf_ring_take_waiting_producer(&self.ring):
            self.wake_producer()

    def __repr__(self):
        state = " closed" if rsf_ring_is_closed(&self.ring) else ""
        return f"<SpscRing {len(self)}/{self.ring.capacity}{state}>"

    def __reduce__(self):
        refuse_pickle(self)

    # -- parking ---------------------------------------------------------------------------------

    cdef int wake_consumer(self) except -1:
        waker = self.waker
        if waker is None:
            PyThread_release_lock(self.consumer_event)
        else:
            self.waker = None
            waker()
        return 0

    cdef void wake_producer(self) noexcept:
        PyThread_release_lock(self.producer_event)

    cdef object _deadline(self, object timeout, object deadline):
        # Called before every park: a fork leaves the other side behind in the parent.
        check_same_process(self, self.creator)
        if timeout is None or deadline is not None:
            return deadline
        return monotonic() + timeout

    cdef bint _park(self, bint consumer, object deadline) except -1:
        """Sleep until woken (``True``) or ``deadline`` (``False``); the waiting flag is up."""
        cdef PyThread_type_lock event = self.consumer_event if consumer else self.producer_event
        cdef PyLockStatus status
        cdef long long microseconds
        cdef double left = LONGEST_SLEEP
        cdef double sleep = FIRST_SLEEP
        cdef bint expired = False
        try:
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
                    self._call_off(consumer)
                    return False
                # A signal that came just before the sleep did not end it: see core._common.sleeps.
                PyErr_CheckSignals()
                sleep = min(sleep * SLEEP_GROWTH, LONGEST_SLEEP)
        except BaseException:
            self._call_off(consumer)
            raise

    cdef void _call_off(self, bint consumer) noexcept:
        # Take the flag down; if the other side was faster, its wake is on the way: absorb it.
        if consumer:
            if not rsf_ring_take_waiting_consumer(&self.ring):
                with nogil:
                    PyThread_acquire_lock(self.consumer_event, 1)
        elif not rsf_ring_take_waiting_producer(&self.ring):
            with nogil:
                PyThread_acquire_lock(self.producer_event, 1)


cdef inline PyObject *_item(object elements, Py_ssize_t index, bint is_list) noexcept:
    if is_list:
        return PyList_GET_ITEM(elements, index)
    return PyTuple_GET_ITEM(elements, index)


cdef inline object _stolen(PyObject *element):
    # The reference that a slot held becomes the caller's.
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
    # No thread is between reserve and commit, or peek and release, while the collector runs: with
    # a GIL the collector holds it, without one all threads stand still at points of their own.
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
