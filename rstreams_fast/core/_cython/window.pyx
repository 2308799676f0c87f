# cython: language_level=3, boundscheck=False, wraparound=False
"""``CallWindow``: overlapping calls, whose first steps run in C; a ring holds their results.

The first step of a call runs inside a task object that asyncio does not know yet (see
``core/_eager.py``). While calls finish without suspending, and no other code refers to the task,
all these calls use one task object and one ``Call`` (the *spare*). Each call has its own context. A
``Call`` that was suspended is the coroutine of its task. So it notices its own end, and the loop
need not call a callback.

The *line* holds items that wait for ``concurrency``. The *turn* of a key belongs to the item of
this key that may be called; other items of the key wait for it. The *place* of an item is the index
of its result.
"""

cimport cython
from cpython.contextvars cimport (
    PyContext_Copy,
    PyContext_CopyCurrent,
    PyContext_Enter,
    PyContext_Exit,
)
from cpython.list cimport PyList_New
from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from rstreams_fast.core._cython._calls cimport *
from rstreams_fast.core._cython._csrc cimport *
from rstreams_fast.core._cython._python cimport *
from rstreams_fast.core._cython.demand cimport DemandCounter
from rstreams_fast.core._cython.ring cimport SpscRing, enter_producer, refuse_closed, ring_poll

import asyncio
import sys
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Coroutine
from weakref import getweakrefcount

from rstreams_fast._checks import check_capacity, check_count, check_seconds, describe_callable
from rstreams_fast.core._common import refuse_pickle
from rstreams_fast.core._eager import (
    EagerTask,
    as_coroutine,
    hand_over,
    put_aside,
    retrieve,
    take_cancellation,
)


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)


cdef extern from *:
    """
    #define rsfpy_set_send(type, f) \
        ((type)->tp_as_async->am_send = (PySendResult (*)(PyObject *, PyObject *, PyObject **))(f))

    static inline int
    rsfpy_has_attributes(PyObject *object)
    {
        PyTypeObject *type = Py_TYPE(object);
        PyObject **attributes =
            type->tp_dictoffset > 0 ? (PyObject **)((char *)object + type->tp_dictoffset)
                                    : _PyObject_GetDictPtr(object);
        return attributes != NULL && *attributes != NULL && PyDict_GET_SIZE(*attributes) != 0;
    }

    /* Whether the object has an attribute, or a weak reference to it exists. */
    static inline int
    rsfpy_is_marked(PyObject *object)
    {
        return *(PyObject **)((char *)object + Py_TYPE(object)->tp_weaklistoffset) != NULL ||
               rsfpy_has_attributes(object);
    }

    #define rsfpy_is_coroutine(object) Py_IS_TYPE(object, &PyCoro_Type)
    #define rsfpy_first_step(coroutine, outcome) \
        (PyCoro_Type.tp_as_async->am_send(coroutine, Py_None, outcome))

    static PyObject *
    rsfpy_call_spread(PyObject *function, PyObject *item)
    {
        PyObject *result, *arguments = PySequence_Tuple(item);
        if (arguments == NULL) {
            return NULL;
        }
        result = PyObject_Call(function, arguments, NULL);
        Py_DECREF(arguments);
        return result;
    }
    """
    void rsfpy_set_send(PyTypeObject *, void *)
    bint rsfpy_has_attributes(PyObject *) noexcept
    bint rsfpy_is_marked(PyObject *) noexcept
    bint rsfpy_is_coroutine(PyObject *)
    int rsfpy_first_step(PyObject *, PyObject **)  # leaves an exception set
    PyObject *rsfpy_call_spread(PyObject *, PyObject *) noexcept  # NULL: raised



cdef object running_loop = asyncio._get_running_loop
# Before Python 3.12, asyncio.current_task is a slow Python function. It looks the loop up in the
# dictionary _current_tasks. So look it up there directly.
cdef object current_task = (
    asyncio.tasks._current_tasks.get if sys.version_info < (3, 12) else asyncio.current_task
)
cdef object initialise_task = asyncio.Task.__init__
cdef object cancel_task = asyncio.Task.cancel
cdef object add_done_callback = asyncio.Task.add_done_callback
cdef object new_task = EagerTask.__new__
cdef object CancelledError = asyncio.CancelledError


cdef class CallWindow


@cython.final
cdef class Turn:
    """A key whose items are called one after the other. ``after`` has the items that wait."""
    cdef object key
    cdef object after  # a deque of waiting items, as entries for the window's line; None: no item


