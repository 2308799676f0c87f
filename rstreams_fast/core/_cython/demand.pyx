# cython: language_level=3
"""``DemandCounter`` on the C type ``rsf_demand``, one atomic integer."""

from libc.stdint cimport INT64_MAX, int64_t

from rstreams_fast.core._cython._csrc cimport *

from rstreams_fast._checks import check_count, safe_repr
from rstreams_fast.core._common import refuse_pickle
from rstreams_fast.errors import DemandExceededError, check_request


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    bint PyLong_CheckExact(object)


cdef int64_t _saturated(object n) except? -1:
    # Converts a Python int to 64 bits. A positive number that does not fit becomes UNBOUNDED
    # (§3.17). A negative number that does not fit becomes -INT64_MAX.
    cdef int overflow = 0
    cdef int64_t value = PyLong_AsLongLongAndOverflow(n, &overflow)
    if overflow == 0:
        return value
    return INT64_MAX if overflow > 0 else -INT64_MAX


cdef int64_t _non_negative(str name, object n) except -1:
    cdef int64_t value = _saturated(n) if PyLong_CheckExact(n) else -1
    if value < 0:
        value = _saturated(check_count(name, n))
    return value


cdef class DemandCounter:

    def __init__(self, initial=0):
        rsf_demand_init(&self.demand, _non_negative("initial", initial))

    def request(self, n, /):
        cdef int64_t before = rsf_demand_load(&self.demand)
        cdef int64_t count
        if before < 0:
            return before
        count = _saturated(n) if PyLong_CheckExact(n) else 0
        if count <= 0:
            count = _saturated(check_request(n))
        return rsf_demand_request(&self.demand, count)

    def fulfil(self, n=1, /):
        cdef int64_t left
        if not PyLong_CheckExact(n):
            n = check_count("n", n)
        left = rsf_demand_fulfil(&self.demand, _non_negative("n", n))
        if left == RSF_EXCEEDED:
            raise DemandExceededError(
                f"§1.1: {safe_repr(n)} elements delivered, only {self.pending} were requested"
            )
        return left

    def cancel(self):
        return rsf_demand_cancel(&self.demand) >= 0

    def terminate(self):
        return rsf_demand_terminate(&self.demand) >= 0

    @property
    def value(self):
        return rsf_demand_load(&self.demand)

    @property
    def pending(self):
        return max(rsf_demand_load(&self.demand), 0)

    @property
    def cancelled(self):
        return rsf_demand_load(&self.demand) == RSF_CANCELLED

    @property
    def terminated(self):
        return rsf_demand_load(&self.demand) == RSF_TERMINATED

    def __repr__(self):
        cdef int64_t value = rsf_demand_load(&self.demand)
        words = {
            RSF_CANCELLED: "cancelled",
            RSF_TERMINATED: "terminated",
            RSF_UNBOUNDED: "unbounded",
        }
        return f"<DemandCounter {words.get(value, value)}>"

    def __reduce__(self):
        refuse_pickle(self)
