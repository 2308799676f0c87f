# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""``FusedRun``: a loop in C, or a generated loop in Python that iterates over a *gate* in C.

``drain_source.py`` generates the Python loop, called the *drain*. The functions decide which loop
is faster: the interpreter inlines calls of Python functions, but a C loop calls all other callables
faster. Measured in ns per element, on CPython 3.11, with bursts of 256 and unbounded demand ("hand"
is a hand-written Python loop, "C" a C loop that only makes the calls):

    range -> map -> filter -> slot    hand   C    generated  C loop here
    Python  Python  Python              88   89         92          100
    Python  Python  method              89   90         93          101
    Python  Python  C                   80   82         88           91
    C       Python  C                   62   58         70           66
    C       C       Python              76   65         82           71
    C       C       C                   68   56         78           62
    Python -> take(n) -> Python                         96           80
    Python -> scan(Python)                              79           69
    Python -> ring                                      77           56
    ring -> Python method                               35           39

These figures give the *votes* below for the generated loop, in units of about 5 ns.
"""

cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.method cimport PyMethod_Check, PyMethod_GET_FUNCTION
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport INT64_MAX, int64_t, uint32_t
from libc.stdlib cimport calloc, free

from rstreams_fast.core._cython._calls cimport *
from rstreams_fast.core._cython._csrc cimport *
from rstreams_fast.core._cython._python cimport *
from rstreams_fast.core._cython.demand cimport DemandCounter
from rstreams_fast.core._cython.ring cimport SpscRing, ring_offer, ring_poll

from collections import deque
from time import monotonic
from types import CoroutineType

from rstreams_fast._checks import check_count
from rstreams_fast.core._common import (
    GOES_ON as _GOES_ON,
    MISSING as _MISSING,
    FunctionSlot,
    RunStatus,
    let_others_run,
    refuse_pickle,
)
from rstreams_fast.core._cython.drain_source import drain_function
from rstreams_fast.core.stage_table import (
    STAGES,
    DemandRule,
    State,
    check_program,
    none_returned,
    note_comparison,
)
from rstreams_fast.errors import (
    BufferOverflowError,
    DemandExceededError,
    NoneSignalError,
    OverlappingCallsError,
    check_element,
    report_unraisable,
)


# The type of the C slot tp_iternext. If there is no element now, such a function returns NULL,
# either without an exception or with StopIteration.
ctypedef PyObject *(*next_function)(PyObject *) noexcept


cdef struct Stage:
    int kind
    rsfpy_callee callee  # the stage's function; the program owns the reference
    int64_t argument  # for batch: the size of the lists
    # For take: how many more elements to pass on. For skip: how many more elements to drop. For
    # take_while and skip_while: 1 at first, and 0 after the predicate has returned false.
    int64_t count
    bint flushes
    bint gathers  # whether the stage stores a list


cdef class FusedRun
cdef class Gate


cdef extern from "Python.h":
    PyObject *Py_True_ptr "Py_True"
    PyObject *Py_False_ptr "Py_False"
    bint PyFunction_Check(object)
    bint PyErr_ExceptionMatches(object)
    PyObject *PyErr_Occurred()
    void PyErr_Clear()
    int PyObject_IsTrue_ptr "PyObject_IsTrue"(PyObject *) noexcept


cdef extern from *:
    """
    /* The list, if `callable` is the `append` of one; else NULL. */
    static PyObject *
    rsfpy_list_of_append(PyObject *callable)
    {
        PyObject *list;
        if (!PyCFunction_CheckExact(callable)) {
            return NULL;
        }
        list = PyCFunction_GET_SELF(callable);
        return list != NULL && PyList_CheckExact(list) &&
                       strcmp(((PyCFunctionObject *)callable)->m_ml->ml_name, "append") == 0
                   ? list
                   : NULL;
    }

    #define rsfpy_iternext_of(object) (Py_TYPE(object)->tp_iternext)
    #define rsfpy_set_iternext(type, f) ((type)->tp_iternext = (f))
    """
    PyObject *rsfpy_list_of_append(PyObject *)
    next_function rsfpy_iternext_of(object)
    void rsfpy_set_iternext(PyTypeObject *, next_function)


cdef enum Kind:
    # The members must have the order of the table STAGES, because KINDS numbers its names.
    MAP
    MAP_NOT_NONE
    FILTER
    TAKE
    TAKE_WHILE
    SKIP
    SKIP_WHILE
    DISTINCT_UNTIL_CHANGED
    SCAN
    REDUCE
    BATCH
    DO_ON_NEXT


cdef enum Place:
    # Where the current element is. An exception comes from a stage, from the slot, or from neither.
    BETWEEN
    IN_STAGE
    IN_SLOT


cdef dict KINDS = {name: kind for kind, name in enumerate(STAGES)}

cdef object MISSING = _MISSING
cdef object POPLEFT = deque.popleft
cdef rsfpy_callee popleft = rsfpy_take_apart(<PyObject *> POPLEFT)
cdef object MORE, IDLE, EXHAUSTED, ENDED, DONE, CANCELLED, FAILED, SLOT_FAILED, DROPPED
MORE, IDLE, EXHAUSTED, ENDED, DONE, CANCELLED, FAILED, SLOT_FAILED, DROPPED = RunStatus

# _process returns one of these if there is no result: a stage has dropped or stored the element.
cdef object DROPPED_MARK = object()
cdef object ABSORBED_MARK = object()

# The functions, some kinds of stages, and the slot vote by these numbers. Stages before the first
# stage that calls a Python function do not vote. If the sum is positive, the run uses the generated
# Python loop, otherwise the C loop.
cdef int PYTHON_CALL = 1
cdef int OTHER_CALL = -1
cdef int COUNTED_STAGE = -3  # slow in the generated loop, which counts with Python ints
cdef int HOLDING_STAGE = -2  # a stage that stores an object, such as scan
cdef int RING_SLOT = -4

# A burst of fewer elements than this uses the C loop, because entering the generated loop would
# take more time than it saves.
cdef int64_t FEW = 8
cdef int64_t GOES_ON = _GOES_ON

# A run processes this many elements in the C loop before it generates a Python loop. After about
# 300 elements, a generated loop has saved the time that generating it took.
cdef int64_t first_elements = 64


def generate_after(elements):
    """Set the number of elements after which a run generates its loop. Return the old number."""
    global first_elements
    before = first_elements
    first_elements = elements
    return before


# A run with more stages than this uses the C loop, because compiling a Python loop takes too long.
cdef Py_ssize_t MOST_GENERATED = 256
# The largest number of elements between two checks of signals and the clock in the C loop.
cdef int LONGEST_STRIDE = 32
# The C loop lets other threads run every so many seconds, as the interpreter does for Python code
# (sys.getswitchinterval()).
cdef double SWITCH_INTERVAL = 0.005
# The field `stride` is the number of elements between two checks of the clock. If more than
# SLOW_LOOK seconds have passed since the last check, the stride becomes 1. If fewer than FAST_LOOK
# seconds have passed, the stride doubles.
cdef double SLOW_LOOK = 0.002
cdef double FAST_LOOK = 0.0005


cdef int _vote(object function):
    # A Python function votes for the generated loop, where the interpreter inlines its calls.
    if PyMethod_Check(function):
        function = <object> PyMethod_GET_FUNCTION(function)
    return PYTHON_CALL if PyFunction_Check(function) else OTHER_CALL


cdef int64_t _bounded(object count) except -1:
    return INT64_MAX if count > INT64_MAX else count


cdef int64_t _product(int64_t a, int64_t b) noexcept:
    # Returns a * b, or INT64_MAX if that is smaller. Both factors must be positive.
    return INT64_MAX if a > INT64_MAX // b else a * b


cdef PyObject *_next_in_ring(PyObject *ring) except? NULL:
    return ring_poll(<SpscRing> ring)


cdef PyObject *_next_in_deque(PyObject *source) except? NULL:
    cdef PyObject *element
    if len(<object> source) == 0:
        return NULL
    element = rsfpy_call_one(&popleft, source)
    if element == NULL and PyErr_ExceptionMatches(IndexError):  # another thread emptied the deque
        PyErr_Clear()
    return element


cdef inline PyObject *_take(FusedRun self) except? NULL:
    # Returns a new reference to the next element of the source. Returns NULL without an exception
    # if the burst is over.
    cdef PyObject *element
    if self.remaining <= 0 or rsf_demand_load(self.counter) < 0:
        return NULL
    element = self.source_next(<PyObject *> self.source)
    if element == NULL:
        return self._source_is_empty()
    if element == <PyObject *> None:
        Py_DECREF_ptr(element)
        return self._source_has_none()
    self.remaining -= 1
    return element


@cython.final
@cython.trashcan(True)
cdef class FusedRun:
    cdef object source
    cdef next_function source_next
    cdef tuple program
    cdef Stage *stages
    cdef Py_ssize_t stage_count
    cdef Py_ssize_t c_stages  # the number of first stages that run in C even with a generated loop
    cdef list held
    cdef object slot
    cdef rsfpy_callee slot_callee  # refers to `slot`, which owns the reference
    cdef SpscRing slot_ring
    cdef object function_slot  # a FunctionSlot, or None
    cdef list slot_over  # the list `over` of the FunctionSlot, or None
    cdef DemandCounter demand
    cdef rsf_demand *counter
    cdef int64_t run_ratio
    cdef bint has_ended
    cdef bint reduces  # whether the run has a reduce, and so delivers nothing before its end
    cdef bint uses_generated
    cdef bint has_none
    cdef bint exhausted
    cdef bint clear_later
    cdef uint32_t busy
    cdef int place
    cdef int64_t budget
    cdef int64_t remaining
    cdef int64_t undelivered
    cdef int64_t pulled_before
    cdef int64_t refunded
    cdef int until_look
    cdef int stride
    cdef double last_look
    cdef double last_rest
    cdef Gate gate
    cdef object generated  # the generated Python loop, or None before its first use
    cdef tuple generated_arguments
    cdef object stopped  # a StopIteration that a stage in the gate raised, or None
    cdef readonly object error
    cdef object __weakref__

    def __cinit__(self, source, program, slot, demand):
        cdef Py_ssize_t index
        cdef Stage *stage
        cdef int vote, votes = 0
        cdef bint has_python = False  # whether a stage so far calls a Python function
        if isinstance(source, SpscRing):
            self.source = source
            self.source_next = <next_function> _next_in_ring
        elif type(source) is deque:
            self.source = source
            self.source_next = <next_function> _next_in_deque
        else:
            self.source = iter(() if source is None else source)
            self.source_next = rsfpy_iternext_of(self.source)
        self.program = check_program(program)
        self.stage_count = len(self.program)
        self.stages = <Stage *> calloc(max(self.stage_count, 1), sizeof(Stage))
        if self.stages == NULL:
            raise MemoryError("no memory for a program")
        if isinstance(slot, SpscRing):
            self.slot_ring = slot
            votes = RING_SLOT
        elif isinstance(slot, FunctionSlot):
            self.function_slot = slot
            self.slot = slot.function
            self.slot_over = slot.over
            self.slot_callee = rsfpy_take_apart(<PyObject *> self.slot)
            votes = _vote(self.slot)
        elif callable(slot):
            self.slot = slot
            self.slot_callee = rsfpy_take_apart(<PyObject *> slot)
            votes = _vote(slot) if rsfpy_list_of_append(<PyObject *> slot) == NULL else 0
        else:
            raise TypeError(f"slot must be callable or an SpscRing, got {type(slot).__name__}")
        if not isinstance(demand, DemandCounter):
            raise TypeError(f"demand must be a DemandCounter, got {type(demand).__name__}")
        self.demand = demand
        self.counter = &self.demand.demand
        self.held = []
        self.run_ratio = 1
        for index, op in enumerate(self.program):
            stage = &self.stages[index]
            stage.kind = KINDS[op[0]]
            kind = STAGES[op[0]]
            stage.flushes = kind.flushes
            stage.gathers = kind.state is State.BATCH
            held = kind.first_state(op)
            vote = 0
            if kind.counts:
                stage.count = _bounded(held)
                self.has_ended |= kind.needs is DemandRule.AT_MOST and stage.count == 0
                held = None
            elif kind.state is not State.NONE:
                vote = HOLDING_STAGE
            self.held.append(held)
            if kind.least is not None:
                stage.argument = _bounded(op[1])
                vote = COUNTED_STAGE if kind.state is State.COUNT else 0
            elif op[1] is not None:
                stage.callee = rsfpy_take_apart(<PyObject *> op[1])
                if not kind.settles:  # skip_while does not vote: it soon stops calling its function
                    vote += _vote(op[1])
                    has_python |= _vote(op[1]) == PYTHON_CALL
            if kind.needs is DemandRule.TIMES:
                self.run_ratio = _product(self.run_ratio, stage.argument)
            elif kind.needs is DemandRule.ALL:
                has_python = self.reduces = True
                self.run_ratio = RSF_UNBOUNDED
            if has_python:
                votes += vote
            else:
                self.c_stages = index + 1
        self.uses_generated = votes > 0 and self.stage_count <= MOST_GENERATED
        self.stride = self.until_look = 1

    def __dealloc__(self):
        free(self.stages)

    @property
    def execution(self):
        return "generated" if self.uses_generated else "c-loop"

    @property
    def ratio(self):
        return self.run_ratio

    @property
    def refund(self):
        """After ``DROPPED``: how many elements to request in place of the dropped one."""
        return self.refunded

    @property
    def pulled(self):
        """How many elements the run has taken from the source, or got by ``push``."""
        return self.pulled_before + self.budget - self.remaining + self.has_none

    def __reduce__(self):
        refuse_pickle(self)

    # -- methods for the delivering thread -------------------------------------------------------

    def drain(self, limit, /):
        cdef int64_t count = rsfpy_plain_count(limit, 1)
        if count < 0:
            count = _bounded(check_count("limit", limit, 1))
        self._enter()
        try:
            return self._drain(count)
        finally:
            self._leave()

    def push(self, element, /):
        if element is None:
            check_element(element)
        self._enter()
        try:
            return self._push(element)
        finally:
            self._leave()

    def finish(self):
        self._enter()
        try:
            return self._finish()
        finally:
            self._leave()

    def clear(self):
        if not rsfpy_enter(&self.busy):
            self.clear_later = True
            return
        previous = self.error  # keeps the old error alive until all attributes are cleared
        self.error = None
        self._let_go()
        del previous
        rsfpy_leave(&self.busy)

    cdef int _enter(self) except -1:
        # Count this as a recursive call. The slot of a run may call another run, and so on. Python
        # does not count calls from C to C. So without this line the C stack could overflow.
        Py_EnterRecursiveCall(" while a run calls its functions")
        if not rsfpy_enter(&self.busy):
            Py_LeaveRecursiveCall()
            raise OverlappingCallsError("two calls overlap on a FusedRun")
        return 0

    cdef void _leave(self) noexcept:
        if self.clear_later:
            self.clear_later = False
            self._let_go()
        rsfpy_leave(&self.busy)
        Py_LeaveRecursiveCall()

    cdef void _let_go(self) noexcept:
        # Keep references to the old values until all attributes are cleared. Dropping a value may
        # run any code, which must not find a half-cleared run.
        held = (
            self.source, self.program, self.held, self.slot, self.slot_ring,
            self.gate, self.generated, self.generated_arguments,
            self.function_slot, self.slot_over,
        )
        self.stage_count = self.c_stages = 0
        self.source_next = rsfpy_iternext_of(NOTHING)
        self.source = NOTHING
        self.program = ()
        self.held = []
        self.slot = None
        self.slot_callee = rsfpy_take_apart(<PyObject *> None)
        self.slot_ring = None
        self.function_slot = None
        self.slot_over = None
        self.gate = None
        self.generated = None
        self.generated_arguments = None
        del held

    # -- processing several elements -------------------------------------------------------------

    cdef object _drain(self, int64_t limit):
        # If demand was added during a burst, start another burst, until GOES_ON elements are
        # processed. Otherwise the caller would have to call drain for each burst. If a subscriber
        # requests one element in each on_next, each burst has only one element.
        cdef int64_t end = self.pulled_before + min(limit, GOES_ON)
        while True:
            status = self._burst(limit)
            limit = end - self.pulled_before
            if status is not MORE or limit <= 0:
                return status

    cdef object _burst(self, int64_t limit):
        cdef int64_t demand = rsf_demand_load(self.counter)
        cdef int64_t left = 0
        cdef object failed = None
        if demand < 0:
            return CANCELLED
        if self.has_ended:
            return ENDED
        if demand == 0:
            return IDLE
        self.budget = self.remaining = min(limit, _product(demand, self.run_ratio))
        self.undelivered = 0
        self.place = BETWEEN
        self.exhausted = False
        try:
            if self.uses_generated and self.budget >= FEW and not self._ends_soon():
                self._run_generated(demand != RSF_UNBOUNDED)
            else:
                self._loop()
        except BaseException as raised:
            failed = self._fail(raised)
        finally:
            left = self._settle()
        if failed is not None:
            return failed
        if left < 0:
            return CANCELLED
        if self.has_ended:
            return ENDED
        if self.exhausted:
            return EXHAUSTED
        return MORE if left != 0 else IDLE

    cdef bint _ends_soon(self) except -1:
        # Runs the C loop for the elements of this burst that are among the run's first elements
        # (their number is `first_elements`). Returns whether the burst is over then.
        cdef int64_t first = first_elements - self.pulled_before
        cdef int64_t rest = self.budget - first
        if self.generated is not None or first <= 0:
            return False
        if rest > 0:
            self.budget = self.remaining = first
        self._loop()
        if rest <= 0 or self.exhausted or self.has_ended or rsf_demand_load(self.counter) < 0:
            return True
        self.budget += rest
        self.remaining = rest
        return False

    cdef int64_t _settle(self) except? -4:
        # Subtracts the delivered elements of a burst from the demand (§1.1). Each element that was
        # taken counts as delivered, unless a stage dropped or stored the element, or raised an
        # exception for it.
        cdef int64_t taken = self.budget - self.remaining
        cdef int64_t delivered = taken - self.undelivered - (self.place == IN_STAGE)
        cdef int64_t left
        if self.reduces:
            delivered = 0  # a run with a reduce delivers only at its end
        self.pulled_before += taken + self.has_none
        self.has_none = False
        self.budget = self.remaining = 0
        left = rsf_demand_fulfil(self.counter, delivered)
        if left == RSF_EXCEEDED:
            raise DemandExceededError(
                f"§1.1: {delivered} elements delivered, only {self.demand.pending} were requested"
            )
        return left

    cdef PyObject *_source_is_empty(self) except? NULL:
        # At the end of a source, a C iterator sets no exception. A Python iterator sets
        # StopIteration, which is cleared here.
        if PyErr_Occurred() != NULL:
            if not PyErr_ExceptionMatches(StopIteration):
                return NULL
            PyErr_Clear()
        self.exhausted = True
        return NULL

    cdef PyObject *_source_has_none(self) except? NULL:
        self.has_none = True
        raise NoneSignalError("§2.13: the source produced None")

    cdef void _end(self) noexcept:
        # A stage that needs no more elements calls this. The burst ends after the current element.
        self.has_ended = True
        self.budget -= self.remaining
        self.remaining = 0

    cdef int _run_generated(self, bint counted) except -1:
        # `counted`: whether to count the dropped elements. _settle needs the count, unless demand
        # is unbounded. Counting takes about 5 ns per element.
        if self.generated is None:
            self._generate(counted)
        self.gate.run = self
        try:
            self.generated(*self.generated_arguments)
            if self.stopped is not None:
                raise self.stopped
        finally:
            self.gate.run = None
            self.stopped = None
        return 0

    cdef int _generate(self, bint counted) except -1:
        cdef PyObject *appended_to = rsfpy_list_of_append(<PyObject *> self.slot)
        cdef object function = self.function_slot
        cdef tuple slot = (self.slot,)
        cdef str to = "call"
        if self.slot_ring is not None:
            to, slot = "ring", (self.slot_ring.offer,)
        elif function is not None:
            to = "function"
            slot = (function.function, function.over, function.answered, function.unwanted)
        elif appended_to != NULL:
            to, slot = "list", (<object> appended_to,)
        self.gate = (Gate if self.c_stages == 0 else StagedGate)()
        program = self.program[:self.stage_count]
        shape = tuple([op[0] for op in program])
        python_part = program[self.c_stages:]
        self.generated_arguments = (self.gate, *[op[1] for op in python_part], *slot)
        self.generated = drain_function(shape, self.c_stages, to, counted)
        return 0

    cdef PyObject *_take_processed(self) except? NULL:
        # Takes elements from the source until an element passes the first stages, which run in C.
        # Returns this element to the generated loop, which carries out only the later stages.
        cdef PyObject *element
        while True:
            element = _take(self)
            if element == NULL or self.c_stages == 0:
                return element
            self.place = IN_STAGE
            element = self._process(element, 0, self.c_stages)
            self.place = BETWEEN
            if element != <PyObject *> DROPPED_MARK and element != <PyObject *> ABSORBED_MARK:
                return element
            self.undelivered += 1
            self.until_look -= 1
            if self.until_look <= 0:
                self._look_around()

    cdef int _loop(self) except -1:
        cdef PyObject *element
        while True:
            element = _take(self)
            if element == NULL:
                return 0
            if self.stage_count != 0:
                self.place = IN_STAGE
                element = self._process(element, 0, self.stage_count)
            if element == <PyObject *> DROPPED_MARK or element == <PyObject *> ABSORBED_MARK:
                self.undelivered += 1
            else:
                self.place = IN_SLOT
                self._deliver(element)
            self.place = BETWEEN
            self.until_look -= 1
            if self.until_look <= 0:
                self._look_around()

    cdef int _look_around(self) except -1:
        # Handles signals, and lets other threads run, as the interpreter does for Python code.
        cdef double now = monotonic()
        cdef double since = now - self.last_look
        if since > SLOW_LOOK:
            self.stride = 1
        elif since < FAST_LOOK:
            self.stride = min(self.stride * 2, LONGEST_STRIDE)
        self.until_look = self.stride
        self.last_look = now
        PyErr_CheckSignals()
        if now - self.last_rest >= SWITCH_INTERVAL:
            self.last_rest = now
            let_others_run()
        return 0

    cdef inline int _deliver(self, PyObject *element) except -1:
        # Steals the reference to `element`.
        cdef PyObject *answer
        if <PyObject *> self.slot_ring == <PyObject *> None:
            if <PyObject *> self.slot_over != <PyObject *> None:
                return self._deliver_to_function(element)
            answer = rsfpy_call_one(&self.slot_callee, element)
            Py_DECREF_ptr(element)
            if answer == NULL:
                return -1
            Py_DECREF_ptr(answer)
            return 0
        kept = <object> element
        Py_DECREF_ptr(element)
        if ring_offer(self.slot_ring, element) == 0:
            raise _overflow()
        return 0

    cdef int _deliver_to_function(self, PyObject *element) except -1:
        cdef PyObject *answer
        if PyList_GET_SIZE(self.slot_over) != 0:
            taken = <object> element
            Py_DECREF_ptr(element)
            self.function_slot.unwanted(taken)
            return 0
        answer = rsfpy_call_one(&self.slot_callee, element)
        Py_DECREF_ptr(element)
        if answer == NULL:
            return -1
        returned = <object> answer
        Py_DECREF_ptr(answer)
        if returned is False or type(returned) is CoroutineType:
            self.function_slot.answered(returned)
        return 0

    cdef PyObject *_process(
        self, PyObject *x, Py_ssize_t start, Py_ssize_t stop
    ) except? NULL:
        """Pass ``x`` through the stages from ``start`` to ``stop``. Steals the reference to ``x``.

        Returns a new reference to the result. If there is no result, returns a borrowed reference
        to ``DROPPED_MARK`` or ``ABSORBED_MARK``.
        """
        cdef int64_t refund = 1
        cdef Stage *stage = self.stages + start
        cdef Stage *end = self.stages + stop
        cdef PyObject *result
        cdef int truth
        while stage < end:
            if stage.kind == MAP or stage.kind == MAP_NOT_NONE:
                result = rsfpy_call_one(&stage.callee, x)
                Py_DECREF_ptr(x)
                if result == NULL:
                    return NULL
                x = result
                if x == <PyObject *> None:
                    if stage.kind == MAP:
                        Py_DECREF_ptr(x)
                        raise self._none_returned(stage)
                    break
            elif stage.kind == FILTER:
                truth = _is_true(rsfpy_call_one(&stage.callee, x))
                if truth == 0:
                    break
                if truth < 0:
                    Py_DECREF_ptr(x)
                    return NULL
            elif stage.kind == TAKE:
                if stage.count == 0:
                    break
                stage.count -= 1
                if stage.count == 0:
                    self._end()
            elif stage.kind == SKIP:
                if stage.count > 0:
                    stage.count -= 1
                    break
                self._leave_out(stage)
            elif stage.kind == TAKE_WHILE:
                truth = 0 if stage.count == 0 else _is_true(rsfpy_call_one(&stage.callee, x))
                if truth < 0:
                    Py_DECREF_ptr(x)
                    return NULL
                if truth == 0:
                    stage.count = 0
                    self._end()
                    break
            elif stage.kind == SKIP_WHILE:
                truth = 0 if stage.count == 0 else _is_true(rsfpy_call_one(&stage.callee, x))
                if truth < 0:
                    Py_DECREF_ptr(x)
                    return NULL
                if truth != 0:
                    break
                stage.count = 0
                self._leave_out(stage)
            else:
                x = self._hold(stage, x)
                if x == NULL or x == <PyObject *> ABSORBED_MARK:
                    return x
                if x == <PyObject *> DROPPED_MARK:
                    self.refunded = refund
                    return x
                if stage.gathers:
                    refund = _product(refund, stage.argument)
            stage += 1
        else:
            return x
        Py_DECREF_ptr(x)
        self.refunded = refund
        return <PyObject *> DROPPED_MARK

    cdef void _leave_out(self, Stage *stage) noexcept:
        # A skip or skip_while calls this when it has dropped its last element. If the stage is the
        # last stage of the run, and runs in C, it is removed from the run.
        if stage + 1 == self.stages + self.c_stages and self.c_stages == self.stage_count:
            self.c_stages -= 1
            self.stage_count -= 1

    cdef PyObject *_hold(self, Stage *stage, PyObject *element) except? NULL:
        """Pass ``element`` through a stage that ``_process`` itself does not handle.

        Steals the reference to ``element``.
        """
        cdef Py_ssize_t index = stage - self.stages
        cdef object x = <object> element
        Py_DECREF_ptr(element)
        if stage.kind == SCAN or stage.kind == REDUCE:
            held = self.held[index]
            if held is not MISSING:
                x = self.program[index][1](held, x)
                if x is None:
                    raise self._none_returned(stage)
            self.held[index] = x
            if stage.kind == REDUCE:
                return <PyObject *> ABSORBED_MARK
        elif stage.kind == BATCH:
            held = self.held[index]
            (<list> held).append(x)
            if len(<list> held) < stage.argument:
                return <PyObject *> ABSORBED_MARK
            self.held[index] = []
            x = held
        elif stage.kind == DISTINCT_UNTIL_CHANGED:
            if not self._differs(index, x):
                return <PyObject *> DROPPED_MARK
        elif stage.kind == DO_ON_NEXT:
            self._observe(self.program[index][1], x)
        else:
            raise NotImplementedError(f"{self.program[index][0]} has no case in C")
        Py_INCREF_ptr(<PyObject *> x)
        return <PyObject *> x

    cdef bint _differs(self, Py_ssize_t index, object x) except -1:
        cdef object key = self.program[index][1]
        cdef object last = self.held[index]
        cdef object new = x if key is None else key(x)
        if new is last:
            return False
        try:
            if last is not MISSING and new == last:
                return False
        except Exception as raised:
            note_comparison(raised)
            raise
        self.held[index] = new
        return True

    cdef object _none_returned(self, Stage *stage):
        cdef Py_ssize_t index = stage - self.stages
        op = self.program[index]
        return none_returned(index, op[0], op[1])

    cdef int _observe(self, object function, object element) except -1:
        try:
            function(element)
        except Exception as raised:
            report_unraisable(raised, "do_on_next", function)
        return 0

    # -- processing one element ------------------------------------------------------------------

    cdef object _push(self, object element):
        cdef PyObject *result
        cdef int64_t left
        if rsf_demand_load(self.counter) < 0:
            return CANCELLED
        if self.has_ended:
            return ENDED
        self.pulled_before += 1
        self.place = IN_STAGE
        try:
            Py_INCREF_ptr(<PyObject *> element)
            result = self._process(<PyObject *> element, 0, self.stage_count)
            if result == <PyObject *> DROPPED_MARK:
                return ENDED if self.has_ended else DROPPED
            if result != <PyObject *> ABSORBED_MARK:
                if not self._fulfil_one():
                    Py_DECREF_ptr(result)
                    return CANCELLED if self.error is None else FAILED
                self.place = IN_SLOT
                self._deliver(result)
        except BaseException as raised:
            failed = self._fail(raised)
            if failed is not None:
                return failed
        if rsf_demand_load(self.counter) < 0:
            return CANCELLED
        return ENDED if self.has_ended else MORE

    cdef object _finish(self):
        cdef Py_ssize_t index
        cdef Stage *stage
        cdef PyObject *result
        cdef int64_t demand
        try:
            for index in range(self.stage_count):
                demand = rsf_demand_load(self.counter)
                if demand < 0:
                    return CANCELLED
                stage = &self.stages[index]
                if not stage.flushes:
                    continue
                held = self.held[index]
                if (len(<list> held) == 0) if stage.gathers else (held is MISSING):
                    continue
                if demand == 0:
                    return IDLE
                self.held[index] = [] if stage.gathers else MISSING
                self.place = IN_STAGE
                Py_INCREF_ptr(<PyObject *> held)
                result = self._process(<PyObject *> held, index + 1, self.stage_count)
                if result == <PyObject *> ABSORBED_MARK or result == <PyObject *> DROPPED_MARK:
                    continue
                if not self._fulfil_one():
                    Py_DECREF_ptr(result)
                    return CANCELLED if self.error is None else FAILED
                self.place = IN_SLOT
                self._deliver(result)
        except BaseException as raised:
            failed = self._fail(raised)
            if failed is not None:
                return failed
        return CANCELLED if rsf_demand_load(self.counter) < 0 else DONE

    cdef object _fail(self, object error):
        # Returns the RunStatus that the run must return for `error`. Returns None if the
        # FunctionSlot has handled `error`.
        if self.place == IN_SLOT and self.function_slot is not None:
            self.function_slot.failed(error)
            return None
        if not isinstance(error, Exception):
            raise error
        previous = self.error  # keeps the old error alive until the attribute is set
        self.error = error
        return SLOT_FAILED if self.place == IN_SLOT else FAILED

    cdef int _fulfil_one(self) except -1:
        cdef int64_t left = rsf_demand_fulfil(self.counter, 1)
        if left == RSF_EXCEEDED:
            self._fail(DemandExceededError("§1.1: 1 elements delivered, only 0 were requested"))
        return left >= 0


cdef object NOTHING = iter(())


cdef object _overflow():
    return BufferOverflowError("the ring that takes the results is full")


cdef inline int _is_true(PyObject *answer) noexcept:
    # Returns whether `answer`, the return value of a predicate, is true: 1 or 0. Returns -1 if the
    # predicate raised an exception (`answer` is NULL), or the test of `answer` did. Steals the
    # reference to `answer`.
    cdef int truth
    if answer == Py_True_ptr:
        truth = 1
    elif answer == Py_False_ptr:
        truth = 0
    elif answer == NULL:
        return -1
    else:
        truth = PyObject_IsTrue_ptr(answer)
    Py_DECREF_ptr(answer)
    return truth


@cython.internal
@cython.nonecheck(True)  # a debugger may use a gate whose `run` is None
cdef class Gate:
    """The iterator over which a generated loop runs.

    The loop also stores the counts and objects of its stages in the gate.
    """
    cdef FusedRun run  # None unless the generated loop runs: otherwise a reference cycle would stay

    def __iter__(self):
        return self

    def __next__(self):  # the function gate_next, below, replaces this method
        raise StopIteration

    def in_stage(self):
        self.run.place = IN_STAGE

    def in_slot(self):
        self.run.place = IN_SLOT

    def end(self):
        self.run._end()

    def overflow(self):
        return _overflow()

    def count(self, Py_ssize_t index):
        return self.run.stages[index].count

    def set_count(self, Py_ssize_t index, int64_t count):
        self.run.stages[index].count = count

    def held(self, Py_ssize_t index):
        return self.run.held[index]

    def set_held(self, Py_ssize_t index, held):
        self.run.held[index] = held

    @property
    def dropped(self):
        return self.run.undelivered

    @dropped.setter
    def dropped(self, int64_t count):
        self.run.undelivered = count


cdef PyObject *gate_next(PyObject *gate) except? NULL:
    # The interpreter calls this C function as tp_iternext. A __next__ method would take twice the
    # time, because Cython would put a wrapper around it.
    if <PyObject *> (<Gate> gate).run == <PyObject *> None:
        return NULL
    return _take((<Gate> gate).run)


@cython.final
@cython.internal
cdef class StagedGate(Gate):
    """A gate that also runs the first stages, which are not in the generated loop."""

    def __next__(self):  # the function staged_gate_next, below, replaces this method
        raise StopIteration


cdef PyObject *take_processed(PyObject *gate) except? NULL:
    if <PyObject *> (<Gate> gate).run == <PyObject *> None:
        return NULL
    return (<Gate> gate).run._take_processed()


cdef PyObject *staged_gate_next(PyObject *gate) noexcept:
    # If a stage raises a StopIteration, store it in `stopped`, and clear it. Otherwise the
    # generated loop would take it for the end of the source.
    cdef PyObject *element = (<next_function> take_processed)(gate)
    if element == NULL and PyErr_Occurred() != NULL and PyErr_ExceptionMatches(StopIteration):
        try:
            raise_what_is_set()
        except StopIteration as raised:
            (<Gate> gate).run.stopped = raised
    return element


rsfpy_set_iternext(<PyTypeObject *> Gate, <next_function> gate_next)
rsfpy_set_iternext(<PyTypeObject *> StagedGate, staged_gate_next)
