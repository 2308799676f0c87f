# cython: language_level=3, boundscheck=False, wraparound=False
"""The window of overlapping calls: eager starts in C, results in the slots of a ring.

A call's first step runs here, inside a task object that asyncio does not know yet (see
``core/_eager.py``). As long as calls finish without suspending and nobody keeps the task,
one task object and one ``Call`` serve them all. A ``Call`` that was suspended is the coroutine
that its task drives, so its end is noticed without a callback through the loop.
"""

cimport cython
from cpython.contextvars cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit
from cpython.list cimport PyList_New
from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from rstreams_fast.core._cython._csrc cimport (
    rsf_demand_fulfil,
    rsf_demand_load,
    rsf_demand_request,
    rsf_ring,
    rsf_ring_commit,
    rsf_ring_init,
    rsf_ring_peek,
    rsf_ring_release,
    rsf_ring_reserve,
    rsf_ring_size,
    rsf_ring_slot,
    rsf_ring_slots,
)
from rstreams_fast.core._cython.demand cimport DemandCounter

import asyncio
from asyncio.tasks import _enter_task, _leave_task, current_task
from collections.abc import Coroutine

from rstreams_fast.core._common import (
    check_capacity,
    check_count,
    describe_callable,
    refuse_pickle,
)
from rstreams_fast.core._eager import (
    EagerTask,
    as_coroutine,
    hand_over,
    put_aside,
    retrieve,
    take_cancellation,
)


cdef extern from "Python.h":
    ctypedef int (*inquiry)(PyObject *)
    bint PyCoro_CheckExact(object)
    int PyIter_Send(PyObject *, PyObject *, PyObject **) except -1
    Py_ssize_t Py_REFCNT(PyObject *)
    void Py_INCREF_ptr "Py_INCREF"(PyObject *)
    void Py_DECREF_ptr "Py_DECREF"(PyObject *)
    void Py_XDECREF_ptr "Py_XDECREF"(PyObject *)
    void PyList_SET_ITEM_ptr "PyList_SET_ITEM"(PyObject *, Py_ssize_t, PyObject *)
    void Py_SET_SIZE(PyObject *, Py_ssize_t)
    const int PYGEN_RETURN
    const int PYGEN_NEXT


cdef extern from *:
    """
    #define rsfpy_traverse_of(type) ((type)->tp_traverse)
    #define rsfpy_clear_of(type) ((type)->tp_clear)
    #define rsfpy_set_traverse(type, f) ((type)->tp_traverse = (traverseproc)(f))
    #define rsfpy_set_clear(type, f) ((type)->tp_clear = (inquiry)(f))
    #define rsfpy_set_send(type, f) \
        ((type)->tp_as_async->am_send = (PySendResult (*)(PyObject *, PyObject *, PyObject **))(f))
    """
    traverseproc rsfpy_traverse_of(PyTypeObject *)
    inquiry rsfpy_clear_of(PyTypeObject *)
    void rsfpy_set_traverse(PyTypeObject *, void *)
    void rsfpy_set_clear(PyTypeObject *, void *)
    void rsfpy_set_send(PyTypeObject *, void *)


cdef object running_loop = asyncio._get_running_loop
cdef object initialise_task = asyncio.Task.__init__
cdef object cancel_task = asyncio.Task.cancel
cdef object add_done_callback = asyncio.Task.add_done_callback
cdef object new_task = EagerTask.__new__
cdef object CancelledError = asyncio.CancelledError