@cython.final
cdef class Call:
    """One call of a window's function. If it was suspended, it is the coroutine of its task."""

    cdef CallWindow window
    cdef object item
    cdef object key  # the call's key in in_flight
    cdef object coro
    cdef PyObject *starting  # the coroutine during its first step; a borrowed reference
    cdef object context  # the task's context
    cdef object own_context  # the context of a later call that runs in the same task
    cdef object task
    cdef object waits_for
    cdef object error
    cdef object result
    cdef bint introduced
    cdef bint kept  # whether other code referred to the task when the first step was suspended
    cdef bint suspended  # whether the first step was suspended, and the second has not begun
    cdef bint running  # whether the window counts this object as a running call
    cdef bint finished
    cdef bint leads  # whether the call is in in_flight, so that equal items may share the call
    cdef bint recovered  # whether the coroutine of ``recover`` has replaced the call's coroutine
    cdef Turn turn
    cdef uint64_t place
    cdef list followers  # the places of equal items that share this call

    def introduce(self, task, /):
        """Initialise ``task``, and make it known to the loop.

        The first step of the call runs, or has run, with this object as its current task.
        """
        if self.window is None:
            raise RuntimeError("a call that does not run has no task")
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
        context = self.own_context
        try:
            if context is None:
                return self.coro.throw(error)
            PyContext_Enter(context)
            try:
                return self.coro.throw(error)
            finally:
                PyContext_Exit(context)
        except StopIteration as stop:
            tell_result(self.window, self.item, stop.value)
            self._end(stop.value, None)
            raise
        except BaseException as failed:
            other = self._recover(failed)
            if other is None:
                self._end(None, failed)
                raise
        self.coro = other
        return self.send(None)

    def close(self):
        if self.coro is not None:
            self.coro.close()

    def __await__(self):
        raise RuntimeError("a call is driven by its task alone")

    def __getattr__(self, name):
        # Debuggers and task groups read __qualname__, cr_frame and cr_code of a task's coroutine.
        return getattr(self.coro if self.starting == NULL else <object> self.starting, name)

    cdef bint _can_go_on(self) except -1:
        """Whether this call's task may make the next call. Does not check the task's own state.

        ``_left_nothing`` checks the state of the task.
        """
        cdef CallWindow window = self.window
        return (
            self.running
            and not self.kept
            and window.in_flight is None  # with ``dedupe`` other items may share this call
            and window.line
            and window.failure is None
            and not window.cancelled
            and rsf_demand_load(&window.permit_counter.demand) >= 0
            and Py_REFCNT(<PyObject *> self.task) <= window.step_references
        )

    cdef bint _left_nothing(self) except -1:
        """Whether no other code refers to the task, and the call has not changed the task."""
        return (
            not rsfpy_has_attributes(<PyObject *> self.task)
            and getweakrefcount(self.task) <= self.window.step_weak_references
            and self.task.cancelling() == 0
            and not self.task._must_cancel
        )

    cdef int _go_on(self, PyObject **outcome) except -1:
        """After the end of this call, call the function for waiting items.

        Stop when such a call is suspended.
        """
        cdef CallWindow window = self.window
        cdef int status = PYGEN_RETURN
        while status == PYGEN_RETURN:
            tell_result(window, self.item, <object> outcome[0])
            if self.turn is not None:
                window._pass_turn_on(self, self.item)
            if self._can_go_on():
                self.coro = None  # dropping it may run any code, which the check below must see
                self.item = None
                self.own_context = None
            if not (self._can_go_on() and self._left_nothing()):
                self._end(<object> outcome[0], None)
                return PYGEN_RETURN
            place_result(window, self.place, outcome[0])
            outcome[0] = NULL
            tell_end(window)
            window._notify_in_time()
            self.item, _, self.place, self.turn = window.line.popleft()
            self.recovered = False
            window.started += 1
            self.own_context = PyContext_Copy(window.made_in)
            PyContext_Enter(self.own_context)
            try:
                self.coro = as_coroutine(window.fn, window._called(self.item))
                status = PyIter_Send(self.coro, None, outcome)
            finally:
                PyContext_Exit(self.own_context)
        return status

    cdef object _recover(self, object error):
        """Return the coroutine of ``recover`` that replaces the failed coroutine, or ``None``."""
        if self.window is None or self.recovered or not self.running:
            return None
        other = self.window._recovering(self.item, error)
        self.recovered = other is not None
        return other

    cdef int _end(self, object result, object error) except -1:
        """End the call: store its result or error for the task, and inform the window."""
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
        tell_end(window)
        if error is None:
            window._finish(self, result)
        else:
            add_done_callback(task, retrieve)
            if isinstance(error, CancelledError):
                error = CancelledError(f"{describe_callable(window.fn)} was cancelled")
            window._fail(item, error)
        if self.turn is not None:  # _pass_turn_on comes last, because it calls user code
            window._pass_turn_on(self, item)
        self.window = None
        return 0


