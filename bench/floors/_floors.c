/* The floors: the cheapest loops in C that make the same calls of user code as a stream does.
 *
 * No demand, no cancellation, no look at signals, no release of the GIL: nothing that a stream
 * must do besides calling. What is above these figures is the price of the protocol.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "rsf_records.h"

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

/* awaits(n, function) -> [await function(i) for i in range(n)], where nothing suspends: a coroutine
 * is made and driven to its end, and the next one is. No task, no context, no bound. */
static PyObject *
awaits(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "awaits(n, function)");
        return NULL;
    }
    long long n = PyLong_AsLongLong(args[0]);
    if (n == -1 && PyErr_Occurred()) {
        return NULL;
    }
    callee function = take_apart(args[1]);
    PyObject *results = PyList_New(0);
    for (long long i = 0; results != NULL && i < n; i++) {
        PyObject *result = NULL, *coroutine = NULL, *element = PyLong_FromLongLong(i);
        PySendResult status = PYGEN_ERROR;
        if (element != NULL) {
            coroutine = call_one(function, element);
        }
        if (coroutine != NULL) {
            status = PyIter_Send(coroutine, Py_None, &result);
        }
        if (status == PYGEN_NEXT) {
            PyErr_SetString(PyExc_RuntimeError, "it suspends");
            status = PYGEN_ERROR;
        }
        if (status == PYGEN_ERROR || PyList_Append(results, result) < 0) {
            Py_CLEAR(results);
        }
        Py_XDECREF(result);
        Py_XDECREF(coroutine);
        Py_XDECREF(element);
    }
    return results;
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

/* What copies and ring_copies do: `times` times from source to memory of one's own, and from there
 * to target. The three are of one size. */
typedef struct copying {
    Py_buffer source, target;
    unsigned char *allocated, *own; /* at a cache line, as the ring's memory is */
    long long times;
} copying;

static int
begin_copying(copying *work, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "copies(source, target, times)");
        return -1;
    }
    work->times = PyLong_AsLongLong(args[2]);
    if (work->times == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (PyObject_GetBuffer(args[0], &work->source, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    if (PyObject_GetBuffer(args[1], &work->target, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&work->source);
        return -1;
    }
    size_t size = (size_t)work->source.len;
    work->allocated = calloc(size + 64, 1);
    if (work->allocated == NULL || work->target.len != work->source.len) {
        PyErr_SetString(PyExc_ValueError, "source and target must be of one size");
        free(work->allocated);
        PyBuffer_Release(&work->source);
        PyBuffer_Release(&work->target);
        return -1;
    }
    work->own = work->allocated + (64 - (uintptr_t)work->allocated % 64) % 64;
    return 0;
}

static void
end_copying(copying *work)
{
    free(work->allocated);
    PyBuffer_Release(&work->source);
    PyBuffer_Release(&work->target);
}

/* copies(source, target, times): by memcpy. */
static PyObject *
copies(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    copying work;
    if (begin_copying(&work, args, nargs) < 0) {
        return NULL;
    }
    size_t size = (size_t)work.source.len;
    for (long long i = 0; i < work.times; i++) {
        memcpy(work.own, work.source.buf, size);
        __asm__ volatile("" ::: "memory"); /* both are made, and neither is put together */
        memcpy(work.target.buf, work.own, size);
        __asm__ volatile("" ::: "memory");
    }
    end_copying(&work);
    Py_RETURN_NONE;
}

/* ring_copies(source, target, times): through a ring of as many bytes, by the C core alone. */
static PyObject *
ring_copies(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    copying work;
    if (begin_copying(&work, args, nargs) < 0) {
        return NULL;
    }
    rsf_ring ring;
    uint64_t size = (uint64_t)work.source.len;
    if (!rsf_ring_init(&ring, size) || rsf_ring_slots(&ring) != size) {
        PyErr_SetString(PyExc_ValueError, "the size must be a power of two");
        end_copying(&work);
        return NULL;
    }
    for (long long i = 0; i < work.times; i++) {
        uint64_t first;
        uint64_t n = rsf_ring_reserve(&ring, size, &first);
        rsf_records_put(&ring, work.own, 1, first, n, work.source.buf);
        rsf_ring_commit(&ring, n);
        n = rsf_ring_peek(&ring, size, &first);
        rsf_records_take(&ring, work.own, 1, first, n, work.target.buf);
        rsf_ring_release(&ring, n);
    }
    end_copying(&work);
    Py_RETURN_NONE;
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
    {"awaits", (PyCFunction)(void (*)(void))awaits, METH_FASTCALL,
     "awaits(n, function): drives so many coroutines to their ends, one after the other."},
    {"atomic_adds", atomic_adds, METH_O, "atomic_adds(n): n uncontended atomic additions."},
    {"copies", (PyCFunction)(void (*)(void))copies, METH_FASTCALL,
     "copies(source, target, times): by memcpy, through memory of its own."},
    {"ring_copies", (PyCFunction)(void (*)(void))ring_copies, METH_FASTCALL,
     "ring_copies(source, target, times): through a ring of the C core."},
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