@cython.final
cdef class Call:
    """One call of a window's function; once it was suspended, the coroutine its task drives."""

    def introduce(self, task, /):
        """Make ``task``, in which the first step runs or ran, known to the loop."""
        self.introduced = True
        initialise_task(task, self, loop=self.window.loop, context=self.context)

    def send(self, value, /):
        cdef PyObject *outcome = NULL
        cdef int status = call_send(<PyObject *> self, <PyObject *> value, &outcome)
        result = <object> outcome
        Py_DECREF_ptr(outcome)
        if status == PYGEN_RETURN:
            raise StopIteration(result)
        return result

    def throw(self, raised, value=None, traceback=None, /):
        error = raised if value is None else value
        if self.finished or self.coro is None:
            raise error
        if self.suspended:
            self.suspended = False
            waits_for = self.waits_for
            self.waits_for = None
            if take_cancellation(error, waits_for):
                return hand_over(waits_for)
        try:
            return self.coro.throw(error)
        except StopIteration as stop:
            self._end(stop.value, None)
            raise
        except BaseException as failed:
            self._end(None, failed)
            raise

    def close(self):
        if self.coro is not None:
            self.coro.close()

    def __await__(self):
        raise RuntimeError("a call is driven by its task alone")

    def __getattr__(self, name):
        # What debuggers and task groups ask a task's coroutine: __qualname__, cr_frame, cr_code.
        return getattr(self.coro, name)

    cdef int _end(self, object result, object error) except -1:
        """The coroutine has ended: tell the window, keep what the task will ask for."""
        cdef CallWindow window = self.window
        task = self.task
        self.finished = True
        self.result = result
        self.error = error
        if not self.running:
            return 0
        self.running = False
        self.task = None
        item = self.item
        self.item = None
        window._forget(self)
        if error is None:
            window._finish(self, result)
        else:
            add_done_callback(task, retrieve)
            if isinstance(error, CancelledError):
                error = CancelledError(f"{describe_callable(window.fn)} was cancelled")
            window._fail(item, error)
        self.window = None
        return 0


cdef int call_send(PyObject *call, PyObject *value, PyObject **outcome) except -1:
    # The type's am_send: what a task's step calls, without a StopIteration at the end.
    cdef Call self = <Call> call
    cdef int status
    if self.suspended:
        self.suspended = False
        waits_for = self.waits_for
        self.waits_for = None
        if waits_for is not None:
            hand_over(waits_for)
        Py_INCREF_ptr(<PyObject *> waits_for)
        outcome[0] = <PyObject *> waits_for
        return PYGEN_NEXT
    if self.finished:
        if self.error is not None:
            raise self.error
        Py_INCREF_ptr(<PyObject *> self.result)
        outcome[0] = <PyObject *> self.result
        return PYGEN_RETURN
    if self.coro is None:
        raise RuntimeError("the call has not started")
    try:
        status = PyIter_Send(<PyObject *> self.coro, value, outcome)
    except BaseException as failed:
        self._end(None, failed)
        raise
    if status == PYGEN_RETURN:
        self._end(<object> outcome[0], None)
    return status


rsfpy_set_send(<PyTypeObject *> Call, <void *> call_send)
Coroutine.register(Call)


