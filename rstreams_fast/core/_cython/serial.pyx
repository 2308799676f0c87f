# cython: language_level=3, boundscheck=False, wraparound=False
"""``SignalSerializer`` on the C type ``rsf_serial``, which has a bounded mailbox (queue).

The thread that raises the work in progress from 0 holds the *drain*: it delivers all signals.
``rsf_serial.h`` explains why no signal is lost, and why signals stay in order. The mailbox's slots
hold references by the rules of ``ring.pyx``: a reference is taken before its slot is published,
dropped after the slot was released, and visited by the garbage collector.
"""

cimport cython
from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from rstreams_fast.core._cython._calls cimport *
from rstreams_fast.core._cython._csrc cimport *
from rstreams_fast.core._cython._python cimport *
from rstreams_fast.core._cython.ring cimport sleep_on

from os import getpid
from types import GenericAlias

from rstreams_fast._checks import check_capacity
from rstreams_fast.core._common import (
    Emission,
    cancel_quietly,
    check_same_process,
    refuse_pickle,
)
from rstreams_fast.errors import (
    BufferOverflowError,
    NoneSignalError,
    OverlappingCallsError,
    check_element,
    check_error,
    check_subscriber,
    report_dropped,
)


# The method _next returns a result of the C function rsf_serial_reserve, or BUSY. ANSWERS maps
# these results to members of Emission.
cdef int BUSY = 4
cdef object ANSWERS = {
    RSF_SERIAL_OK: Emission.OK,
    RSF_SERIAL_FULL: Emission.FULL,
    RSF_SERIAL_TERMINATED: Emission.TERMINATED,
    RSF_SERIAL_CANCELLED: Emission.CANCELLED,
    BUSY: Emission.BUSY,
}


@cython.final
@cython.internal
cdef class _Parked:
    """A thread that waits for room in the mailbox. Releasing ``lock`` wakes the thread."""

    cdef PyThread_type_lock lock

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError("no lock to wait on")
        PyThread_acquire_lock(self.lock, 1)

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_acquire_lock(self.lock, 0)
            PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)


