# cython: language_level=3
"""``BurstIterator``: iterates over elements that come in bursts (lists), in C."""

cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from rstreams_fast.core._cython._python cimport PySendResult, PYGEN_ERROR, PYGEN_RETURN, PyIter_Send

from types import GenericAlias

from rstreams_fast.core._common import MISSING, refuse_pickle


cdef extern from *:
    """
    /* Raises StopIteration(result) from C: a raise of Cython would add to a traceback. */
    static PyObject *
    rsfpy_stop_with(PyObject *result)
    {
        if (PyTuple_Check(result) || PyExceptionInstance_Check(result)) {
            /* Unwrapped, they would be taken for the arguments, or for the exception itself. */
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


cdef object missing = MISSING  # a C variable, faster than a look-up of the global MISSING


# no_gc_clear: the garbage collector must not set `burst` to None, because a method that runs later
# expects a list. The collector can still break a reference cycle: it empties the list itself.
@cython.no_gc_clear
cdef class BurstIterator:

    # The last item of the list is the next element. Methods change the list, but never set the
    # attribute to another list. Without a GIL, it is safe that several threads change a list at the
    # same time, but not an attribute of a C class.
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
            except IndexError:  # another thread took the last element after the check
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
    """The awaitable of ``anext``. It acts like a coroutine, and usually ends in its first step."""

    cdef BurstIterator iterator
    cdef object coroutine  # gets the next element if the burst was used up; None before that
    cdef bint begun

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Send ``value`` to the coroutine."""
        return self.begin().send(value)

    def throw(self, *raised):
        """Raise an exception within the coroutine."""
        return self.begin().throw(*raised)

    def close(self):
        """End the coroutine."""
        with cython.critical_section(self):
            self.begun = True  # so that begin() creates no coroutine any more
            coroutine = self.coroutine
        if coroutine is not None:
            coroutine.close()

    cdef object begin(self):
        """Return the coroutine that does the work; create it on the first call."""
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
    """Return the next element, in a coroutine."""
    element = iterator._next_of_burst()
    if element is MISSING:
        element = await iterator._refill_async()
    return element


cdef _Anext new_anext(BurstIterator iterator):
    cdef _Anext anext = _Anext.__new__(_Anext)
    anext.iterator = iterator
    return anext


cdef object taken_at_once(_Anext anext):
    """Return the next element of the burst. MISSING if it is empty, or on a second call."""
    cdef bint begun
    if anext.iterator is None or PyList_GET_SIZE(anext.iterator.burst) == 0:
        return missing
    with cython.critical_section(anext):
        begun, anext.begun = anext.begun, True
    if begun:
        return missing
    try:
        return anext.iterator.burst.pop()
    except IndexError:  # another thread took the last element after the check
        anext.begun = False
        return missing


cdef PyObject *step(PyObject *self) except NULL:
    """``tp_iternext`` of the awaitable: usually the first step is also the last."""
    cdef _Anext anext = <_Anext> self
    element = taken_at_once(anext)
    if element is not missing:
        return rsfpy_stop_with(element)
    suspended = anext.begin().send(None)
    Py_INCREF(suspended)
    return <PyObject *> suspended


cdef PySendResult send(PyObject *self, PyObject *value, PyObject **result) except PYGEN_ERROR:
    """``am_send`` of the awaitable: like ``step``, but without a StopIteration for the result."""
    cdef _Anext anext = <_Anext> self
    element = taken_at_once(anext) if value == <PyObject *> None else missing
    if element is not missing:
        Py_INCREF(element)
        result[0] = <PyObject *> element
        return PYGEN_RETURN
    return PyIter_Send(anext.begin(), <object> value, result)


def take_the_slot(cls, **options):
    """``__init_subclass__``: fill the C slots of ``cls``, to avoid a look-up for each element."""
    super(BurstIterator, cls).__init_subclass__(**options)
    ours = <PyTypeObject *> BurstIterator
    theirs = <PyTypeObject *> cls
    if cls.__next__ is BurstIterator.__next__:
        theirs.tp_iternext = ours.tp_iternext
    if cls.__anext__ is BurstIterator.__anext__:
        theirs.tp_as_async.am_anext = ours.tp_as_async.am_anext


# Set __init_subclass__ here: Cython does not allow the method in the body of an extension class.
(<dict> (<PyTypeObject *> BurstIterator).tp_dict)["__init_subclass__"] = classmethod(take_the_slot)
PyType_Modified(BurstIterator)
(<PyTypeObject *> _Anext).tp_iternext = step
(<PyTypeObject *> _Anext).tp_as_async.am_send = send
