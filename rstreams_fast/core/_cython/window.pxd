from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from rstreams_fast.core._cython._calls cimport *
from rstreams_fast.core._cython._csrc cimport *
from rstreams_fast.core._cython.demand cimport DemandCounter


cdef class CallWindow


cdef class Call:
    cdef CallWindow window
    cdef object item
    cdef object key          # of the dictionary of calls in flight
    cdef object coro
    cdef PyObject *starting  # borrowed: the coroutine, during its first step
    cdef object context
    cdef object task
    cdef object waits_for
    cdef object error
    cdef object result
    cdef bint introduced
    cdef bint suspended      # by the first step, and not driven on since
    cdef bint running        # counted as a running call of the window
    cdef bint finished
    cdef bint leads          # it is in the window's dictionary of calls in flight
    cdef uint64_t place
    cdef list followers      # their places

    cdef int _end(self, object result, object error) except -1


cdef class CallWindow:
    cdef object fn
    cdef rsfpy_callee callee  # borrowed from it
    cdef object loop
    cdef object on_ready
    cdef int64_t calls_allowed
    cdef DemandCounter permit_counter
    cdef rsf_ring ring
    cdef PyObject **results  # owned; NULL where a result is still awaited
    cdef bint ordered
    cdef bint spread
    cdef dict in_flight
    cdef dict running_calls  # in the order of submission
    cdef uint64_t places_held
    cdef bint notified
    cdef bint cancelled
    cdef bint submitting
    cdef Call spare          # a call, and in it a task, for the next first step
    cdef bint entered        # the spare's task is asyncio's current one, its context is entered
    cdef Py_ssize_t references  # to that task, when nobody keeps it
    cdef readonly object failure
    cdef readonly int64_t max_running
    cdef readonly int64_t max_pending
    cdef readonly int64_t started
    cdef object __weakref__

    cdef int _begin_submitting(self, str call) except -1
    cdef int _end_submitting(self) except -1
    cdef bint _submit_or_follow(self, object item, bint permitted) except -1
    cdef int _start(self, object item, object key) except -1
    cdef int _suspend(
        self, Call call, object item, object key, uint64_t place, object waits_for
    ) except -1
    cdef int _first_step_ended(
        self, Call call, object item, uint64_t place, PyObject *outcome
    ) except -1
    cdef int _first_step_was(
        self, Call call, object item, uint64_t place, object result, object error
    ) except -1
    cdef Call _enter_call(self, Call call)
    cdef int _enter_context(self, Call call) except -1
    cdef int _retire_spare(self) except -1
    cdef int _leave_spare(self) except -1
    cdef int _finish(self, Call call, object result) except -1
    cdef int _fail(self, object item, object error) except -1
    cdef int _forget(self, Call call) except -1
    cdef int _unlead(self, Call call) except -1
    cdef uint64_t _ready(self, uint64_t limit)
