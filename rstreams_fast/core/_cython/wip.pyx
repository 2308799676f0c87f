# cython: language_level=3
"""``Wip`` and ``Latch`` on the C type ``rsf_demand``, one atomic integer."""

from libc.stdint cimport INT64_MAX, int64_t

from rstreams_fast.core._cython._csrc cimport *

from rstreams_fast._checks import check_bool, check_count
from rstreams_fast.core._common import refuse_pickle


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    bint PyLong_CheckExact(object)


cdef class Wip:
    cdef rsf_demand entered
    cdef object __weakref__

    def __init__(self, held=False):
        rsf_demand_init(&self.entered, 1 if check_bool("held", held) else 0)

    def enter(self):
        return rsf_demand_request(&self.entered, 1) == 0

    @property
    def missed(self):
        return rsf_demand_load(&self.entered)

    def leave(self, missed=1, /):
        cdef int overflow = 0
        cdef int64_t count = -1
        cdef int64_t left
        if PyLong_CheckExact(missed):
            count = PyLong_AsLongLongAndOverflow(missed, &overflow)
        if count < 0:
            count = min(check_count("missed", missed), INT64_MAX)
        left = rsf_demand_fulfil(&self.entered, count)
        if left == RSF_EXCEEDED:
            raise RuntimeError(f"leave({missed}): only {self.missed} have entered")
        return left == 0

    def __repr__(self):
        return f"<Wip {self.missed}>"

    def __reduce__(self):
        refuse_pickle(self)


cdef class Latch:
    cdef rsf_demand state
    cdef object __weakref__

    def __cinit__(self):
        rsf_demand_init(&self.state, 0)

    def __init__(self):
        pass  # this signature refuses arguments; a __cinit__ without parameters ignores them

    def win(self):
        return rsf_demand_terminate(&self.state) >= 0

    @property
    def won(self):
        return rsf_demand_load(&self.state) < 0

    def __repr__(self):
        return f"<Latch {'won' if self.won else 'open'}>"

    def __reduce__(self):
        refuse_pickle(self)