cdef int call_send(PyObject *call, PyObject *value, PyObject **outcome) except -1:
    # This is the C slot am_send of the type Call. Each step of a task calls am_send. When the call
    # has ended, am_send returns the result directly, without a StopIteration.
    cdef Call self = <Call> call
    cdef int status
    if self.suspended:
        self.suspended = False
        waits_for = self.waits_for
        self.waits_for = None
        if waits_for is not None:
            hand_over(waits_for)
        if self.window is not None and self.window.ahead != 0 and not self.kept:
            self.window._learn_from(self)
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
    outcome[0] = NULL
    try:
        if self.own_context is None:
            status = PyIter_Send(self.coro, <object> value, outcome)
        else:
            PyContext_Enter(self.own_context)
            try:
                status = PyIter_Send(self.coro, <object> value, outcome)
            finally:
                PyContext_Exit(self.own_context)
        if status == PYGEN_RETURN:
            status = self._go_on(outcome)
    except BaseException as failed:
        Py_XDECREF_ptr(outcome[0])  # after an exception there is no result
        outcome[0] = NULL
        other = self._recover(failed)
        if other is None:
            self._end(None, failed)
            raise
    else:
        return status
    self.coro = other
    return call_send(call, <PyObject *> None, outcome)


rsfpy_set_send(<PyTypeObject *> Call, <void *> call_send)
Coroutine.register(Call)


# The inline functions below run once for each call of the user's function. They are not methods,
# because the C compiler would not inline methods.

cdef inline Call entered_call(CallWindow self):
    # Returns the spare (the Call that is used again and again), ready for a first step. The first
    # use within a submit_many makes the spare's task asyncio's current task. Later uses only give
    # the spare a new context. At the end of submit_many, _leave_spare undoes both, so that no
    # reference cycle stays.
    cdef Call call = self.spare
    if not self.entered:
        return self._enter_call(call)
    PyContext_Exit(call.context)
    self._enter_context(call)
    return call


cdef inline bint is_kept(CallWindow self, Call call) noexcept:
    # Returns whether the next call needs a new task, because other code refers to this call's task
    # or has used it, or the call has changed it.
    return (
        call.introduced
        or Py_REFCNT(<PyObject *> call.task) != self.references
        or rsfpy_is_marked(<PyObject *> call.task)
    )


cdef inline bint submit_one(CallWindow self, object item, bint permitted) except -1:
    if self.in_flight is not None:
        return self._submit_or_follow(item, permitted)
    if self.key_of is not None:
        return self._submit_in_turn(item, None)
    if self.ahead != 0 and not permitted:
        if self.line or rsf_demand_load(&self.permit_counter.demand) <= 0:
            return self._stand_in_line(item)
    elif not permitted and rsf_demand_load(&self.permit_counter.demand) <= 0:
        return False
    self._start(item, None, hold(self), None)
    return True


cdef inline uint64_t hold(CallWindow self) noexcept:
    # Reserves a place in the window for an item, and returns it. If results come in order, it is
    # the index of the item's slot in the ring of results. Otherwise it is the number of the item.
    cdef uint64_t place
    with cython.critical_section(self):
        self.places_held += 1
        if <int64_t> self.places_held > self.max_pending:
            self.max_pending = self.places_held
        place = self.submitted
        self.submitted += 1
        if self.ordered:
            rsf_ring_reserve(&self.ring, 1, &place)
            rsf_ring_commit(&self.ring, 1)
    return place


cdef inline int place_result(CallWindow self, uint64_t place, PyObject *result) except -1:
    # Stores the result of the item at `place`. Steals the reference to `result`.
    if self.cancelled:
        Py_DECREF_ptr(result)
        return 0
    cdef uint64_t index = place
    with cython.critical_section(self):
        if self.ordered:
            self.results[rsf_ring_slot(&self.ring, place)] = result
        else:
            rsf_ring_reserve(&self.ring, 1, &index)
            self.results[rsf_ring_slot(&self.ring, index)] = result
            self.numbers[rsf_ring_slot(&self.ring, index)] = place
            rsf_ring_commit(&self.ring, 1)
    return 0


cdef inline void tell_end(CallWindow self) noexcept:
    if self.on_call_end is not None:
        self.on_call_end()


cdef inline void tell_result(CallWindow self, object item, object result) noexcept:
    if self is not None and self.on_result is not None:
        self.on_result(item, result)


