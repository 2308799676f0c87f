from rstreams_fast.core._cython._csrc cimport rsf_demand


cdef class DemandCounter:
    cdef rsf_demand demand
    cdef object __weakref__
