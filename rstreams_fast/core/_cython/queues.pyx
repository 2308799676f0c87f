# cython: language_level=3, boundscheck=False, wraparound=False
"""Queues between many threads, with the standard library's interface, over a ring of references.

A queue changes only between ``lock`` and ``unlock``. No Python code runs there, and no object is
made or dropped. So with a GIL, other threads see the change as one step. Without a GIL, ``lock``
locks a short mutex. Waiting threads form a *line*, in order of arrival, and each sleeps on an event
of its own. One waiting thread is woken (*called*) at a time. The next one is woken only when the
first has run, because a wasted wake-up costs a thread switch. A woken thread may find that another
thread has taken its element. After PATIENCE such wasted wake-ups, threads that come later must join
the line, too.

The standard library's queue has a mutex, conditions and a container that users may use, and methods
that they may override (hooks). Using any of these switches a queue permanently to the standard
library's code: see ``_take_the_mutex``.
"""

from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint32_t

from rstreams_fast.core._cython._csrc cimport rsf_load_acq_u32, rsf_store_rel_u32
from rstreams_fast.core._cython._python cimport *
from rstreams_fast.core._cython.ring cimport sleep_on

import os
import threading
from math import ceil
from queue import Empty, Full
from time import monotonic
from types import GenericAlias

from rstreams_fast.core._common import refuse_pickle
from rstreams_fast.core._spec import queues as spec

ShutDown = spec.ShutDown


cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    typedef PyMutex rsfpy_mutex;
    #define rsfpy_lock(mutex) PyMutex_Lock(mutex)
    #define rsfpy_unlock(mutex) PyMutex_Unlock(mutex)
    #define rsfpy_renew(mutex) ((void)(*(mutex) = (PyMutex){0}))
    #else
    typedef char rsfpy_mutex;
    #define rsfpy_lock(mutex) ((void)(mutex))
    #define rsfpy_unlock(mutex) ((void)(mutex))
    #define rsfpy_renew(mutex) ((void)(mutex))
    #endif
    """
    ctypedef struct rsfpy_mutex:
        pass
    void rsfpy_lock(rsfpy_mutex *)
    void rsfpy_unlock(rsfpy_mutex *)
    void rsfpy_renew(rsfpy_mutex *)
    void *PyMem_RawCalloc(size_t, size_t)
    void PyMem_RawFree(void *)
    int PyObject_GenericSetAttr(object, object, object) except -1


cdef enum:
    FIRST_SLOTS = 16
    KEPT_SLOTS = 4096  # an empty queue with more slots than this frees them
    PATIENCE = 16


cdef enum Answer:
    DONE
    WAIT
    STOPPED
    MUTEX  # the queue now uses the standard library's code
    NO_MEMORY


cdef enum:  # the calls for which a thread may wait
    PUT
    GET
    JOIN


# A Waiter is on the heap, not on the stack of its thread. At exit the interpreter ends waiting
# daemon threads, which frees their stacks. But other threads may still use their Waiters.
cdef struct Waiter:
    PyThread_type_lock event
    Waiter *next
    unsigned long thread
    bint called
    int in_vain


cdef struct Line:
    Waiter *first
    Waiter *last
    Waiter *called  # the waiter whose thread was woken, but has not run yet


cdef struct Store:
    PyObject **slots  # owned references from head to head + count - 1, modulo the number of slots
    Py_ssize_t mask
    Py_ssize_t head
    Py_ssize_t count


cdef uint32_t forks = 0  # how many forks led from the first process to this one
cdef unsigned long survivor = 0  # the thread that made the last of these forks
cdef rsfpy_mutex forgetting
# A thread holds the lock `becoming` while it switches a queue to the standard library's code. So
# two threads cannot switch the same queue.
becoming = threading.RLock()


def after_fork():
    global forks, survivor, becoming
    forks += 1
    survivor = PyThread_get_thread_ident()
    rsfpy_renew(&forgetting)
    becoming = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)


cdef Waiter *new_waiter() noexcept:
    cdef Waiter *waiter = <Waiter *> PyMem_RawCalloc(1, sizeof(Waiter))
    if waiter != NULL:
        waiter.event = PyThread_allocate_lock()
        if waiter.event == NULL:
            PyMem_RawFree(waiter)
            return NULL
        PyThread_acquire_lock(waiter.event, 1)
        waiter.thread = PyThread_get_thread_ident()
    return waiter


cdef inline void call(Line *line) noexcept:
    cdef Waiter *waiter = line.first
    line.first = waiter.next
    line.called = waiter
    waiter.called = True
    PyThread_release_lock(waiter.event)


cdef inline void call_one(Line *line) noexcept:
    if line.first != NULL and line.called == NULL:
        call(line)


cdef inline void call_all(Line *line) noexcept:
    while line.first != NULL:
        call(line)
    line.called = NULL


cdef class ThreadQueue:
    """A queue of references between threads. The base class of all queues in this file."""

    cdef PyObject **slots  # these four fields are as in Store
    cdef Py_ssize_t mask
    cdef Py_ssize_t head
    cdef Py_ssize_t count
    cdef Py_ssize_t bound
    cdef Py_ssize_t unfinished
    cdef object _maxsize
    cdef Line lines[3]  # the waiting threads, by PUT, GET and JOIN
    cdef uint32_t forks
    cdef rsfpy_mutex mutex
    cdef bint last_first
    cdef bint stopped
    cdef bint has_mutex
    cdef bint takes_the_mutex

    def __cinit__(self, *args, **kwargs):
        self._maxsize = 0
        self.forks = forks
        self.bound = PY_SSIZE_T_MAX
        self.mask = -1

    def __dealloc__(self):
        cdef Store store
        self.give_up(&store)
        drop(&store)

    def __reduce__(self):
        refuse_pickle(self)

    # -- one attempt to put, get or join, without waiting -----------------------------------------

    cdef inline Answer try_put(
        self, PyObject *element, bint block, Waiter *me
    ) noexcept:
        cdef Answer answer = DONE
        self.lock()
        self.come(PUT, me)
        if self.has_mutex:
            answer = MUTEX
        elif self.stopped:
            answer = STOPPED
        elif self.count >= self.bound or (block and self.must_stand_in_line(PUT, me)):
            answer = WAIT
        elif self.count > self.mask and not self.resize(2 * self.count):
            answer = NO_MEMORY
        else:
            Py_INCREF_ptr(element)
            self.slots[(self.head + self.count) & self.mask] = element
            self.count += 1
            self.unfinished += 1
        self.settle(PUT, me, answer)
        self.unlock()
        return answer

    cdef inline Answer try_get(
        self, PyObject **element, bint block, Waiter *me
    ) noexcept:
        cdef Answer answer = DONE
        self.lock()
        self.come(GET, me)
        if self.has_mutex:
            answer = MUTEX
        elif self.count == 0:
            answer = STOPPED if self.stopped else WAIT
        elif block and self.must_stand_in_line(GET, me):
            answer = WAIT
        else:
            element[0] = self.take()
        self.settle(GET, me, answer)
        self.unlock()
        return answer

    cdef inline Answer try_join(self, Waiter *me) noexcept:
        cdef Answer answer = DONE
        self.lock()
        if self.has_mutex:
            answer = MUTEX
        elif self.unfinished > 0:
            answer = WAIT
        self.settle(JOIN, me, answer)
        self.unlock()
        return answer

    # -- the mutex, and methods that need it ------------------------------------------------------

    cdef inline void lock(self) noexcept:
        if rsf_load_acq_u32(&self.forks) != forks:
            self.forget_the_dead()
        rsfpy_lock(&self.mutex)

    cdef inline void unlock(self) noexcept:
        rsfpy_unlock(&self.mutex)

    cdef void forget_the_dead(self) noexcept:
        # A forked child calls this. It clears the lines of waiting threads and renews the mutex,
        # because the waiting threads and the thread that held the mutex exist only in the parent.
        # Only the thread that forked, in a signal handler, may still wait.
        cdef int i
        cdef Waiter *waiter
        cdef Waiter *after
        rsfpy_lock(&forgetting)
        if self.forks != forks:
            for i in range(3):
                waiter = self.lines[i].first
                self.lines[i].first = self.lines[i].called = NULL
                while waiter != NULL:
                    after = waiter.next
                    if waiter.thread == survivor:
                        self.stand_in_line(i, waiter)
                    waiter = after
            rsfpy_renew(&self.mutex)
            rsf_store_rel_u32(&self.forks, forks)
        rsfpy_unlock(&forgetting)

    cdef inline PyObject *take(self) noexcept:
        cdef PyObject *element
        self.count -= 1
        if self.last_first:
            element = self.slots[(self.head + self.count) & self.mask]
        else:
            element = self.slots[self.head]
            self.head = (self.head + 1) & self.mask
        if self.count == 0 and self.mask >= KEPT_SLOTS:
            self.resize(FIRST_SLOTS)
        return element

    cdef bint resize(self, Py_ssize_t size) noexcept:
        cdef Py_ssize_t i
        cdef PyObject **slots
        size = max(size, FIRST_SLOTS)
        slots = <PyObject **> PyMem_RawCalloc(size, sizeof(PyObject *))
        if slots == NULL:
            return False
        for i in range(self.count):
            slots[i] = self.slots[(self.head + i) & self.mask]
        PyMem_RawFree(self.slots)
        self.slots, self.head, self.mask = slots, 0, size - 1
        return True

    cdef void give_up(self, Store *store) noexcept:
        store.slots, store.head = self.slots, self.head
        store.mask, store.count = self.mask, self.count
        self.slots, self.mask, self.head, self.count = NULL, -1, 0, 0

    cdef inline void come(self, int what, Waiter *me) noexcept:
        if me != NULL and self.lines[what].called == me:
            self.lines[what].called = NULL

    cdef inline bint must_stand_in_line(self, int what, Waiter *me) noexcept:
        cdef Waiter *other = self.lines[what].called
        if other == NULL:
            other = self.lines[what].first
        return other != NULL and other.in_vain >= PATIENCE and (me == NULL or not me.called)

    cdef inline void settle(self, int what, Waiter *me, Answer answer) noexcept:
        # Ends an attempt. If this thread must wait, puts its waiter `me` into the line. If there is
        # an element, wakes a thread in get(). If there is room, wakes a thread in put().
        if answer == WAIT and me != NULL:
            self.stand_in_line(what, me)
        if self.count > 0:
            call_one(&self.lines[GET])
        if self.count < self.bound:
            call_one(&self.lines[PUT])

    cdef void stand_in_line(self, int what, Waiter *me) noexcept:
        cdef Line *line = &self.lines[what]
        me.next = NULL
        if me.called:  # another thread was faster: this thread goes to the front of the line again
            me.called = False
            me.in_vain += 1
            me.next = line.first
            line.first = me
            if me.next == NULL:
                line.last = me
        elif line.first == NULL:
            line.first = line.last = me
        else:
            line.last.next = me
            line.last = me

    # -- waiting ----------------------------------------------------------------------------------

    def _waiting(self, int what):
        """Return how many threads wait in the line for ``what`` (PUT, GET or JOIN). For tests."""
        cdef int count = 0
        cdef Waiter *waiter
        self.lock()
        waiter = self.lines[what].first
        while waiter != NULL:
            count += 1
            waiter = waiter.next
        self.unlock()
        return count

    cdef Answer wait(self, int what, PyObject **element, object deadline) except *:
        cdef Answer answer
        cdef bint slept = False
        cdef Waiter *me = new_waiter()
        if me == NULL:
            raise MemoryError("no memory to wait")
        try:
            while True:
                answer = self.attempt(what, element, True, me)
                if answer != WAIT:
                    return answer
                slept = False
                try:
                    if sleep_on(me.event, deadline):
                        # Let signal handlers raise now. An exception after the call has taken an
                        # element out would lose this element.
                        PyErr_CheckSignals()
                        slept = True
                finally:
                    if not slept:
                        self.leave_line(what, me)
                if not slept:
                    return self.attempt(what, element, False, NULL)
        finally:
            PyThread_acquire_lock(me.event, 0)
            PyThread_release_lock(me.event)
            PyThread_free_lock(me.event)
            PyMem_RawFree(me)

    cdef inline Answer attempt(
        self, int what, PyObject **element, bint block, Waiter *me
    ) noexcept:
        if what == PUT:
            return self.try_put(element[0], block, me)
        if what == GET:
            return self.try_get(element, block, me)
        return self.try_join(me)

    cdef void leave_line(self, int what, Waiter *me) noexcept:
        cdef Waiter *before
        cdef Line *line = &self.lines[what]
        self.lock()
        if me.called:
            self.come(what, me)
        elif line.first == me:
            line.first = me.next
        else:
            before = line.first
            while before != NULL and before.next != me:
                before = before.next
            if before != NULL:
                before.next = me.next
                if line.last == me:
                    line.last = before
        self.settle(what, NULL, DONE)
        self.unlock()

    cdef Answer _put(self, object element, bint block, object timeout) except *:
        cdef PyObject *pointer = <PyObject *> element
        cdef Answer answer = self.try_put(pointer, block, NULL)
        if answer == WAIT and block:
            answer = self.wait(PUT, &pointer, deadline_of(timeout))
        if answer == NO_MEMORY:
            raise MemoryError("no memory for another element")
        return answer

    cdef Answer _get(self, PyObject **element, bint block, object timeout) except *:
        cdef Answer answer = self.try_get(element, block, NULL)
        if answer == WAIT and block:
            answer = self.wait(GET, element, deadline_of(timeout))
        return answer


cdef object deadline_of(object timeout):
    return None if timeout is None else monotonic() + timeout


cdef int check_timeout(object timeout) except -1:
    if not timeout >= 0:  # unlike ``timeout < 0``, this condition also refuses NaN
        raise ValueError("'timeout' must be a non-negative number")
    return 0


cdef inline object stolen(PyObject *element):
    result = <object> element
    Py_DECREF(result)
    return result


cdef class SimpleThreadQueue(ThreadQueue):

    def __init__(self):
        pass

    def put(self, item, block=True, timeout=None):
        """Put ``item`` in, without waiting.

        Args:
            item: The element.
            block: Has no effect; all queues have this argument.
            timeout: Has no effect.
        """
        self._put(item, False, None)

    def put_nowait(self, item):
        """Put ``item`` in, without waiting.

        Args:
            item: The element.
        """
        self._put(item, False, None)

    def get(self, bint block=True, timeout=None):
        """Take the oldest element out. First wait until there is an element.

        Args:
            block: Whether to wait.
            timeout: Seconds. Default: no limit.

        Raises:
            Empty: The queue is empty, or stays empty for ``timeout`` seconds.
        """
        cdef PyObject *element
        if timeout is not None and block:
            check_timeout(timeout)
        if self._get(&element, block, timeout) != DONE:
            raise Empty
        return stolen(element)

    def get_nowait(self):
        """Take the oldest element out, without waiting.

        Raises:
            Empty: There is no element.
        """
        cdef PyObject *element
        if self._get(&element, False, None) != DONE:
            raise Empty
        return stolen(element)

    def empty(self):
        """Whether the queue was empty a moment ago."""
        return self.count == 0

    def qsize(self):
        """The number of elements that were in the queue a moment ago."""
        return self.count


cdef class FullThreadQueue(ThreadQueue):

    def put(self, item, bint block=True, timeout=None):
        """Put ``item`` in. First wait for room.

        Args:
            item: The element.
            block: Whether to wait.
            timeout: Seconds. Default: no limit.

        Raises:
            Full: The queue is full, or stays full for ``timeout`` seconds.
            ShutDown: The queue was shut down.
        """
        cdef Answer answer
        if timeout is not None and block and self.bound != PY_SSIZE_T_MAX:
            check_timeout(timeout)
        answer = self._put(item, block, timeout)
        if answer == WAIT:
            raise Full
        if answer == STOPPED:
            raise ShutDown
        if answer == MUTEX:
            spec.Queue.put(self, item, block, timeout)

    def get(self, bint block=True, timeout=None):
        """Take an element out. First wait until there is an element.

        Args:
            block: Whether to wait.
            timeout: Seconds. Default: no limit.

        Raises:
            Empty: The queue is empty, or stays empty for ``timeout`` seconds.
            ShutDown: The queue was shut down, and is empty.
        """
        cdef PyObject *element
        cdef Answer answer
        if timeout is not None and block:
            check_timeout(timeout)
        answer = self._get(&element, block, timeout)
        if answer == WAIT:
            raise Empty
        if answer == STOPPED:
            raise ShutDown
        if answer == MUTEX:
            return spec.Queue.get(self, block, timeout)
        return stolen(element)

    def task_done(self):
        """Count one element that was taken out as done. See ``join``.

        Raises:
            ValueError: ``task_done`` was called more often than elements were put in.
        """
        cdef bint too_often
        self.lock()
        if self.has_mutex:
            self.unlock()
            return spec.Queue.task_done(self)
        too_often = self.unfinished <= 0
        if not too_often:
            self.unfinished -= 1
            if self.unfinished == 0:
                call_all(&self.lines[JOIN])
        self.unlock()
        if too_often:
            raise ValueError("task_done() called too many times")

    def join(self):
        """Wait until ``task_done`` was called for every element that was put in."""
        if self.wait(JOIN, NULL, None) == MUTEX:
            spec.Queue.join(self)

    def qsize(self):
        """The number of elements that were in the queue a moment ago."""
        return spec.Queue.qsize(self) if self.has_mutex else self.count

    def empty(self):
        """Whether the queue was empty a moment ago."""
        return spec.Queue.empty(self) if self.has_mutex else self.count == 0

    def full(self):
        """Whether the queue was full a moment ago."""
        return spec.Queue.full(self) if self.has_mutex else self.count >= self.bound

    def shutdown(self, immediate=False):
        """Let every ``put`` raise ``ShutDown`` from now on, and ``get`` once the queue is empty.

        Waiting threads are woken.

        Args:
            immediate: Empty the queue immediately, and count the dropped elements as done.
        """
        cdef Store dropped
        cdef int i
        dropped.count = 0
        dropped.slots = NULL
        self.lock()
        if self.has_mutex:
            self.unlock()
            return spec.Queue.shutdown(self, immediate)
        self.stopped = True
        if immediate:
            self.unfinished = max(0, self.unfinished - self.count)
            self.give_up(&dropped)
        for i in range(3):
            call_all(&self.lines[i])
        self.unlock()
        drop(&dropped)

    # -- attributes of the standard library's queue -----------------------------------------------

    def __init__(self, maxsize=0):
        self.maxsize = maxsize
        cls = type(self)
        if any(getattr(cls, hook) is not getattr(cls._plain, hook) for hook in HOOKS):
            self.has_mutex = True
            spec.Queue.__init__(self, maxsize)

    @property
    def maxsize(self):
        """The largest number of elements. 0 or less means no limit."""
        self.lock()
        maxsize = self._maxsize
        self.unlock()
        return maxsize

    @maxsize.setter
    def maxsize(self, maxsize):
        cdef Py_ssize_t bound = PY_SSIZE_T_MAX
        if 0 < maxsize < bound:
            bound = ceil(maxsize)
        self.lock()
        self.bound = bound
        # `previous` keeps the old value alive until unlock, as dropping it may run any code.
        previous, self._maxsize = self._maxsize, maxsize
        self.settle(PUT, NULL, DONE)
        self.unlock()

    @property
    def unfinished_tasks(self):
        """The number of elements that were put in and are not done."""
        return self.unfinished

    @unfinished_tasks.setter
    def unfinished_tasks(self, Py_ssize_t count):
        self.unfinished = count

    @property
    def is_shutdown(self):
        """Whether ``shutdown`` was called."""
        return self.stopped

    @is_shutdown.setter
    def is_shutdown(self, bint stopped):
        self.stopped = stopped

    def __setattr__(self, name, value):
        # Only the standard library's code uses hooks and conditions that were set on the instance.
        # So switch to this code.
        if name in HOOKS or name in OF_THE_MUTEX:
            self._take_the_mutex()
        PyObject_GenericSetAttr(self, name, value)

    def __copy__(self):
        """Return a queue that shares the container and the mutex, as in the standard library."""
        cdef FullThreadQueue other = type(self).__new__(type(self))
        self._take_the_mutex()
        other.has_mutex = other.takes_the_mutex = True
        other.maxsize, other.unfinished, other.stopped = self.maxsize, self.unfinished, self.stopped
        other.__dict__.update(self.__dict__)
        return other

    def _take_the_mutex(self):
        """Switch this queue to the standard library's code, with all elements and waiting threads.

        The switch is permanent.
        """
        cdef Store store
        cdef int i
        mutex = threading.Lock()
        with becoming, mutex:
            if self.has_mutex or self.takes_the_mutex:
                return
            self.takes_the_mutex = True
            self._init(self.maxsize)
            append = self.queue.append
            spec.add_conditions(self, mutex)
            self.lock()
            self.has_mutex = True
            self.give_up(&store)
            for i in range(3):
                call_all(&self.lines[i])
            self.unlock()
            for i in range(store.count):
                append(<object> store.slots[(store.head + i) & store.mask])
            drop(&store)


HOOKS = ("_init", "_qsize", "_put", "_get")
OF_THE_MUTEX = ("mutex", "not_empty", "not_full", "all_tasks_done")


class _OfTheMutex:
    """An attribute such as ``mutex``. Its use switches a queue to the standard library's code."""

    def __init__(self, name):
        self.name = name

    def __get__(self, queue, cls):
        if queue is not None:
            if self.name not in queue.__dict__:
                queue._take_the_mutex()
            if self.name in queue.__dict__:
                return queue.__dict__[self.name]
        raise AttributeError(self.name)