cdef class CallWindow:
    """Overlapping calls of an async function: ``concurrency`` at once, ``capacity`` in all.

    ``submit_many`` starts calls, each at once and without a task; only one that has to wait becomes
    a task of ``loop``. ``take`` gives results back, in the order of submission if ``ordered``, else
    as they come. A place in the window is held from submission until its result is taken. With
    ``spread`` an item is a tuple of positional arguments. With ``dedupe``, equal hashable items in
    flight share one call and its outcome; the followers take a place, but no part of
    ``concurrency``.

    After a suspended call has finished, ``on_ready`` is called by the loop, once for all that
    finish in one turn of it: results may be taken, and calls submitted. The first failure is kept
    in ``failure``, and nothing more is started.

    For the loop's thread only, and outside of tasks: from callbacks of the loop. Each call has a
    copy of the context that ``submit_many`` runs in.
    """

    def __cinit__(
        self,
        fn,
        *,
        loop,
        on_ready,
        concurrency,
        capacity,
        ordered=True,
        spread=False,
        dedupe=False,
    ):
        cdef uint64_t places
        if not callable(fn):
            raise TypeError(f"fn must be callable, got {type(fn).__name__}")
        self.fn = fn
        self.loop = loop
        self.on_ready = on_ready
        self.permit_counter = DemandCounter(check_count("concurrency", concurrency, 1))
        self.calls_allowed = rsf_demand_load(&self.permit_counter.demand)
        places = check_capacity("capacity", capacity)
        rsf_ring_init(&self.ring, places)
        self.results = <PyObject **> calloc(rsf_ring_slots(&self.ring), sizeof(PyObject *))
        if self.results == NULL:
            raise MemoryError(f"no memory for a window of {capacity} places")
        self.ordered = ordered
        self.spread = spread
        self.in_flight = {} if dedupe else None
        self.running_calls = {}

    def __dealloc__(self):
        if self.results != NULL:
            drop_all(&self.ring, self.results)
            free(self.results)

    @property
    def concurrency(self):
        """The bound on running calls."""
        return self.calls_allowed

    @property
    def capacity(self):
        """The bound on places."""
        return self.ring.capacity

    @property
    def permits(self):
        """How many more calls may run, as a demand counter."""
        return self.permit_counter

    @property
    def running(self):
        """How many calls have started and not finished."""
        return len(self.running_calls)

    @property
    def pending(self):
        """How many places are held: running, following or finished and not yet taken."""
        return self.places_held

    @property
    def ready(self):
        """How many results ``take`` would give now."""
        return self._ready(self.ring.capacity)

    def submit_many(self, items, start=0):
        """Start calls for ``items[start:]`` while there is room; return how many it took."""
        cdef Py_ssize_t first, index
        if not isinstance(items, (list, tuple)):
            raise TypeError(f"items must be a list or tuple, got {type(items).__name__}")
        position = check_count("start", start)
        if running_loop() is not self.loop:
            raise RuntimeError("submit_many must be called by the thread of the running loop")
        if current_task(self.loop) is not None:
            raise RuntimeError("submit_many must be called outside of tasks and of calls")
        if position >= len(items):
            return 0
        first = index = position
        try:
            while (
                index < len(items)
                and self.failure is None
                and not self.cancelled
                and self.places_held < self.ring.capacity
                and self._submit(items[index])
            ):
                index += 1
        finally:
            self._leave_spare()
        return index - first

    def take(self, max, /):
        """Take up to ``max`` results out."""
        cdef object wanted = check_count("max", max)
        cdef uint64_t count, index, i
        cdef PyObject **slot
        count = self._ready(self.ring.capacity if wanted > self.ring.capacity else wanted)
        cdef list taken = PyList_New(count)
        # Again: allocating may have run the collector, and so any code.
        i = self._ready(count)
        if i != count:
            Py_SET_SIZE(<PyObject *> taken, i)
            count = i
        rsf_ring_peek(&self.ring, count, &index)
        for i in range(count):
            slot = &self.results[rsf_ring_slot(&self.ring, index + i)]
            PyList_SET_ITEM_ptr(<PyObject *> taken, i, slot[0])
            slot[0] = NULL
        rsf_ring_release(&self.ring, count)
        self.places_held -= count
        return taken

    def cancel(self):
        """Start nothing more, drop all results and cancel the running calls.

        They end in their own time: ``on_ready`` is called, and ``running`` is 0 at last.
        """
        cdef Call call
        self.cancelled = True
        self.places_held = 0
        if self.in_flight is not None:
            self.in_flight.clear()
        drop_all(&self.ring, self.results)
        for call in list(self.running_calls):
            if call.task is not None:
                cancel_task(call.task)

    def __reduce__(self):
        refuse_pickle(self)

    # -- starting --------------------------------------------------------------------------------

    cdef bint _submit(self, object item) except -1:
        cdef Call leader = None
        cdef object key = None
        if self.in_flight is not None:
            try:
                leader = self.in_flight.get(item)
                key = item
            except Exception:
                pass  # not hashable, or not comparable: it has no equals
            if leader is not None:
                if leader.followers is None:
                    leader.followers = []
                leader.followers.append(self._hold())
                return True
        if rsf_demand_load(&self.permit_counter.demand) <= 0:
            return False
        if rsf_demand_fulfil(&self.permit_counter.demand, 1) < 0:
            return False
        self.started += 1
        self.max_running = max(self.max_running, <int64_t> len(self.running_calls) + 1)
        self._start(item, key, self._hold())
        return True

    cdef int _start(self, object item, object key, uint64_t place) except -1:
        cdef Call call = self._entered_call()
        cdef PyObject *outcome = NULL
        cdef int status = PYGEN_RETURN
        cdef object error = None
        cdef object result = None
        cdef object awaitable
        cdef object previous = call.context  # replaced first: dropping it may run any code
        call.context = PyContext_CopyCurrent()
        previous = None
        PyContext_Enter(call.context)
        try:
            awaitable = self.fn(*item) if self.spread else self.fn(item)
            if not PyCoro_CheckExact(awaitable):
                awaitable = as_coroutine(self.fn, awaitable)
            call.coro = awaitable
            status = PyIter_Send(<PyObject *> awaitable, <PyObject *> None, &outcome)
            result = <object> outcome
            Py_DECREF_ptr(outcome)
        except BaseException as raised:
            error = raised
        finally:
            PyContext_Exit(call.context)
        if status == PYGEN_NEXT:
            self._suspend(call, item, key, place, result)
            return 0
        rsf_demand_request(&self.permit_counter.demand, 1)
        if call.introduced or Py_REFCNT(<PyObject *> call.task) != self.references:
            # Somebody keeps the task, or has asked it for something: let it come to its end.
            call.finished = True
            call.result = result
            call.error = error
            self._retire_spare()
            call.task.introduce()
            add_done_callback(call.task, retrieve)
            call.task = None
            call.window = None
        else:
            call.coro = None
        if error is None:
            if not self.cancelled:
                self._place(place, result)
        elif isinstance(error, (Exception, CancelledError)):
            self._fail(item, error)
        else:
            raise error
        return 0

    cdef int _suspend(
        self, Call call, object item, object key, uint64_t place, object waits_for
    ) except -1:
        call.suspended = True
        call.running = True
        call.waits_for = None if waits_for is None else put_aside(waits_for)
        call.item = item
        call.place = place
        self.running_calls[call] = None
        self._retire_spare()
        if not call.introduced:
            call.task.call = None
            call.introduce(call.task)
        if self.cancelled:  # by the call itself
            cancel_task(call.task)
        elif key is not None and self.in_flight is not None:
            self.in_flight[key] = call
            call.leads = True
            call.key = key
        return 0

    # The spare call and its task are entered from its first use in a submit_many to the end of it,
    # and in no reference cycle between.

    cdef Call _entered_call(self):
        cdef Call call = self.spare
        if call is None:
            call = Call.__new__(Call)
            call.window = self
            call.task = new_task(EagerTask)
            self.spare = call
        if not self.entered:
            call.window = self
            call.task.call = call
            _enter_task(self.loop, call.task)
            self.entered = True
            self.references = Py_REFCNT(<PyObject *> call.task)
        return call

    cdef int _retire_spare(self) except -1:
        # It is a call of its own now.
        cdef Call call = self.spare
        self.spare = None
        self.entered = False
        _leave_task(self.loop, call.task)
        return 0

    cdef int _leave_spare(self) except -1:
        cdef Call call = self.spare
        if self.entered:
            self.entered = False
            _leave_task(self.loop, call.task)
            call.task.call = None
            call.window = None
            call.context = None
        return 0

    # -- places ----------------------------------------------------------------------------------

    cdef uint64_t _hold(self) except? 0:
        cdef uint64_t place = 0
        self.places_held += 1
        self.max_pending = max(self.max_pending, <int64_t> self.places_held)
        if self.ordered:
            rsf_ring_reserve(&self.ring, 1, &place)
            rsf_ring_commit(&self.ring, 1)
        return place

    cdef int _place(self, uint64_t place, object result) except -1:
        if not self.ordered:
            rsf_ring_reserve(&self.ring, 1, &place)
        Py_INCREF_ptr(<PyObject *> result)
        self.results[rsf_ring_slot(&self.ring, place)] = <PyObject *> result
        if not self.ordered:
            rsf_ring_commit(&self.ring, 1)
        return 0

    cdef uint64_t _ready(self, uint64_t limit):
        # Finished results at the head, at most `limit`; in the order of completion all are.
        cdef uint64_t index, count
        cdef uint64_t held = rsf_ring_peek(&self.ring, limit, &index)
        if not self.ordered:
            return held
        for count in range(held):
            if self.results[rsf_ring_slot(&self.ring, index + count)] == NULL:
                return count
        return held

    # -- the ends --------------------------------------------------------------------------------

    cdef int _forget(self, Call call) except -1:
        """A call that ran has ended."""
        self.running_calls.pop(call, None)
        if call.leads:
            call.leads = False
            self._unlead(call)
        rsf_demand_request(&self.permit_counter.demand, 1)
        if not self.notified:
            self.notified = True
            self.loop.call_soon(self._notify)
        return 0

    cdef int _unlead(self, Call call) except -1:
        if self.in_flight is None:
            return 0
        try:
            if self.in_flight.get(call.key) is call:
                del self.in_flight[call.key]
        except Exception:  # its comparison has begun to raise: find it by identity
            self.in_flight = {k: c for k, c in self.in_flight.items() if c is not call}
        call.key = None
        return 0

    cdef int _finish(self, Call call, object result) except -1:
        if self.cancelled:
            return 0
        self._place(call.place, result)
        if call.followers is not None:
            for place in call.followers:
                self._place(place, result)
            call.followers = None
        return 0

    cdef int _fail(self, object item, object error) except -1:
        if self.failure is None and not self.cancelled:
            self.failure = (item, error)
        return 0

    def _notify(self):
        self.notified = False
        self.on_ready()


