from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from rstreams_fast.core._cython._csrc cimport *
from rstreams_fast.core._cython._python cimport *


cdef class BoundedRing:
    cdef rsf_ring ring
    cdef PyThread_type_lock consumer_event
    cdef PyThread_type_lock producer_event
    cdef object error
    cdef object waker  # called once to wake the consumer; None: release the consumer's event
    cdef object producer_waker  # called once to wake the producer; None: release its event
    cdef object data_bell  # the waker of a waiting coroutine; only the coroutine may remove it
    cdef object room_bell
    cdef long creator
    cdef object __weakref__

    cdef uint64_t start(self, object capacity) except 0
    cdef bint has_data(self) noexcept
    cdef void set_waker(self, object waker, bint awaited) noexcept
    cdef void set_producer_waker(self, object waker, bint awaited) noexcept
    cdef bint take_bell(self, object bell, bint consumer) noexcept
    cdef int wake_consumer(self) except -1
    cdef int wake_producer(self) except -1
    cdef int wait_for_data(self, object timeout) except -1
    cdef int wait_for_room(self, str call, object timeout) except -1
    cdef object _deadline(self, object timeout, object deadline)
    cdef bint _park(self, bint consumer, object deadline) except -1
    cdef void _call_off(self, bint consumer) noexcept


cdef class SpscRing(BoundedRing):
    cdef PyObject **slots  # owned references in head .. tail-1; the rest is stale

    cdef Py_ssize_t _offer_many(self, object elements, Py_ssize_t first) except -1
    cdef int _put_one(self, object element) except -1
    cdef object _take_one(self)


cdef int enter_occupied(BoundedRing ring, bint consumer) except -1
cdef int refuse_closed(str call) except -1
cdef int refuse_none() except -1
cdef bint sleep_on(PyThread_type_lock event, object deadline) except -1


cdef inline int enter_producer(BoundedRing self) except -1:
    if not rsfpy_enter_producer(&self.ring):
        enter_occupied(self, False)
    return 0


cdef inline int enter_consumer(BoundedRing self) except -1:
    if not rsfpy_enter_consumer(&self.ring):
        enter_occupied(self, True)
    return 0


cdef inline int ring_offer(SpscRing self, PyObject *element) except -1:
    # Returns 1 if the element was put in, and 0 if the ring is full. Takes its own reference.
    cdef uint64_t index
    enter_producer(self)
    if rsf_ring_is_closed(&self.ring):
        rsf_ring_leave_producer(&self.ring)
        refuse_closed("offer")
    if element == <PyObject *>None:
        rsf_ring_leave_producer(&self.ring)
        refuse_none()
    if rsf_ring_reserve(&self.ring, 1, &index) == 0:
        rsf_ring_leave_producer(&self.ring)
        return 0
    Py_INCREF_ptr(element)
    self.slots[rsf_ring_slot(&self.ring, index)] = element
    rsf_ring_commit(&self.ring, 1)
    rsf_ring_leave_producer(&self.ring)
    if rsfpy_take_waiting_consumer(&self.ring):
        self.wake_consumer()
    return 1


cdef inline PyObject *ring_poll(SpscRing self) except? NULL:
    # Returns a new reference, or NULL without an exception when the ring is empty.
    cdef uint64_t index
    cdef PyObject *element
    enter_consumer(self)
    if rsf_ring_peek(&self.ring, 1, &index) == 0:
        rsf_ring_leave_consumer(&self.ring)
        return NULL
    element = self.slots[rsf_ring_slot(&self.ring, index)]
    rsf_ring_release(&self.ring, 1)
    rsf_ring_leave_consumer(&self.ring)
    if rsfpy_take_waiting_producer(&self.ring):
        try:
            self.wake_producer()
        except BaseException:  # an exception of a signal handler
            Py_DECREF_ptr(element)
            raise
    return element