class _ContainerOfTheMutex(_OfTheMutex):
    """The attribute ``queue``: the container, which users may replace."""

    def __set__(self, queue, container):
        queue._take_the_mutex()
        queue.__dict__[self.name] = container


class Queue(FullThreadQueue, spec.Queue):
    """A first-in first-out queue between threads: ``queue.Queue``, in C.

    ``Queue(maxsize=0)`` makes a queue without a bound. Waiting threads are served in order of
    arrival. Other threads that find an element, or room, immediately may overtake them, but only a
    few times. A subclass that overrides ``_init``, ``_qsize``, ``_put`` or ``_get`` runs the
    standard library's code, and has its speed. So does a queue whose ``mutex``, conditions or
    container ``queue`` are used.
    """

    _plain = spec.Queue
    mutex = _OfTheMutex("mutex")
    not_empty = _OfTheMutex("not_empty")
    not_full = _OfTheMutex("not_full")
    all_tasks_done = _OfTheMutex("all_tasks_done")
    queue = _ContainerOfTheMutex("queue")


class LifoQueue(Queue, spec.LifoQueue):
    """A ``Queue`` that gives the last element first."""

    _plain = spec.LifoQueue

    def __init__(self, maxsize=0):
        (<ThreadQueue> self).last_first = True
        Queue.__init__(self, maxsize)