# -- the garbage collector -----------------------------------------------------------------------

cdef void drop_all(rsf_ring *ring, PyObject **results) noexcept:
    cdef uint64_t index
    cdef PyObject *result
    while rsf_ring_peek(ring, 1, &index) != 0:
        result = results[rsf_ring_slot(ring, index)]
        results[rsf_ring_slot(ring, index)] = NULL
        rsf_ring_release(ring, 1)
        Py_XDECREF_ptr(result)


cdef traverseproc cython_traverse
cdef inquiry cython_clear


cdef int window_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    cdef rsf_ring *ring = &(<CallWindow> self).ring
    cdef PyObject **results = (<CallWindow> self).results
    cdef uint64_t index = ring.head
    cdef PyObject *result
    cdef int stop
    if results != NULL:
        while index != ring.tail:
            result = results[rsf_ring_slot(ring, index)]
            if result != NULL:
                stop = visit(result, arg)
                if stop != 0:
                    return stop
            index += 1
    return cython_traverse(self, visit, arg)


cdef int window_clear(PyObject *self) noexcept:
    if (<CallWindow> self).results != NULL:
        drop_all(&(<CallWindow> self).ring, (<CallWindow> self).results)
    return cython_clear(self)


cdef PyTypeObject *window_type = <PyTypeObject *> CallWindow
cython_traverse = rsfpy_traverse_of(window_type)
cython_clear = rsfpy_clear_of(window_type)
rsfpy_set_traverse(window_type, <void *> window_traverse)
rsfpy_set_clear(window_type, <void *> window_clear)
