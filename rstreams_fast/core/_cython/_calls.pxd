# Fast calls of Python callables from C: the parts of a callable are looked up only once.

from cpython.object cimport PyObject


cdef extern from *:
    """
    #define PY_SSIZE_T_CLEAN
    #include <Python.h>

    /*
     * The parts of a callable, looked up and checked once instead of at every call.
     * References are borrowed from the holder of the callable.
     */
    typedef struct rsfpy_callee {
        PyObject *function;   /* of a bound method: its function */
        PyObject *self;       /* of a bound method or a built-in function: its bound object */
        PyCFunction direct;   /* of a built-in function of one argument, or NULL */
        PyTypeObject *only;   /* `direct` is a method without arguments, of this type */
    } rsfpy_callee;

    #define RSFPY_CALLING_CONVENTION \\
        (METH_VARARGS | METH_FASTCALL | METH_NOARGS | METH_O | METH_KEYWORDS | METH_METHOD)

    /* The value of a plain int that is at least `minimum` and fits; else -1: use the slow path. */
    static inline long long
    rsfpy_plain_count(PyObject *value, long long minimum)
    {
        int overflow;
        long long count;
        if (!PyLong_CheckExact(value)) {
            return -1;
        }
        count = PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow == 0 && count >= minimum ? count : -1;
    }

    static inline rsfpy_callee
    rsfpy_take_apart(PyObject *callable)
    {
        rsfpy_callee callee = {callable, NULL, NULL, NULL};
        if (PyMethod_Check(callable)) {
            callee.function = PyMethod_GET_FUNCTION(callable);
            callee.self = PyMethod_GET_SELF(callable);
        } else if (PyCFunction_CheckExact(callable)) {
            if ((PyCFunction_GET_FLAGS(callable) & RSFPY_CALLING_CONVENTION) == METH_O) {
                callee.direct = PyCFunction_GET_FUNCTION(callable);
                callee.self = PyCFunction_GET_SELF(callable);
            }
        } else if (Py_IS_TYPE(callable, &PyMethodDescr_Type)) {
            PyMethodDef *method = ((PyMethodDescrObject *)callable)->d_method;
            if ((method->ml_flags & RSFPY_CALLING_CONVENTION) == METH_NOARGS) {
                callee.direct = method->ml_meth;
                callee.only = PyDescr_TYPE(callable);
            }
        }
        return callee;
    }

    static inline PyObject *
    rsfpy_vectorcall(PyObject *function, PyObject *const *arguments, size_t count)
    {
        PyTypeObject *type = Py_TYPE(function);
        if (PyType_HasFeature(type, Py_TPFLAGS_HAVE_VECTORCALL)) {
            vectorcallfunc call =
                *(vectorcallfunc *)((char *)function + type->tp_vectorcall_offset);
            if (call != NULL) {
                return call(function, arguments, count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
            }
        }
        return PyObject_Vectorcall(function, arguments, count | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                   NULL);
    }

    /*
     * callable(x). A direct call is not counted as recursion, so a function that may call its
     * caller back must use rsfpy_call_one_deeper.
     */
    static inline PyObject *
    rsfpy_call_one(const rsfpy_callee *callee, PyObject *x)
    {
        /* PY_VECTORCALL_ARGUMENTS_OFFSET lets the callee use the slot before the arguments. */
        PyObject *arguments[3] = {NULL, callee->self, x};
        if (callee->direct != NULL) {
            if (callee->only == NULL) {
                return callee->direct(callee->self, x);
            }
            if (Py_IS_TYPE(x, callee->only)) {
                return callee->direct(x, NULL);
            }
        } else if (callee->self != NULL) {
            return rsfpy_vectorcall(callee->function, arguments + 1, 2);
        }
        return rsfpy_vectorcall(callee->function, arguments + 2, 1);
    }

    /* callable(x), for a callable that may call its caller back: counted as recursion. */
    static inline PyObject *
    rsfpy_call_one_deeper(const rsfpy_callee *callee, PyObject *x)
    {
        PyObject *result;
        if (callee->direct == NULL) {
            return rsfpy_call_one(callee, x); /* counts by itself */
        }
        if (Py_EnterRecursiveCall(" while calling a function") != 0) {
            return NULL;
        }
        result = rsfpy_call_one(callee, x);
        Py_LeaveRecursiveCall();
        return result;
    }
    """
    long long rsfpy_plain_count(object, long long) noexcept

    ctypedef struct rsfpy_callee:
        PyObject *function

    rsfpy_callee rsfpy_take_apart(PyObject *) noexcept
    PyObject *rsfpy_call_one(const rsfpy_callee *, PyObject *) noexcept  # NULL: raised
    PyObject *rsfpy_call_one_deeper(const rsfpy_callee *, PyObject *) noexcept
