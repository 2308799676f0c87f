from rstreams_fast.core._cython._csrc cimport *


cdef class DemandCounter:
    cdef rsf_demand demand
    cdef object __weakref__