@cython.trashcan(True)
cdef class SignalSerializer:
    cdef rsf_serial serial
    cdef rsf_serial_cell *cells
    cdef PyObject **slots  # each slot is NULL or an owned reference to an element
    cdef object subscriber
    cdef object deliver_next  # the subscriber's method on_next, looked up only once
    cdef rsfpy_callee callee  # borrowed from deliver_next
    cdef object subscription
    cdef object error
    cdef list parked
    cdef uint32_t announce  # whether to call the subscriber's on_subscribe next
    cdef bint finished
    cdef bint waits
    cdef bint delay_error
    cdef bint fail_fast
    cdef unsigned long owner  # the id of the delivering thread; set only if `waits` is set
    cdef long creator
    cdef object __weakref__

    @classmethod
    def __class_getitem__(cls, element):
        return GenericAlias(cls, element)

    def __cinit__(
        self, subscriber, *, capacity=1024, on_full="error", delay_error=False, fail_fast=False
    ):
        cdef uint64_t count, slots
        check_subscriber(subscriber)
        if on_full not in ("error", "wait"):
            raise ValueError(f"on_full must be 'error' or 'wait', got {on_full!r}")
        count = check_capacity("capacity", capacity)
        slots = rsf_serial_slots(count)
        self.cells = <rsf_serial_cell *> calloc(slots, sizeof(rsf_serial_cell))
        self.slots = <PyObject **> calloc(slots, sizeof(PyObject *))
        if self.cells == NULL or self.slots == NULL:
            raise MemoryError(f"no memory for a mailbox of {capacity} elements")
        if not rsf_serial_init(&self.serial, self.cells, count):
            raise ValueError(f"capacity must be 1 to 2**31, got {capacity}")
        self.waits = on_full == "wait"
        self.delay_error = delay_error
        self.fail_fast = fail_fast
        self.subscriber = subscriber
        self.deliver_next = subscriber.on_next
        self.callee = rsfpy_take_apart(<PyObject *> self.deliver_next)
        self.parked = []
        self.creator = getpid()

    def __init__(self, *args, **kwargs):
        pass  # accepts the arguments that subclasses pass on; __cinit__ has used them

    def __dealloc__(self):
        if self.slots != NULL:
            if self.cells != NULL:
                _drop_all(self)
            free(self.slots)
        free(self.cells)

    # -- the signals, from any thread ------------------------------------------------------------

    def on_subscribe(self, subscription, /):
        cdef bint first
        if subscription is None:
            raise NoneSignalError("§2.13: subscription is None")
        with cython.critical_section(self):
            first = (
                self.subscription is None
                and not self.finished
                and not rsf_serial_is_cancelled(&self.serial)
            )
            if first:
                self.subscription = subscription
        if not first:
            cancel_quietly(subscription)
            return
        rsf_store_rel_u32(&self.announce, 1)
        if rsf_serial_enter(&self.serial):
            self._drain()

    def on_next(self, element, /):
        cdef int answer = self._next(element, self.waits)
        if answer == RSF_SERIAL_FULL:
            subscription = self._upstream()
            overflow = BufferOverflowError(
                f"the mailbox of {self.serial.capacity} elements is full, one was dropped"
            )
            # Several threads may find the mailbox full. Only one of them ends the stream.
            if self._terminate(RSF_SERIAL_ERROR, overflow) and subscription is not None:
                cancel_quietly(subscription)
        elif answer == BUSY:
            raise OverlappingCallsError("§1.3: another thread is signalling, and fail_fast is set")

    def try_next(self, element, /):
        return ANSWERS[self._next(element, False)]

    def on_error(self, error, /):
        check_error(error)
        if not self._terminate(RSF_SERIAL_ERROR, error):
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self):
        self._terminate(RSF_SERIAL_COMPLETE, None)

    # -- the methods of the subscription, for any thread -----------------------------------------

    def request(self, n, /):
        subscription = self._upstream()
        if subscription is not None:
            # Count this as a recursive call. Otherwise serializers that request from each other in
            # a circle would overflow the C stack: Python does not count calls from C to C.
            Py_EnterRecursiveCall(" while asking upstream")
            try:
                subscription.request(n)
            finally:
                Py_LeaveRecursiveCall()

    def cancel(self):
        if self.finished or not rsf_serial_cancel(&self.serial):
            return
        subscription = self._end_upstream()
        self._wake()
        if rsf_serial_enter(&self.serial):
            self._drain()
        if subscription is not None:
            cancel_quietly(subscription)

    @property
    def queued(self):
        if self.finished or rsf_serial_is_cancelled(&self.serial):
            return 0
        return rsf_serial_size(&self.serial)

    @property
    def capacity(self):
        return self.serial.capacity

    def __reduce__(self):
        refuse_pickle(self)

    cdef object _upstream(self):
        with cython.critical_section(self):
            return self.subscription

    cdef object _end_upstream(self):
        with cython.critical_section(self):
            subscription = self.subscription
            self.subscription = None
        return subscription

    # -- signalling ------------------------------------------------------------------------------

    cdef int _next(self, object element, bint wait) except -1:
        cdef uint64_t index
        cdef int answer
        if element is None:
            check_element(element)
        if rsfpy_serial_try_acquire(&self.serial):
            answer = self._next_as_holder(element)
            if answer != RSF_SERIAL_FULL or not wait:
                return answer
            # The mailbox was full. But this thread has delivered the queued elements meanwhile. So
            # there may be room now: try again.
        if self.fail_fast:
            if rsf_serial_is_cancelled(&self.serial):
                return RSF_SERIAL_CANCELLED
            if rsf_serial_terminal(&self.serial) != 0:
                return RSF_SERIAL_TERMINATED
            return BUSY
        while True:
            answer = rsf_serial_reserve(&self.serial, &index)
            if answer == RSF_SERIAL_OK:
                break
            if answer != RSF_SERIAL_FULL or not wait:
                return answer
            if self.owner == PyThread_get_thread_ident():
                return answer
            self._park()
        Py_INCREF_ptr(<PyObject *> element)
        self.slots[rsf_serial_slot(&self.serial, index)] = <PyObject *> element
        rsf_serial_publish(&self.serial, index)
        if rsf_serial_enter(&self.serial):
            self._drain()
        return RSF_SERIAL_OK

    cdef int _next_as_holder(self, object element) except -1:
        # Delivers `element` directly, without the mailbox, and then lets other threads deliver. The
        # calling thread must be the delivering thread. If signals are queued, delivers them first.
        cdef PyObject *answer
        if (
            not rsf_serial_is_idle(&self.serial)
            or rsf_load_acq_u32(&self.announce) != 0
            or rsf_serial_is_cancelled(&self.serial)
        ):
            return self._next_after_others(element)
        if self.waits:
            self.owner = PyThread_get_thread_ident()
        answer = rsfpy_call_one_deeper(&self.callee, <PyObject *> element)
        if answer == NULL:
            self._abandon_what_was_raised()
            return RSF_SERIAL_OK
        Py_DECREF_ptr(answer)
        self.owner = 0
        if not rsfpy_serial_leave(&self.serial):
            self._drain()
        return RSF_SERIAL_OK

    cdef int _next_after_others(self, object element) except -1:
        cdef uint64_t index
        cdef int answer = RSF_SERIAL_OK
        if self.waits:
            self.owner = PyThread_get_thread_ident()
        try:
            self._deliver_all()
            if rsf_serial_is_cancelled(&self.serial):
                answer = RSF_SERIAL_CANCELLED
            elif rsf_serial_is_idle(&self.serial):
                self._call(element)
            else:
                # Another thread has begun to queue a signal. `element` must come after this signal.
                # So put `element` into the mailbox, too.
                answer = rsf_serial_reserve(&self.serial, &index)
                if answer == RSF_SERIAL_OK:
                    Py_INCREF_ptr(<PyObject *> element)
                    self.slots[rsf_serial_slot(&self.serial, index)] = <PyObject *> element
                    rsf_serial_publish(&self.serial, index)
            self._deliver_and_leave()
        except BaseException as raised:
            self._abandon(raised)
        return answer

    cdef bint _terminate(self, int kind, object error) except -1:
        if rsf_serial_is_cancelled(&self.serial) or not rsf_serial_latch_terminal(&self.serial):
            return False
        self.error = error
        rsf_serial_publish_terminal(&self.serial, kind)
        self._wake()
        if rsf_serial_enter(&self.serial):
            self._drain()
        return True

    # -- delivery, by the delivering thread ------------------------------------------------------

    cdef int _drain(self) except -1:
        if self.waits:
            self.owner = PyThread_get_thread_ident()
        try:
            self._deliver_and_leave()
        except BaseException as raised:
            self._abandon(raised)
        return 0

    cdef int _deliver_and_leave(self) except -1:
        cdef unsigned long owner = self.owner
        while True:
            self._deliver_all()
            self.owner = 0
            if rsfpy_serial_leave(&self.serial):
                return 0
            self.owner = owner

    cdef int _deliver_all(self) except -1:
        cdef uint64_t index
        cdef PyObject **slot
        cdef object element
        cdef int terminal
        while True:
            if self.finished or rsf_serial_is_cancelled(&self.serial):
                self._forget()
                return 0
            if rsf_load_acq_u32(&self.announce) != 0:
                rsf_store_rel_u32(&self.announce, 0)
                self.subscriber.on_subscribe(self)
                continue
            terminal = rsf_serial_terminal(&self.serial)
            if terminal == RSF_SERIAL_ERROR and not self.delay_error:
                self._deliver_terminal(terminal)
            elif rsf_serial_peek(&self.serial, &index):
                slot = &self.slots[rsf_serial_slot(&self.serial, index)]
                element = <object> slot[0]
                slot[0] = NULL
                rsf_serial_release(&self.serial)
                Py_DECREF(element)
                # Wake waiting threads only if half of the mailbox is empty. Waking them for each
                # element would be slow.
                if rsf_serial_size(&self.serial) <= self.serial.capacity // 2:
                    self._wake()
                self._call(element)
            elif rsf_serial_is_drained(&self.serial):
                self._deliver_terminal(terminal)
            else:
                return 0

    cdef int _deliver_terminal(self, int kind) except -1:
        cdef object subscriber = self.subscriber
        cdef object error = self.error
        self.finished = True
        self._forget()
        if kind == RSF_SERIAL_COMPLETE:
            subscriber.on_complete()
        else:
            subscriber.on_error(error)
        return 0

    cdef int _call(self, object element) except -1:
        cdef PyObject *answer = rsfpy_call_one_deeper(&self.callee, <PyObject *> element)
        if answer == NULL:
            return -1
        Py_DECREF_ptr(answer)
        return 0

    cdef int _abandon_what_was_raised(self) except -1:
        try:
            raise_what_is_set()
        except BaseException as raised:
            self._abandon(raised)
        return 0

    cdef int _abandon(self, object raised) except -1:
        """End the stream because the subscriber raised ``raised``. Report it (§2.13)."""
        cdef object subscription = None
        if not self.finished and rsf_serial_cancel(&self.serial):
            subscription = self._end_upstream()
            self._wake()
        self._deliver_and_leave()  # the stream has ended, so this call only drops queued elements
        if subscription is not None:
            cancel_quietly(subscription)
        if not isinstance(raised, Exception):
            raise raised
        report_dropped(raised, "§2.13: a subscriber raised")
        return 0

    cdef void _forget(self) noexcept:
        # Drops all references after the end of the stream. Dropping a value may run any code. So
        # clear all attributes before a value is dropped. After a cancel, do not clear the
        # subscription: the thread that cancels does so.
        upstream = self._end_upstream() if self.finished else None
        held = (self.subscriber, self.deliver_next, self.error, upstream)
        self.subscriber = None
        self.deliver_next = None
        self.callee = rsfpy_take_apart(<PyObject *> None)
        self.error = None
        _drop_all(self)
        del held, upstream

    # -- waiting for room ------------------------------------------------------------------------

    cdef void _wake(self) noexcept:
        cdef _Parked parked
        if not rsfpy_serial_take_waiting(&self.serial):
            return
        with cython.critical_section(self):
            sleepers = self.parked
            self.parked = []
        for parked in sleepers:
            PyThread_release_lock(parked.lock)

    cdef int _park(self) except -1:
        # Sleeps until there may be room in the mailbox. In a forked child, where no other thread
        # could make room, check_same_process raises an error.
        cdef _Parked parked = _Parked.__new__(_Parked)
        check_same_process(self, self.creator)
        with cython.critical_section(self):
            self.parked.append(parked)
        try:
            if rsf_serial_prepare_wait(&self.serial):
                sleep_on(parked.lock, None)
        finally:
            with cython.critical_section(self):
                if parked in self.parked:
                    self.parked.remove(parked)
        return 0


