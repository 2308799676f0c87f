# The parts of CPython's C API that Cython does not declare, or declares for objects only. Here they
# are declared for pointers, because the references in slots are counted by hand.

from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc


cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    void Py_INCREF_ptr "Py_INCREF"(PyObject *)
    void Py_DECREF_ptr "Py_DECREF"(PyObject *)
    void Py_XDECREF_ptr "Py_XDECREF"(PyObject *)
    void PyList_SET_ITEM_ptr "PyList_SET_ITEM"(PyObject *, Py_ssize_t, PyObject *)
    void Py_SET_SIZE(PyObject *, Py_ssize_t)
    int Py_EnterRecursiveCall(const char *) except *  # not 0: failed
    void Py_LeaveRecursiveCall()
    int PyErr_CheckSignals() except -1
    int PyCFunction_Check(object)

    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    PySendResult PyIter_Send(object, object, PyObject **) except PYGEN_ERROR

    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR

    PyThread_type_lock PyThread_allocate_lock() nogil
    void PyThread_free_lock(PyThread_type_lock) nogil
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long, int) nogil
    int PyThread_acquire_lock(PyThread_type_lock, int) nogil
    void PyThread_release_lock(PyThread_type_lock) nogil
    unsigned long PyThread_get_thread_ident() nogil


cdef extern from *:
    """
    /* Cython declares these slots with other argument types. */
    #define rsfpy_traverse_of(type) ((type)->tp_traverse)
    #define rsfpy_clear_of(type) ((type)->tp_clear)
    #define rsfpy_set_traverse(type, f) ((type)->tp_traverse = (traverseproc)(f))
    #define rsfpy_set_clear(type, f) ((type)->tp_clear = (inquiry)(f))
    """
    ctypedef int (*inquiry)(PyObject *)
    traverseproc rsfpy_traverse_of(PyTypeObject *)
    inquiry rsfpy_clear_of(PyTypeObject *)
    void rsfpy_set_traverse(PyTypeObject *, void *)
    void rsfpy_set_clear(PyTypeObject *, void *)


cdef inline int raise_what_is_set() except -1:
    # Re-raises the exception that C code has set, for the except clause around this call.
    return -1
