/* The floors: the cheapest loops in C that make the same calls of user code as a stream does.
 *
 * No demand, no cancellation, no look at signals, no letting go of the GIL: nothing that a stream
 * must do besides calling. What is above these figures is the price of the protocol.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>

/* A callable taken apart once, as any careful C loop does: a bound method is its function and its
 * self, so that no call has to build or unpack one. */
typedef struct callee {
    PyObject *function;
    PyObject *self; /* NULL: a plain callable */
} callee;

static callee
take_apart(PyObject *callable)
{
    if (PyMethod_Check(callable)) {
        return (callee){PyMethod_GET_FUNCTION(callable), PyMethod_GET_SELF(callable)};
    }
    return (callee){callable, NULL};
}

static inline PyObject *
call_one(callee callee, PyObject *element)
{
    /* The slot in front is what PY_VECTORCALL_ARGUMENTS_OFFSET lends to the callee. */
    PyObject *arguments[3] = {NULL, callee.self, element};
    if (callee.self != NULL) {
        return PyObject_Vectorcall(callee.function, arguments + 1,
                                   2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    return PyObject_Vectorcall(callee.function, arguments + 2, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                               NULL);
}

/* fused(n, map, predicate, on_next): range -> map -> filter -> on_next. */
static PyObject *
fused(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "fused(n, map, predicate, on_next)");
        return NULL;
    }
    long long n = PyLong_AsLongLong(args[0]);
    if (n == -1 && PyErr_Occurred()) {
        return NULL;
    }
    callee map = take_apart(args[1]);
    callee predicate = take_apart(args[2]);
    callee on_next = take_apart(args[3]);
    for (long long i = 0; i < n; i++) {
        PyObject *element = PyLong_FromLongLong(i);
        if (element == NULL) {
            return NULL;
        }
        PyObject *mapped = call_one(map, element);
        Py_DECREF(element);
        if (mapped == NULL) {
            return NULL;
        }
        PyObject *kept = call_one(predicate, mapped);
        if (kept == NULL) {
            Py_DECREF(mapped);
            return NULL;
        }
        int truth = kept == Py_True ? 1 : kept == Py_False ? 0 : PyObject_IsTrue(kept);
        Py_DECREF(kept);
        if (truth > 0) {
            PyObject *answer = call_one(on_next, mapped);
            if (answer == NULL) {
                truth = -1;
            } else {
                Py_DECREF(answer);
            }
        }
        Py_DECREF(mapped);
        if (truth < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* atomic_adds(n) -> the sum: n uncontended sequentially consistent additions. */
static PyObject *
atomic_adds(PyObject *Py_UNUSED(module), PyObject *argument)
{
    long long n = PyLong_AsLongLong(argument);
    if (n == -1 && PyErr_Occurred()) {
        return NULL;
    }
    _Atomic long long sum = 0;
    for (long long i = 0; i < n; i++) {
        atomic_fetch_add(&sum, 1);
    }
    return PyLong_FromLongLong(atomic_load(&sum));
}

/* nothing(x) -> None: what a call from Python into C costs by itself. */
static PyObject *
nothing(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(argument))
{
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"fused", (PyCFunction)(void (*)(void))fused, METH_FASTCALL,
     "fused(n, map, predicate, on_next): range -> map -> filter -> on_next as a bare C loop."},
    {"atomic_adds", atomic_adds, METH_O, "atomic_adds(n): n uncontended atomic additions."},
    {"nothing", nothing, METH_O, "nothing(x): does nothing."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_floors",
    .m_doc = "The cheapest C loops that make the same user calls as a stream.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__floors(void)
{
    return PyModuleDef_Init(&module);
}