# -- the garbage collector -----------------------------------------------------------------------

cdef void _drop_all(SignalSerializer self) noexcept:
    cdef uint64_t index
    cdef PyObject *element
    while rsf_serial_peek(&self.serial, &index):
        element = self.slots[rsf_serial_slot(&self.serial, index)]
        self.slots[rsf_serial_slot(&self.serial, index)] = NULL
        rsf_serial_release(&self.serial)
        Py_DECREF_ptr(element)


cdef traverseproc cython_traverse
cdef inquiry cython_clear


cdef int serial_traverse(PyObject *self, visitproc visit, void *arg) noexcept:
    # It is safe to read the slots here: while the garbage collector runs, no thread is between
    # reserve and publish. See ring_traverse in ring.pyx.
    cdef uint64_t index, i
    cdef PyObject *element
    cdef int stop
    if (<SignalSerializer> self).slots != NULL and (<SignalSerializer> self).serial.capacity != 0:
        rsf_serial_peek(&(<SignalSerializer> self).serial, &index)
        for i in range(rsf_serial_size(&(<SignalSerializer> self).serial)):
            element = (<SignalSerializer> self).slots[
                rsf_serial_slot(&(<SignalSerializer> self).serial, index + i)
            ]
            if element != NULL:
                stop = visit(element, arg)
                if stop != 0:
                    return stop
    return cython_traverse(self, visit, arg)


cdef int serial_clear(PyObject *self) noexcept:
    if (<SignalSerializer> self).slots != NULL and (<SignalSerializer> self).serial.capacity != 0:
        _drop_all(<SignalSerializer> self)
    (<SignalSerializer> self).callee = rsfpy_take_apart(<PyObject *> None)
    return cython_clear(self)


cdef PyTypeObject *serial_type = <PyTypeObject *> SignalSerializer
cython_traverse = rsfpy_traverse_of(serial_type)
cython_clear = rsfpy_clear_of(serial_type)
rsfpy_set_traverse(serial_type, <void *> serial_traverse)
rsfpy_set_clear(serial_type, <void *> serial_clear)