@cython.final
cdef class CallWindow:
    cdef object fn
    cdef rsfpy_callee callee  # borrowed from fn
    cdef object loop
    cdef object on_ready
    cdef object on_call_end
    cdef object recover
    cdef object on_result
    cdef int64_t calls_allowed
    cdef DemandCounter permit_counter
    cdef rsf_ring ring
    cdef PyObject **results  # owned references; NULL in a slot whose result is still awaited
    cdef uint64_t *numbers  # for each slot of `results`: the item's number; NULL if ``ordered``
    cdef bint ordered
    cdef bint spread
    cdef dict in_flight
    cdef dict running_calls  # the keys are the running calls, in the order of submission
    cdef uint64_t places_held
    cdef uint64_t submitted
    cdef Py_ssize_t ahead
    cdef Py_ssize_t enough  # while so many items wait, on_ready may be delayed by ``patience``
    cdef object patience
    cdef object timer  # the loop's timer while on_ready is delayed by ``patience``
    cdef object line  # for each item that waits for ``concurrency``: the arguments of `_start`
    cdef object key_of
    cdef dict turns  # maps each key to its Turn
    cdef object made_in  # the context in which the window was made
    # How many references and weak references to a task exist within a step of the task, if only
    # this window and asyncio refer to the task.
    cdef Py_ssize_t step_references
    cdef Py_ssize_t step_weak_references
    cdef bint notified
    cdef bint cancelled
    cdef bint submitting
    cdef Call spare  # the Call, with a task, that the next first step uses
    cdef bint entered  # whether the spare's task is asyncio's current task, and its context entered
    cdef Py_ssize_t references  # to the spare's task, if only this window and asyncio refer to it
    cdef readonly object failure
    cdef public object on_further_failure
    cdef readonly int64_t max_running
    cdef readonly int64_t max_pending
    cdef readonly int64_t started
    cdef object __weakref__

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
        key=None,
        ahead=0,
        patience=0.0,
        recover=None,
        on_result=None,
    ):
        cdef uint64_t places
        self.call_with(fn)
        self.loop = loop
        self.on_ready = on_ready
        self.recover = recover
        self.on_result = on_result
        self.permit_counter = DemandCounter(check_count("concurrency", concurrency, 1))
        self.calls_allowed = rsf_demand_load(&self.permit_counter.demand)
        places = check_capacity("capacity", capacity)
        rsf_ring_init(&self.ring, places)
        self.results = <PyObject **> calloc(rsf_ring_slots(&self.ring), sizeof(PyObject *))
        if self.results == NULL:
            raise MemoryError(f"no memory for a window of {capacity} places")
        self.ordered = ordered
        if not ordered:
            self.numbers = <uint64_t *> calloc(rsf_ring_slots(&self.ring), sizeof(uint64_t))
            if self.numbers == NULL:
                raise MemoryError(f"no memory for a window of {capacity} places")
        self.spread = spread
        self.in_flight = {} if dedupe else None
        self.running_calls = {}
        if key is not None and not callable(key):
            raise TypeError(f"key must be callable, got {type(key).__name__}")
        self.key_of = key
        self.turns = {}
        self.ahead = 0 if dedupe else min(check_count("ahead", ahead), PY_SSIZE_T_MAX)
        self.patience = check_seconds("patience", patience)
        self.enough = max(1, self.ahead // 2) if self.patience else PY_SSIZE_T_MAX
        if key is not None:
            self.ahead = places  # any number of items may wait for earlier items of their key
        self.line = deque()
        self.made_in = PyContext_CopyCurrent()
        self.step_references = self.step_weak_references = PY_SSIZE_T_MAX

    def __dealloc__(self):
        if self.results != NULL:
            drop_all(&self.ring, self.results)
            free(self.results)
        free(self.numbers)

    @property
    def concurrency(self):
        return self.calls_allowed

    @property
    def capacity(self):
        return self.ring.capacity

    @property
    def permits(self):
        return self.permit_counter

    @property
    def running(self):
        return len(self.running_calls)

    @property
    def pending(self):
        return self.places_held

    @property
    def ready(self):
        return self._ready(self.ring.capacity)

    def call_with(self, fn, on_call_end=None, /):
        if not callable(fn):
            raise TypeError(f"fn must be callable, got {type(fn).__name__}")
        self.fn = fn
        self.callee = rsfpy_take_apart(<PyObject *> fn)
        self.on_call_end = on_call_end

    def submit_many(self, items, start=0):
        cdef Py_ssize_t first, index
        cdef int64_t position = rsfpy_plain_count(start, 0)
        if not isinstance(items, (list, tuple)):
            raise TypeError(f"items must be a list or tuple, got {type(items).__name__}")
        if position < 0:
            position = min(check_count("start", start), INT64_MAX)
        first = index = min(position, <int64_t> PY_SSIZE_T_MAX)
        self._begin_submitting("submit_many")
        try:
            while (
                index < len(items)
                and self.failure is None
                and not self.cancelled
                and self.places_held < self.ring.capacity
                and submit_one(self, items[index], False)
            ):
                index += 1
        finally:
            self._end_submitting()
        return index - first

    def submit_from(self, SpscRing ring not None, max, /):
        cdef int64_t wanted = rsfpy_plain_count(max, 0)
        cdef int64_t left
        cdef PyObject *element
        if wanted < 0:
            wanted = min(check_count("max", max), INT64_MAX)
        left = wanted
        self._begin_submitting("submit_from")
        try:
            while (
                left > 0
                and self.failure is None
                and not self.cancelled
                and self.places_held < self.ring.capacity
                and self._has_room()
            ):
                element = ring_poll(ring)
                if element == NULL:
                    break
                item = <object> element
                Py_DECREF_ptr(element)
                left -= 1
                if self.cancelled:  # ring_poll wakes the ring's producer, which may call cancel()
                    break
                submit_one(self, item, self.ahead == 0)
        finally:
            self._end_submitting()
        return wanted - left

    def take_into(self, SpscRing ring not None, max, /):
        cdef int64_t wanted = rsfpy_plain_count(max, 0)
        cdef uint64_t count, index, into, i
        cdef PyObject **slot
        if wanted < 0:
            wanted = min(check_count("max", max), INT64_MAX)
        enter_producer(ring)
        if rsf_ring_is_closed(&ring.ring):
            rsf_ring_leave_producer(&ring.ring)
            refuse_closed("take_into")
        with cython.critical_section(self):
            count = 0 if self.cancelled else rsf_ring_peek(&self.ring, wanted, &index)
            count = rsf_ring_reserve(&ring.ring, count, &into)
            for i in range(count):
                slot = &self.results[rsf_ring_slot(&self.ring, index + i)]
                if slot[0] == NULL or slot[0] == <PyObject *> None:
                    count = i
                    break
                ring.slots[rsf_ring_slot(&ring.ring, into + i)] = slot[0]
                slot[0] = NULL
            rsf_ring_release(&self.ring, count)
            self.places_held -= count
        rsf_ring_commit(&ring.ring, count)
        rsf_ring_leave_producer(&ring.ring)
        if count != 0 and rsfpy_take_waiting_consumer(&ring.ring):
            ring.wake_consumer()
        return count

    def take(self, max, /):
        cdef int64_t wanted = rsfpy_plain_count(max, 0)
        cdef uint64_t count, index, i
        cdef PyObject **slot
        if wanted < 0:
            wanted = min(check_count("max", max), INT64_MAX)
        count = self._ready(wanted)
        cdef list taken = PyList_New(count)
        # Without a GIL, another thread may call take() at the same time. That is a mistake of the
        # user, but must not corrupt memory.
        with cython.critical_section(self):
            # Count the results again. Making the list may have run the garbage collector, and so
            # any code. This code may have taken results or cancelled the window.
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

    def take_numbered(self, max, /):
        cdef int64_t wanted = rsfpy_plain_count(max, 0)
        cdef uint64_t count, index, first, i
        if wanted < 0:
            wanted = min(check_count("max", max), INT64_MAX)
        with cython.critical_section(self):
            count = self._ready(wanted)
            rsf_ring_peek(&self.ring, count, &index)
            first = self.submitted - self.places_held
            numbers = [
                first + i if self.ordered else self.numbers[rsf_ring_slot(&self.ring, index + i)]
                for i in range(count)
            ]
        # Making the list may have run the garbage collector, and so any code: see take().
        results = self.take(count)
        return numbers[:len(results)], results

    def cancel(self):
        cdef Call call
        self.cancelled = True
        self.places_held = 0
        self.line.clear()
        self.turns.clear()
        if self.in_flight is not None:
            self.in_flight.clear()
        with cython.critical_section(self):
            drop_all(&self.ring, self.results)
        for call in list(self.running_calls):
            call.turn = None  # drops the references to the items that wait for this call
            if call.task is not None:
                cancel_task(call.task)

    def __reduce__(self):
        refuse_pickle(self)

    # -- starting --------------------------------------------------------------------------------

    cdef int _begin_submitting(self, str call) except -1:
        if running_loop() is not self.loop:
            raise RuntimeError(f"{call} must be called by the thread of the running loop")
        if self.submitting or current_task(self.loop) is not None:
            raise RuntimeError(f"{call} must be called outside of tasks and of calls")
        self.submitting = True
        return 0

    cdef int _end_submitting(self) except -1:
        self.submitting = False
        self._leave_spare()
        return 0

    cdef bint _submit_or_follow(self, object item, bint permitted) except -1:
        cdef Call leader = None
        cdef object shared = None
        try:
            leader = self.in_flight.get(item)
            shared = item
        except Exception:
            pass  # ``hash`` or ``==`` of the item raised: the item shares no call
        if leader is not None:
            if leader.followers is None:
                leader.followers = []
            leader.followers.append(hold(self))
            return True
        if self.key_of is not None:
            return self._submit_in_turn(item, shared)
        if not permitted and rsf_demand_load(&self.permit_counter.demand) <= 0:
            return False
        self._start(item, shared, hold(self), None)
        return True

    cdef bint _submit_in_turn(self, object item, object shared) except -1:
        """Call the function for the item: now, or when the earlier items of its key are done."""
        cdef Turn turn = None
        cdef Turn first = None
        cdef uint64_t place
        if rsf_demand_load(&self.permit_counter.demand) < 0:
            return False
        self._leave_spare()  # ``key`` is user code: do not run it in a call's task and context
        place = hold(self)
        try:
            key = self.key_of(item)
            if self.cancelled:
                return True
            turn = self.turns.get(key)
            if turn is None:
                first = Turn.__new__(Turn)
                first.key = key
                self.turns[key] = first
        except Exception as raised:
            self._fail(item, raised)
            return True
        if turn is not None:
            if turn.after is None:
                turn.after = deque()
            turn.after.append((item, shared, place))
        elif self.line or rsf_demand_load(&self.permit_counter.demand) <= 0:
            self.line.append((item, shared, place, first))
        else:
            self._start(item, shared, place, first)
        return True

    cdef int _pass_turn_on(self, Call call, object item) except -1:
        """After the end of ``call``, let the next item of its key be called."""
        cdef Turn turn = call.turn
        call.turn = None
        if self.cancelled:
            return 0
        if turn.after:
            following, shared, place = turn.after.popleft()
            self.line.append((following, shared, place, turn))
            return 0
        try:
            if self.turns.pop(turn.key, None) is not turn:
                raise RuntimeError("key: what it gave for an item is no longer equal to itself")
        except Exception as raised:
            self._fail(item, raised)
        return 0

    cdef bint _has_room(self) except -1:
        cdef int64_t permits = rsf_demand_load(&self.permit_counter.demand)
        if permits > 0 and not self.line:  # a permit is for the first item in the line, if any
            return True
        return permits >= 0 and len(self.line) < self.ahead

    cdef bint _stand_in_line(self, object item) except -1:
        if len(self.line) >= self.ahead or rsf_demand_load(&self.permit_counter.demand) < 0:
            return False
        self.line.append((item, None, hold(self), None))
        return True

    cdef int _start_line(self) except -1:
        """Start calls for the items in the line, as long as ``concurrency`` allows."""
        while (
            self.line
            and self.failure is None
            and not self.cancelled
            and rsf_demand_load(&self.permit_counter.demand) > 0
        ):
            item, shared, place, turn = self.line.popleft()
            self._start(item, shared, place, turn)
        return 0

    cdef int _learn_from(self, Call call) except -1:
        """Store how many references a task has if no other code refers to it."""
        self.step_references = min(self.step_references, Py_REFCNT(<PyObject *> call.task))
        self.step_weak_references = min(self.step_weak_references, getweakrefcount(call.task))
        return 0

    cdef object _called(self, object item):
        cdef PyObject *awaitable
        fn = self.fn  # this reference keeps fn alive if the call replaces self.fn
        if self.spread:
            awaitable = rsfpy_call_spread(<PyObject *> fn, <PyObject *> item)
        else:
            awaitable = rsfpy_call_one(&self.callee, <PyObject *> item)
        if awaitable == NULL:
            raise_what_is_set()
        result = <object> awaitable
        Py_DECREF_ptr(awaitable)
        return result

    cdef int _start(self, object item, object key, uint64_t place, Turn turn) except -1:
        cdef Call call = entered_call(self)
        cdef PyObject *outcome = NULL
        cdef PyObject *awaitable
        cdef int status = PYGEN_ERROR
        self.started += 1
        call.turn = turn
        fn = self.fn  # this reference keeps fn alive if the call replaces self.fn
        if self.spread:
            awaitable = rsfpy_call_spread(<PyObject *> fn, <PyObject *> item)
        else:
            awaitable = rsfpy_call_one(&self.callee, <PyObject *> item)
        if awaitable != NULL:
            call.starting = awaitable
            if rsfpy_is_coroutine(awaitable):
                status = rsfpy_first_step(awaitable, &outcome)
            else:
                status = call_first_step(fn, call, &outcome)
            if call.starting != NULL and (status != PYGEN_RETURN or is_kept(self, call)):
                call.coro = <object> call.starting
            call.starting = NULL
            Py_DECREF_ptr(awaitable)  # may run any code, which the check below must see
        if status == PYGEN_RETURN and not is_kept(self, call):
            tell_result(self, item, <object> outcome)
            place_result(self, place, outcome)
            tell_end(self)
            if turn is not None:
                self._pass_turn_on(call, item)
        elif status == PYGEN_NEXT:
            waits_for = <object> outcome
            Py_DECREF_ptr(outcome)
            self._suspend(call, item, key, place, waits_for)
        else:
            self._first_step_ended(call, item, key, place, outcome)
        return 0

    cdef int _first_step_ended(
        self, Call call, object item, object key, uint64_t place, PyObject *outcome
    ) except -1:
        """End a call that has failed, or whose task is referred to by other code."""
        cdef object error = None
        cdef object result = None
        if outcome == NULL:
            try:
                raise_what_is_set()
            except BaseException as raised:
                error = raised
            other = self._recovering(item, error)
            if other is not None:
                return self._begin_recovery(call, item, key, place, other)
        else:
            result = <object> outcome
            Py_DECREF_ptr(outcome)
        return self._first_step_was(call, item, place, result, error)

    cdef object _recovering(self, object item, object error):
        """Return the coroutine of ``recover`` that replaces a failed call, or ``None``."""
        if self.recover is None or self.cancelled or not isinstance(error, Exception):
            return None
        try:
            return self.recover(item, error)
        except Exception as raised:
            return failed_with(raised)

    cdef int _begin_recovery(
        self, Call call, object item, object key, uint64_t place, object coro
    ) except -1:
        cdef PyObject *outcome = NULL
        call.coro = coro
        call.recovered = True
        try:
            status = PyIter_Send(coro, None, &outcome)
        except BaseException as raised:
            call.recovered = False
            return self._first_step_was(call, item, place, None, raised)
        result = <object> outcome
        Py_DECREF_ptr(outcome)
        if status == PYGEN_NEXT:
            return self._suspend(call, item, key, place, result)
        call.recovered = False
        return self._first_step_was(call, item, place, result, None)

    cdef int _first_step_was(
        self, Call call, object item, uint64_t place, object result, object error
    ) except -1:
        if not is_kept(self, call):
            coro = call.coro
            call.coro = None
            coro = None  # dropping the coroutine may run any code, which the check below must see
        if is_kept(self, call):  # other code refers to the task: let asyncio run and end the task
            call.finished = True
            call.result = result
            call.error = error
            self._retire_spare()
            call.task.introduce()
            add_done_callback(call.task, retrieve)
            call.task = None
            call.window = None
        tell_end(self)
        if call.turn is not None:
            self._pass_turn_on(call, item)
        if error is None:
            tell_result(self, item, result)
            Py_INCREF_ptr(<PyObject *> result)
            place_result(self, place, <PyObject *> result)
            return 0
        self._fail(item, error)
        if not isinstance(error, (Exception, CancelledError)):
            self._notify_soon()  # if the loop gets the exception, on_ready informs the user
            raise error
        return 0

    cdef int _suspend(
        self, Call call, object item, object key, uint64_t place, object waits_for
    ) except -1:
        if waits_for is not None:
            try:
                waits_for = put_aside(waits_for)
            except BaseException as raised:  # put_aside cannot set the flag: it is no real future
                return self._first_step_was(call, item, place, None, raised)
        rsf_demand_fulfil(&self.permit_counter.demand, 1)  # only a suspended call needs a permit
        call.suspended = True
        call.running = True
        call.waits_for = waits_for
        call.item = item
        call.place = place
        self.running_calls[call] = None
        call.kept = is_kept(self, call)
        self._retire_spare()
        if not call.introduced:
            call.task.call = None
            call.introduce(call.task)
        if self.cancelled:  # the first step of this call has cancelled the window
            cancel_task(call.task)
        elif key is not None and self.in_flight is not None:
            self.in_flight[key] = call
            call.leads = True
            call.key = key
        return 0

    cdef Call _enter_call(self, Call call):
        if call is None:
            call = Call.__new__(Call)
            call.task = new_task(EagerTask)
            self.spare = call
        # Update max_running here, not for each call. Only a call that is suspended makes the number
        # of running calls grow, and after each such call this method runs again.
        self.max_running = max(self.max_running, <int64_t> len(self.running_calls) + 1)
        call.window = self
        call.task.call = call
        self._enter_context(call)
        _enter_task(self.loop, call.task)
        self.entered = True
        self.references = Py_REFCNT(<PyObject *> call.task)
        return call

    cdef int _enter_context(self, Call call) except -1:
        cdef object context = call.context
        call.context = None
        context = None  # dropping it may run any code, which must not run in the new context
        context = PyContext_CopyCurrent()
        PyContext_Enter(context)
        call.context = context
        return 0

    cdef int _retire_spare(self) except -1:
        # The spare was suspended, or other code refers to its task. From now on, it keeps its task
        # and context, and the next call gets new ones.
        cdef Call call = self.spare
        self.spare = None
        self.entered = False
        _leave_task(self.loop, call.task)
        PyContext_Exit(call.context)  # later steps of the task enter this context again
        return 0

    cdef int _leave_spare(self) except -1:
        cdef Call call = self.spare
        if self.entered:
            self.entered = False
            _leave_task(self.loop, call.task)
            call.task.call = None
            call.window = None
            PyContext_Exit(call.context)
            call.context = None
        return 0

    # -- places ----------------------------------------------------------------------------------

    cdef uint64_t _ready(self, uint64_t limit):
        # Returns how many results may be taken now, at most `limit`. After a cancel, returns 0. If
        # results come in order, the first item without a result holds back all later results.
        cdef uint64_t index, count
        if self.cancelled:
            return 0
        cdef uint64_t held = rsf_ring_peek(&self.ring, limit, &index)
        if not self.ordered:
            return held
        for count in range(held):
            if self.results[rsf_ring_slot(&self.ring, index + count)] == NULL:
                return count
        return held

    # -- the ends --------------------------------------------------------------------------------

    cdef int _forget(self, Call call) except -1:
        """Remove a call that has ended from the running calls."""
        self.running_calls.pop(call, None)
        rsf_demand_request(&self.permit_counter.demand, 1)
        self._notify_soon()
        if call.leads:
            call.leads = False
            self._unlead(call)  # comes last, because it calls ``hash`` and ``==``, user code
        return 0

    cdef int _unlead(self, Call call) except -1:
        if self.in_flight is None:
            return 0
        try:
            if self.in_flight.get(call.key) is call:
                del self.in_flight[call.key]
        except Exception:  # ``==`` or ``hash`` of the item raised: remove the call by identity
            try:
                self.in_flight = {k: c for k, c in self.in_flight.items() if c is not call}
            except Exception:  # another item raised, too: let no new item share a running call
                self.in_flight = {}
        call.key = None
        return 0

    cdef int _finish(self, Call call, object result) except -1:
        Py_INCREF_ptr(<PyObject *> result)
        place_result(self, call.place, <PyObject *> result)
        if call.followers is not None:
            for place in call.followers:
                Py_INCREF_ptr(<PyObject *> result)
                place_result(self, place, <PyObject *> result)
            call.followers = None
        return 0

    cdef int _fail(self, object item, object error) except -1:
        if self.failure is None and not self.cancelled:
            self.failure = (item, error)
        elif self.on_further_failure is not None and (
            self.failure is None or self.failure[1] is not error
        ):
            self.on_further_failure(error)
        return 0

    cdef int _notify_soon(self) except -1:
        if not self.notified:
            self.notified = True
            self.loop.call_soon(self._notify, context=self.made_in)
        return 0

    cdef int _notify_in_time(self) except -1:
        if not self._may_wait():
            self._notify_soon()
        elif not self.notified:
            self._notify_late()
        return 0

    cdef bint _may_wait(self) except -1:
        return len(self.line) >= self.enough and self.failure is None and not self.cancelled

    cdef int _notify_late(self) except -1:
        if self.timer is None:
            self.timer = self.loop.call_later(
                self.patience, self._patience_is_over, context=self.made_in
            )
        return 0

    def _patience_is_over(self):
        self.timer = None
        self.on_ready()

    def _notify(self):
        self.notified = False
        if self.line and not self.submitting and rsf_demand_load(&self.permit_counter.demand) > 0:
            self._begin_submitting("submit_many")
            try:
                self._start_line()
            finally:
                self._end_submitting()
        if self._may_wait():
            self._notify_late()
        else:
            self.on_ready()


cdef int first_step_of(object fn, Call call, PyObject **outcome) except -1:
    # Runs the first step of a call whose function returned an awaitable that is not a coroutine of
    # an async function.
    cdef object coro = as_coroutine(fn, <object> call.starting)
    call.coro = coro
    call.starting = <PyObject *> coro
    cdef int status = PyIter_Send(coro, None, outcome)
    if status == PYGEN_RETURN and not is_kept(call.window, call):
        call.starting = NULL  # a borrowed reference: clear it before call.coro drops the coroutine
        call.coro = None
    return status


async def failed_with(error):
    raise error


ctypedef int (*first_step_function)(object, Call, PyObject **) noexcept

# The cast removes Cython's check for an exception after the call. The caller of call_first_step
# checks itself whether there is an exception.
cdef first_step_function call_first_step = <first_step_function> first_step_of


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
