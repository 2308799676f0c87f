# cython: language_level=3
"""Iterating over elements that come in bursts: what there is to do for each is done in C."""

cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from rstreams_fast.core._cython._python cimport PySendResult, PYGEN_ERROR, PYGEN_RETURN, PyIter_Send

from types import GenericAlias

from rstreams_fast.core._common import MISSING, refuse_pickle


cdef extern from *:
    """
    /* End what is awaited. From C, as a raise of Cython's adds to a traceback each time. */
    static PyObject *
    rsfpy_stop_with(PyObject *result)
    {
        if (PyTuple_Check(result) || PyExceptionInstance_Check(result)) {
            /* Alone they would be the exception's arguments, or the exception. */
            PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
            if (stop != NULL) {
                PyErr_SetObject(PyExc_StopIteration, stop);
                Py_DECREF(stop);
            }
        } else {
            PyErr_SetObject(PyExc_StopIteration, result);
        }
        return NULL;
    }
    """
    PyObject *rsfpy_stop_with(object result) noexcept

    ctypedef PyObject *(*unaryfunc)(PyObject *) except NULL
    ctypedef PySendResult (*sendfunc)(PyObject *, PyObject *, PyObject **) except PYGEN_ERROR
    ctypedef struct PyAsyncMethods:
        unaryfunc am_anext
        sendfunc am_send
    ctypedef struct PyTypeObject:
        unaryfunc tp_iternext
        PyAsyncMethods *tp_as_async
        PyObject *tp_dict
    void PyType_Modified(object)


cdef object missing = MISSING  # without a look-up


# Its list is there until it is gone itself; of cycles, the collector clears that.
@cython.no_gc_clear
cdef class BurstIterator:

    # Newest first. One list for good, as without a GIL a list may be shared, but a field may not.
    cdef list burst

    def __cinit__(self, *_arguments, **_named):
        self.burst = []

    @classmethod
    def __class_getitem__(cls, argument):
        return GenericAlias(cls, argument)

    def _refill(self):
        raise NotImplementedError

    async def _refill_async(self):
        raise NotImplementedError

    def _first_of(self, list burst not None):
        burst.reverse()
        element = burst.pop()
        self.burst.extend(burst)
        return element

    def _next_of_burst(self):
        try:
            return self.burst.pop()
        except IndexError:
            return MISSING

    def _forget_burst(self):
        self.burst.clear()

    def __iter__(self):
        return self

    def __next__(self):
        if PyList_GET_SIZE(self.burst) > 0:
            try:
                return self.burst.pop()
            except IndexError:  # another thread was faster
                pass
        return self._refill()

    def __aiter__(self):
        return self

    def __anext__(self):
        return new_anext(self)

    def __reduce__(self):
        refuse_pickle(self)


@cython.final
@cython.freelist(8)
cdef class _Anext:
    """What ``anext`` returns: a coroutine, as far as anybody can tell, that is mostly done at once."""

    cdef BurstIterator iterator
    cdef object coroutine  # who does it, if the burst was used up
    cdef bint begun

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Go on with ``value``, as a coroutine does."""
        return self.begin().send(value)

    def throw(self, *raised):
        """Go on with an exception, as a coroutine does."""
        return self.begin().throw(*raised)

    def close(self):
        """End it, as a coroutine is ended."""
        with cython.critical_section(self):
            self.begun = True  # from now on nobody else begins
            coroutine = self.coroutine
        if coroutine is not None:
            coroutine.close()

    cdef object begin(self):
        """Who does it, made now if nobody has begun."""
        cdef bint begun
        with cython.critical_section(self):
            begun, self.begun = self.begun, True
            if not begun:
                self.coroutine = next_async(self.iterator)
            coroutine = self.coroutine
        if coroutine is None:
            raise RuntimeError("cannot reuse already awaited __anext__()")
        return coroutine


async def next_async(BurstIterator iterator):
    """The next element, in a coroutine."""
    element = iterator._next_of_burst()
    if element is MISSING:
        element = await iterator._refill_async()
    return element


cdef _Anext new_anext(BurstIterator iterator):
    cdef _Anext anext = _Anext.__new__(_Anext)
    anext.iterator = iterator
    return anext


cdef object taken_at_once(_Anext anext):
    """The element, if there is a burst to take it from and nobody else has begun; else MISSING."""
    cdef bint begun
    if anext.iterator is None or PyList_GET_SIZE(anext.iterator.burst) == 0:
        return missing
    with cython.critical_section(anext):
        begun, anext.begun = anext.begun, True
    if begun:
        return missing
    try:
        return anext.iterator.burst.pop()
    except IndexError:  # another thread was faster
        anext.begun = False
        return missing


cdef PyObject *step(PyObject *self) except NULL:
    """``tp_iternext``: mostly the first step is the last one, too."""
    cdef _Anext anext = <_Anext> self
    element = taken_at_once(anext)
    if element is not missing:
        return rsfpy_stop_with(element)
    suspended = anext.begin().send(None)
    Py_INCREF(suspended)
    return <PyObject *> suspended


cdef PySendResult send(PyObject *self, PyObject *value, PyObject **result) except PYGEN_ERROR:
    """``am_send``: the same without an exception, for those who know how."""
    cdef _Anext anext = <_Anext> self
    element = taken_at_once(anext) if value == <PyObject *> None else missing
    if element is not missing:
        Py_INCREF(element)
        result[0] = <PyObject *> element
        return PYGEN_RETURN
    return PyIter_Send(anext.begin(), <object> value, result)


def take_the_slot(cls, **options):
    """``__init_subclass__``: else Python would look the methods up by name for each element."""
    super(BurstIterator, cls).__init_subclass__(**options)
    ours = <PyTypeObject *> BurstIterator
    theirs = <PyTypeObject *> cls
    if cls.__next__ is BurstIterator.__next__:
        theirs.tp_iternext = ours.tp_iternext
    if cls.__anext__ is BurstIterator.__anext__:
        theirs.tp_as_async.am_anext = ours.tp_as_async.am_anext


# Cython lets no extension class define it.
(<dict> (<PyTypeObject *> BurstIterator).tp_dict)["__init_subclass__"] = classmethod(take_the_slot)
PyType_Modified(BurstIterator)
(<PyTypeObject *> _Anext).tp_iternext = step
(<PyTypeObject *> _Anext).tp_as_async.am_send = send