class PriorityQueue(Queue, spec.PriorityQueue):
    """A ``Queue`` that gives the smallest element first.

    Comparing elements runs Python code. So this class always uses the standard library's code.
    """

    queue = _OfTheMutex("queue")


class SimpleQueue(SimpleThreadQueue):
    """A queue without a bound. ``put`` never waits; finalizers and signal handlers may call it."""

    __slots__ = ("__weakref__",)
    __class_getitem__ = classmethod(GenericAlias)


# -- the garbage collector ------------------------------------------------------------------------

cdef void drop(Store *store) noexcept:
    cdef Py_ssize_t i
    for i in range(store.count):
        Py_DECREF_ptr(store.slots[(store.head + i) & store.mask])
    PyMem_RawFree(store.slots)


cdef traverseproc cython_traverse
cdef inquiry cython_clear


cdef int queue_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    # It is safe to read the queue here: while the garbage collector runs, no thread is between lock
    # and unlock. With a GIL, the collector's thread holds the GIL. Without a GIL, all other threads
    # are stopped at safe points.
    cdef ThreadQueue queue = <ThreadQueue> self
    cdef Py_ssize_t i
    cdef int stop
    for i in range(queue.count):
        stop = visit(queue.slots[(queue.head + i) & queue.mask], arg)
        if stop != 0:
            return stop
    return cython_traverse(self, visit, arg)


cdef int queue_clear(PyObject *self) noexcept:
    cdef Store store
    (<ThreadQueue> self).give_up(&store)
    drop(&store)
    return cython_clear(self)


cdef PyTypeObject *base_type = <PyTypeObject *> ThreadQueue
cython_traverse = rsfpy_traverse_of(base_type)
cython_clear = rsfpy_clear_of(base_type)
for queue_type in (ThreadQueue, SimpleThreadQueue, FullThreadQueue):
    rsfpy_set_traverse(<PyTypeObject *> queue_type, <void *> queue_traverse)
    rsfpy_set_clear(<PyTypeObject *> queue_type, <void *> queue_clear)
