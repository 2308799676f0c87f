from cpython.object cimport PyObject
from libc.stdint cimport uint32_t

from rstreams_fast.core._cython._calls cimport *
from rstreams_fast.core._cython._csrc cimport *


cdef class SignalSerializer:
    cdef rsf_serial serial
    cdef rsf_serial_cell *cells
    cdef PyObject **slots  # owned references where not NULL
    cdef object subscriber
    cdef object deliver_next  # the subscriber's on_next, looked up once
    cdef rsfpy_callee callee  # borrowed from it
    cdef object subscription
    cdef object error
    cdef list parked
    cdef uint32_t announce  # on_subscribe is the next signal to deliver
    cdef bint finished
    cdef bint waits
    cdef bint delay_error
    cdef bint fail_fast
    cdef unsigned long owner  # the thread that delivers, where that matters
    cdef long creator
    cdef object __weakref__

    cdef int _next(self, object element, bint wait) except -1
    cdef int _next_as_holder(self, object element) except -1
    cdef int _next_after_others(self, object element) except -1
    cdef bint _terminate(self, int kind, object error) except -1
    cdef object _upstream(self)
    cdef object _end_upstream(self)
    cdef int _drain(self) except -1
    cdef int _deliver_and_leave(self) except -1
    cdef int _deliver_all(self) except -1
    cdef int _deliver_terminal(self, int kind) except -1
    cdef int _call(self, object element) except -1
    cdef int _abandon_what_was_raised(self) except -1
    cdef int _abandon(self, object raised) except -1
    cdef void _forget(self) noexcept
    cdef void _wake(self) noexcept
    cdef int _park(self) except -1
