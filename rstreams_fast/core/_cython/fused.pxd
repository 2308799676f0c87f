from libc.stdint cimport int64_t, uint32_t

from rstreams_fast.core._cython._calls cimport *
from rstreams_fast.core._cython._csrc cimport *
from rstreams_fast.core._cython.demand cimport DemandCounter
from rstreams_fast.core._cython.ring cimport SpscRing
from cpython.object cimport PyObject


# A type's tp_iternext: NULL without an exception, or with StopIteration, means "no more now".
ctypedef PyObject *(*next_function)(PyObject *) noexcept


cdef struct Stage:
    int kind
    rsfpy_callee callee  # borrowed from the program
    int64_t argument    # of batch: its size
    int64_t count       # of take, skip: how many more; of take_while, skip_while: 0 once decided


cdef class Gate


cdef class FusedRun:
    cdef object source
    cdef next_function source_next
    cdef tuple program
    cdef Stage *stages
    cdef Py_ssize_t stage_count
    cdef Py_ssize_t c_stages  # so many, the first ones, never are in the generated drain
    cdef list held
    cdef object slot
    cdef rsfpy_callee slot_callee  # borrowed from it
    cdef SpscRing slot_ring
    cdef DemandCounter demand
    cdef rsf_demand *counter
    cdef int64_t run_ratio
    cdef bint has_ended
    cdef bint reduces         # delivers nothing before its end
    cdef bint uses_generated
    cdef bint has_none
    cdef bint exhausted
    cdef bint clear_later
    cdef uint32_t busy
    cdef int place
    cdef int64_t budget
    cdef int64_t remaining
    cdef int64_t undelivered
    cdef int64_t pulled_before
    cdef int64_t refunded
    cdef int until_look
    cdef int stride
    cdef double last_look
    cdef double last_rest
    cdef Gate gate
    cdef object generated     # the drain in Python, once it was needed
    cdef tuple generated_arguments
    cdef object stopped  # a StopIteration that a stage raised
    cdef readonly object error
    cdef object __weakref__

    cdef int _enter(self) except -1
    cdef void _leave(self) noexcept
    cdef void _let_go(self) noexcept
    cdef PyObject *_source_is_empty(self) except? NULL
    cdef PyObject *_source_has_none(self) except? NULL
    cdef void _end(self) noexcept
    cdef object _drain(self, int64_t limit)
    cdef int64_t _settle(self) except? -4
    cdef int _loop(self) except -1
    cdef int _look_around(self) except -1
    cdef int _run_generated(self) except -1
    cdef int _generate(self) except -1
    cdef int _deliver(self, PyObject *element) except -1
    cdef PyObject *_take_processed(self) except? NULL
    cdef PyObject *_process(self, PyObject *x, Py_ssize_t start, Py_ssize_t stop) except? NULL
    cdef PyObject *_hold(self, Stage *stage, PyObject *element) except? NULL
    cdef bint _differs(self, Py_ssize_t index, object x) except -1
    cdef object _none_returned(self, Stage *stage)
    cdef int _observe(self, object function, object element) except -1
    cdef object _push(self, object element)
    cdef object _finish(self)
    cdef object _fail(self, object error)
    cdef int _fulfil_one(self) except -1


cdef class Gate:
    cdef FusedRun run  # only while the generated drain runs, so there is no cycle
