"""The fused run, sentence by sentence; each way of executing it."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import re
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING, FunctionSlot, RunStatus
from rstreams_fast.core.stage_table import STAGES
from rstreams_fast.errors import (
    BufferOverflowError,
    OverlappingCallsError,
    RingClosed,
    StageReturnedNoneError,
)
from tests.core.conftest import BACKENDS, load
from tests.helpers import Element, Living, Problem, run_python, start_thread, wait_for, wait_gone

C_LOOP = Path(__file__).parents[2] / "rstreams_fast" / "core" / "_cython" / "fused.pyx"

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Collector:
    """A slot that is a Python method, so that calls of it can be inlined."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_next(self, element: Any) -> None:
        self.seen.append(element)


@pytest.fixture(params=["python functions", "other callables"])
def wrap(request: pytest.FixtureRequest) -> Wrap:
    """Makes a test's functions one kind of callable: the compiled backends tell them apart."""
    return functools.partial if request.param == "other callables" else lambda function: function


def make_run(
    core: Any, source: Any, program: Any = (), slot: Any = None, demand: int = UNBOUNDED
) -> Any:
    """A run with a demand of its own, and without a slot one of a collector."""
    slot = Collector().on_next if slot is None else slot
    return core.FusedRun(source, program, slot, core.DemandCounter(demand))


def run_all(core: Any, source: Any, program: Any) -> list[Any]:
    """Drain and finish with ample demand; return what came out."""
    collector = Collector()
    run = make_run(core, source, program, collector.on_next)
    status = RunStatus.MORE
    while status is RunStatus.MORE:
        status = run.drain(50)
    assert status in (RunStatus.EXHAUSTED, RunStatus.ENDED), status
    assert run.finish() is RunStatus.DONE
    return collector.seen


def odd(x: int) -> bool:
    return x % 2 == 1


def double(x: int) -> int:
    return 2 * x


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((), list(range(20))),
        ((("map", double),), [2 * x for x in range(20)]),
        ((("filter", odd),), [x for x in range(20) if x % 2]),
        ((("map_not_none", lambda x: x or None),), list(range(1, 20))),
        ((("map_not_none", lambda x: x if x % 3 else None),), [x for x in range(20) if x % 3]),
        ((("take", 3),), [0, 1, 2]),
        ((("take", 0),), []),
        ((("take", 10**40),), list(range(20))),
        ((("skip", 17),), [17, 18, 19]),
        ((("skip", 0),), list(range(20))),
        ((("skip", 10**40),), []),
        ((("take_while", lambda x: x < 4),), [0, 1, 2, 3]),
        ((("take_while", lambda x: x < 99),), list(range(20))),
        ((("skip_while", lambda x: x % 5 < 4),), list(range(4, 20))),
        ((("skip_while", lambda x: x < 99),), []),
        ((("filter", odd), ("skip_while", lambda x: x < 9), ("take", 2)), [9, 11]),
        ((("distinct_until_changed", lambda x: x // 6),), [0, 6, 12, 18]),
        ((("distinct_until_changed", lambda x: None),), [0]),
        ((("map", lambda x: x // 6), ("distinct_until_changed", None)), [0, 1, 2, 3]),
        ((("distinct_until_changed", None), ("map", double)), [2 * x for x in range(20)]),
        ((("scan", add, 100), ("take", 4)), [100, 101, 103, 106]),
        ((("scan", add, MISSING), ("take", 4)), [0, 1, 3, 6]),
        ((("reduce", add, 100),), [290]),
        ((("reduce", add, MISSING),), [190]),
        ((("filter", lambda x: False), ("reduce", add, MISSING)), []),
        ((("filter", lambda x: False), ("reduce", add, 5)), [5]),
        ((("batch", 8),), [[*range(8)], [*range(8, 16)], [16, 17, 18, 19]]),
        ((("batch", 20),), [[*range(20)]]),
        ((("batch", 1), ("take", 2)), [[0], [1]]),
        ((("batch", 3), ("map", len), ("batch", 4)), [[3, 3, 3, 3], [3, 3, 2]]),
        ((("do_on_next", double),), list(range(20))),
        ((("map", double), ("filter", lambda x: x % 3), ("skip", 1), ("take", 3)), [4, 8, 10]),
        ((("filter", odd), ("take", 3), ("map", double)), [2, 6, 10]),
        ((("take", 5), ("filter", odd), ("batch", 9)), [[1, 3]]),
        ((("skip", 2), ("take_while", lambda x: x < 9), ("reduce", add, 0)), [35]),
        ((("batch", 7), ("take", 1)), [[0, 1, 2, 3, 4, 5, 6]]),
    ],
)
def test_stages_give_what_they_say(
    core: Any, wrap: Wrap, program: Any, expected: list[Any]
) -> None:
    wrapped = tuple(tuple(wrap(x) if callable(x) else x for x in op) for op in program)
    assert run_all(core, range(20), wrapped) == expected


@pytest.mark.parametrize("slot", ["call", "append", "ring"])
@pytest.mark.parametrize("skipped", [0, 3, 70, 150])
@pytest.mark.parametrize(
    "last",
    [
        lambda n: (("skip", n),),
        lambda n: (("skip_while", lambda x: x < n),),
        lambda n: (("skip", n // 2), ("skip_while", lambda x: x < n)),
        lambda n: (("map", lambda x: x), ("skip", n)),
        lambda n: (("batch", 1), ("map", lambda part: part[0]), ("skip_while", lambda x: x < n)),
    ],
)
def test_a_last_stage_that_has_skipped_what_it_will_passes_the_rest(
    core: Any, last: Callable[[int], Any], skipped: int, slot: str
) -> None:
    """Before, while and after a drain is generated, which it may be left out of."""
    collector, ring = Collector(), core.SpscRing(1024)
    slots = {"call": collector.on_next, "append": collector.seen.append, "ring": ring}
    run = make_run(core, range(400), last(skipped), slots[slot])
    while run.drain(90) is RunStatus.MORE:
        pass
    assert run.finish() is RunStatus.DONE
    assert [*collector.seen, *ring.poll_many(1024)] == list(range(skipped, 400))


def test_what_a_comparison_raises_is_the_stages_failure(core: Any, wrap: Wrap) -> None:
    class Odd:
        def __eq__(self, _other: object) -> bool:
            raise Problem

        __hash__ = None  # type: ignore[assignment]

    for n in (2, 40):
        program = (("map", wrap(lambda _: Odd())), ("distinct_until_changed", None))
        demand = core.DemandCounter(9)
        run = core.FusedRun(iter(range(n)), program, Collector().on_next, demand)
        assert run.drain(n) is RunStatus.FAILED
        assert isinstance(run.error, Problem)
        assert "distinct_until_changed" in run.error.__notes__[0]
        assert (demand.value, run.pulled) == (8, 2)


@pytest.mark.parametrize("op", ["map", "scan", "reduce"])
@pytest.mark.parametrize("at", [0, 30])
def test_spec213_none_from_a_stage_names_stage_and_function(
    core: Any, wrap: Wrap, op: str, at: int
) -> None:
    def absent_minded(*values: int) -> int | None:
        return None if values[-1] == at else values[-1]

    seed = () if op == "map" else (1000,) if at == 0 else (MISSING,)
    program = (("map", wrap(int)), (op, wrap(absent_minded), *seed))
    run = make_run(core, iter(range(100)), program)
    assert at == 0 or run.drain(20) is RunStatus.MORE
    assert run.drain(20) is RunStatus.FAILED
    assert isinstance(run.error, StageReturnedNoneError)
    name = "" if wrap is functools.partial else "absent_minded"
    assert all(word in str(run.error) for word in ("stage 2", op, name))
    assert run.pulled == at + 1


def test_scan_and_reduce_have_a_seed_that_is_not_shared(core: Any) -> None:
    program = (("batch", 2), ("scan", lambda a, b: [*a, *b], []))
    for _ in range(2):
        assert run_all(core, range(4), program) == [[0, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("program", "raises", "words"),
    [
        ((("flatten", double),), ValueError, "stage 1: unknown stage"),
        (((),), ValueError, "stage 1: unknown stage"),
        ((("map", double), ("peek", double)), ValueError, "stage 2"),
        ((("map", 3),), TypeError, "map needs a callable, got int"),
        ((("take", -1),), ValueError, "take"),
        ((("take", 1.0),), TypeError, "take"),
        ((("batch", 0),), ValueError, "batch"),
        ((("skip", "1"),), TypeError, "skip"),
        ((("scan", add),), ValueError, "seed"),
        ((("map",),), ValueError, "stage 1: map needs one argument"),
        ((("take",),), ValueError, "stage 1: take needs one argument"),
        ((("map", double, double),), ValueError, "one argument"),
    ],
)
def test_a_wrong_program_is_named(
    core: Any, program: Any, raises: type[Exception], words: str
) -> None:
    with pytest.raises(raises, match=words):
        core.FusedRun(None, program, print, core.DemandCounter())


def test_the_c_loop_has_the_stages_in_the_order_of_the_table() -> None:
    enum = re.search(r"enum Kind:\n *#.*\n([\sA-Z_]+)", C_LOOP.read_text())
    assert enum is not None
    assert enum[1].split() == [name.upper() for name in STAGES]


def test_the_documentation_of_a_run_has_each_stage_of_the_table() -> None:
    documented = re.findall(r'\("(\w+)", ', load("python").FusedRun.__doc__)
    assert documented == list(STAGES)


class Index:
    """A number that can do nothing but be one."""

    def __index__(self) -> int:
        return 100


def test_numbers_of_any_kind_are_counts(core: Any) -> None:
    for n in (Index(), np.int8(100)):
        for name in ("take", "batch", "skip"):
            whole = run_all(core, iter(range(250)), ((name, 100),))
            assert run_all(core, iter(range(250)), ((name, n),)) == whole
        assert make_run(core, None, (("batch", n), ("batch", n))).ratio == 10_000


def test_source_slot_and_demand_are_checked(core: Any) -> None:
    def make(source: Any = None, slot: Any = print, demand: Any = 5) -> None:
        core.FusedRun(source, (), slot, demand)

    for wrong in (None, 5):
        with pytest.raises(TypeError, match="slot must be callable or an SpscRing, got"):
            make(slot=wrong, demand=core.DemandCounter())
        with pytest.raises(TypeError, match="demand must be a DemandCounter, got"):
            make(demand=wrong)
    with pytest.raises(TypeError, match="not iterable"):
        make(3, demand=core.DemandCounter())


# -- demand and ends ------------------------------------------------------------------------------
def test_a_cancel_from_another_thread_stops_it(core: Any, wrap: Wrap) -> None:
    begun = threading.Event()
    demand = core.DemandCounter(UNBOUNDED)
    endless = (1 for _ in itertools.count())
    run = core.FusedRun(endless, (("map", wrap(int)),), wrap(lambda _: begun.set()), demand)
    thread = start_thread(lambda: run.drain(UNBOUNDED))
    wait_for(begun)
    demand.cancel()
    assert thread.result() is RunStatus.CANCELLED


def test_an_empty_iterator_may_have_more_later(core: Any) -> None:
    class Growing:
        def __init__(self) -> None:
            self.items: list[int] = []

        def __iter__(self) -> Growing:
            return self

        def __next__(self) -> int:
            if not self.items:
                raise StopIteration
            return self.items.pop(0)

    source, collector = Growing(), Collector()
    run = make_run(core, source, (), collector.on_next)
    assert run.drain(9) is RunStatus.EXHAUSTED
    source.items = [1, 2]
    assert run.drain(9) is RunStatus.EXHAUSTED
    assert collector.seen == [1, 2]


# -- failures -------------------------------------------------------------------------------------
def failing_at(k: int, error: BaseException) -> Callable[[int], int]:
    def function(x: int) -> int:
        if x == k:
            raise error
        return x

    return function


def test_what_do_on_next_raises_is_unraisable(core: Any, wrap: Wrap, unraisable: list[Any]) -> None:
    problem = Problem()
    observer = wrap(failing_at(3, problem))
    assert run_all(core, range(20), (("do_on_next", observer),)) == list(range(20))
    assert [(c.exc_value, c.object) for c in unraisable] == [(problem, observer)]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("where", ["source", "stage", "slot", "observer"])
def test_keyboard_interrupt_and_its_like_leave_with_the_accounts_right(
    core: Any, wrap: Wrap, interrupt: type[BaseException], where: str
) -> None:
    k = 12
    raising = failing_at(k, interrupt())
    collector = Collector()
    stage: tuple[Any, ...] = ("map", wrap(raising if where == "stage" else int))
    if where == "observer":
        stage = ("do_on_next", wrap(raising))
    source = map(raising if where == "source" else int, range(1, 99))
    slot = wrap(raising) if where == "slot" else wrap(collector.on_next)
    demand = core.DemandCounter(50)
    run = core.FusedRun(source, (stage,), slot, demand)
    with pytest.raises(interrupt):
        run.drain(90)
    assert run.pulled == k - (where == "source")
    assert demand.value == 50 - (k if where == "slot" else k - 1)
    if where != "slot":
        assert collector.seen == list(range(1, k))


def test_errors_show_the_users_frame(core: Any, wrap: Wrap) -> None:
    def culprit(_: Any) -> None:
        raise Problem

    run = make_run(core, iter(range(99)), (("map", wrap(culprit)),))
    assert run.drain(90) is RunStatus.FAILED
    assert traceback.extract_tb(run.error.__traceback__)[-1].name == "culprit"


def test_a_slot_that_asks_for_one_more_gets_it_in_the_same_drain(core: Any, wrap: Wrap) -> None:
    demand = core.DemandCounter(1)
    seen: list[int] = []

    def ask(element: int) -> None:
        seen.append(element)
        if element < 3:
            demand.request(1)

    run = core.FusedRun(iter(range(9)), (("map", wrap(double)),), ask, demand)
    assert (run.drain(1), seen) == (RunStatus.MORE, [0])
    assert (run.drain(9), seen) == (RunStatus.IDLE, [0, 2, 4])


def test_a_slot_that_goes_on_asking_leaves_others_their_turns(core: Any, wrap: Wrap) -> None:
    demand = core.DemandCounter(1)
    run = core.FusedRun(
        itertools.count(), (("map", wrap(double)),), lambda _: demand.request(1), demand
    )
    assert (run.drain(1000), run.pulled) == (RunStatus.MORE, 32)
    demand.request(99)
    assert (run.drain(1000), run.pulled) == (RunStatus.MORE, 132)


# -- rings and deques ------------------------------------------------------------------------------
def test_a_deque_is_emptied_and_may_be_filled_again(core: Any, wrap: Wrap) -> None:
    source: deque[int] = deque()
    collector = Collector()
    run = make_run(core, source, (("map", wrap(double)),), collector.on_next)
    assert run.drain(9) is RunStatus.EXHAUSTED
    for at in range(0, 300, 3):
        source += [at, at + 1, at + 2]
        assert run.drain(2) is RunStatus.MORE
        assert list(source) == [at + 2]
        assert run.drain(2) is RunStatus.EXHAUSTED
    assert collector.seen == [2 * n for n in range(300)]


def test_an_iterator_that_is_a_deque_besides_iterates_in_its_own_way(core: Any) -> None:
    class Newest(deque[int]):
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            if not self:
                raise StopIteration
            return self.pop()

    collector = Collector()
    run = make_run(core, Newest([1, 2, 3]), (), collector.on_next)
    assert run.drain(9) is RunStatus.EXHAUSTED
    assert collector.seen == [3, 2, 1]


def test_a_full_or_closed_ring_fails_the_slot(core: Any, wrap: Wrap) -> None:
    closed = core.SpscRing(12)
    closed.close()
    full = make_run(core, iter(range(99)), (("map", wrap(int)),), core.SpscRing(12))
    for run, kind in ((full, BufferOverflowError), (make_run(core, [1], (), closed), RingClosed)):
        assert run.drain(99) is RunStatus.SLOT_FAILED
        assert isinstance(run.error, kind)
    assert full.pulled == 13


# -- a function as a slot --------------------------------------------------------------------------
class Taking:
    """A ``FunctionSlot`` of a function that fails at the ``k``-th element."""

    def __init__(self, core: Any, wrap: Wrap, k: int, raised: BaseException | None = None) -> None:
        self.demand = core.DemandCounter(50)
        self.seen: list[int] = []
        self.answers: list[Any] = []
        self.unwanted: list[int] = []
        self.failures: list[BaseException] = []
        self.over: list[None] = []
        self._at, self._raised = k, raised
        others = self.over, self.answers.append, self.unwanted.append, self.failed
        self.slot = FunctionSlot(wrap(self.function), *others)

    def function(self, element: int) -> Any:
        self.seen.append(element)
        if self._raised is not None and element == self._at:
            raise self._raised
        return [None, 7, False][element % 3]

    def failed(self, raised: BaseException) -> None:
        self.failures.append(raised)
        if not isinstance(raised, Exception):
            raise raised
        self.demand.cancel()


def by_push(run: Any) -> Any:
    status, elements = RunStatus.MORE, iter(range(99))
    while status is RunStatus.MORE:
        status = run.push(next(elements))
    return status


def by_finish(run: Any) -> Any:
    assert run.drain(99) is RunStatus.EXHAUSTED
    return run.finish()


#: What has a run call its slot: the source, the stages, and how.
CALLED: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "drain": (lambda: iter(range(99)), (), lambda run: run.drain(90)),
    "push": (lambda: None, (), by_push),
    "finish": (lambda: iter(range(13)), (("reduce", max, MISSING),), by_finish),
}


@pytest.mark.parametrize("how", CALLED)
@pytest.mark.parametrize("kind", [Problem, KeyboardInterrupt])
def test_what_a_function_raises_is_its_owners_matter(
    core: Any, wrap: Wrap, how: str, kind: type[BaseException]
) -> None:
    """And what the owner raises then leaves through the call."""
    source, program, call = CALLED[how]
    raised = kind()
    taking = Taking(core, wrap, 12, raised)
    run = core.FusedRun(source(), program, taking.slot, taking.demand)
    if isinstance(raised, Problem):
        assert call(run) is RunStatus.CANCELLED
    else:
        with pytest.raises(KeyboardInterrupt) as caught:
            call(run)
        assert caught.value is raised
    assert taking.failures == [raised]
    assert run.error is None
    assert taking.seen[-1] == 12


def test_what_a_function_answers_matters_if_it_may(core: Any, wrap: Wrap) -> None:
    async def later() -> None: ...

    answers: list[Any] = [None, 7, False, later(), True, 0] * 4
    taking = Taking(core, wrap, -1)
    others = [], taking.answers.append, taking.failed, taking.failed
    slot = FunctionSlot(wrap(answers.__getitem__), *others)
    run = core.FusedRun(iter(range(24)), (), slot, taking.demand)
    assert run.drain(99) is RunStatus.EXHAUSTED
    assert taking.answers == [answers[2], answers[3]] * 4
    answers[3].close()


@pytest.mark.parametrize("k", [3, 12])
def test_a_function_that_wants_no_more_is_called_no_more(core: Any, wrap: Wrap, k: int) -> None:
    """Also if somebody says so while a stage has the element."""
    taking = Taking(core, wrap, -1)

    def stage(element: int) -> int:
        if element == k:
            taking.over.append(None)
            taking.demand.cancel()
        return element

    run = core.FusedRun(iter(range(99)), (("map", wrap(stage)),), taking.slot, taking.demand)
    assert run.drain(99) is RunStatus.CANCELLED
    assert taking.seen == list(range(k))
    assert taking.unwanted == [k]


# -- ownership ------------------------------------------------------------------------------------
def test_overlapping_and_nested_calls_are_refused(core: Any, wrap: Wrap) -> None:
    taken: list[int] = []

    def slot(element: int) -> None:
        for call in (lambda: run.drain(1), lambda: run.push(1), run.finish):
            with pytest.raises(OverlappingCallsError):
                call()
        taken.append(element)

    run = make_run(core, iter(range(20)), (("map", wrap(int)),), wrap(slot))
    assert run.drain(2) is RunStatus.MORE
    assert taken == [0, 1]


def test_spec313_clear_lets_go(core: Any, wrap: Wrap) -> None:
    class Source(list[int]):
        pass

    class Function:
        def __call__(self, x: int) -> int:
            return x

    for program in ((), (("map", wrap(int)), ("batch", 1000), ("scan", wrap(add), 0))):
        collector, source, function = Collector(), Source(range(50)), Function()
        watched = [weakref.ref(x) for x in (collector, source, function)]
        run = make_run(core, source, (("map", function), *program), wrap(collector.on_next))
        run.drain(20)
        run.clear()
        del collector, source, function
        for each in watched:
            wait_gone(each)
        run.clear()


@pytest.mark.parametrize("program", [(), (("map", int),), (("map", double), ("filter", bool))])
def test_spec313_clear_from_within_the_slot_waits_for_the_burst(
    core: Any, wrap: Wrap, program: Any
) -> None:
    seen = []

    def slot(x: Any) -> None:
        seen.append(x)
        demand.cancel()
        run.clear()

    program = tuple((op, wrap(f)) for op, f in program)
    demand = core.DemandCounter(UNBOUNDED)
    run = core.FusedRun(iter(range(1, 50)), program, wrap(slot), demand)
    for _ in range(2):
        assert run.drain(40) is RunStatus.CANCELLED
    assert len(seen) == 1


def test_spec313_neither_traceback_nor_locals_keep_the_subscriber(core: Any, wrap: Wrap) -> None:
    def fail(x: int) -> int:
        if x == 15:
            raise Problem
        return x

    collector = Collector()
    watched = weakref.ref(collector)
    run = make_run(core, iter(range(99)), (("map", wrap(fail)),), wrap(collector.on_next))
    assert run.drain(99) is RunStatus.FAILED
    error = run.error
    run.clear()
    del collector
    wait_gone(watched)
    assert isinstance(error, Problem)


@pytest.mark.parametrize("place", ["slot", "map"])
@pytest.mark.parametrize("way", ["drain", "push", "finish"])
def test_the_traceback_of_an_error_keeps_no_element(core: Any, way: str, place: str) -> None:
    element = Element()
    watched = weakref.ref(element)
    program: Any = (("map", len),) if place == "map" else ()
    if way == "finish":
        program = (("reduce", max, MISSING), *program)
    slot: Any = [].append if place == "map" else len
    source = None if way == "push" else iter([element])
    run = make_run(core, source, program, slot)
    if way == "push":
        assert run.push(element) is not RunStatus.MORE
    else:
        run.drain(9)
        if way == "finish":
            run.finish()
    error = run.error
    assert isinstance(error, TypeError)
    run.clear()
    del source, element
    wait_gone(watched)


def test_elements_are_released_one_by_one(core: Any, wrap: Wrap) -> None:
    living, program = Living(), (("map", wrap(lambda x: x)),)
    run = make_run(core, map(living.make, range(200)), program, wrap(lambda _: None))
    assert run.drain(500) is RunStatus.EXHAUSTED
    assert living.most <= 2
    assert living.alive.value == 0


def test_execution_says_how(core: Any) -> None:
    def executed(program: Any, slot: Any) -> str:
        return str(make_run(core, (), program, slot).execution)

    if core.__name__.endswith("_cython"):
        assert executed((("map", double), ("filter", odd)), Collector().on_next) == "generated"
        assert executed((("map", float),), [].append) == "c-loop"
        assert executed((), core.SpscRing(1)) == "c-loop"
    else:
        assert executed((("map", double),), print) == "interpreted"


def test_a_long_chain_of_runs_leaves_the_c_stack_alone(core: Any) -> None:
    """Each run's slot is the next one's push: C calls C, and no Python frame counts the depth."""
    runs = [make_run(core, None, (), [].append)]
    for _ in range(50_000):
        runs.append(make_run(core, None, (), runs[-1].push))
    runs[-1].push(1)
    assert sum(isinstance(run.error, RecursionError) for run in runs) == 1
    while runs:  # from the outermost on, so that dropping them does not nest either
        runs.pop()


def test_an_error_of_a_call_that_clears_the_run_stays_for_its_caller(core: Any) -> None:
    problem = OSError("the disk")

    def fail(_element: object) -> Any:
        run.clear()
        raise problem

    run = make_run(core, iter(range(9)), (("map", fail),), [].append)
    assert run.drain(9) is RunStatus.FAILED
    assert run.error is problem
    run.clear()
    assert run.error is None


def test_a_cleared_run_calls_nothing(core: Any) -> None:
    """Calling it is a mistake, but the functions are gone, and must not be looked for."""
    for program in ((), (("map", abs),), (("filter", functools.partial(bool)),)):
        run = make_run(core, iter([1, 2]), program, [].append)
        run.clear()
        gc.collect()
        for call in (lambda run=run: run.drain(5), lambda run=run: run.push(1), run.finish):
            with contextlib.suppress(Exception):
                call()
        assert run.error is None or isinstance(run.error, Exception)


def test_a_cleared_run_has_forgotten_the_list_it_appended_to(core: Any) -> None:
    seen: list[int] = []
    run = make_run(core, iter(range(99)), (("map", double),), seen.append)
    run.clear()
    references = sys.getrefcount(seen)
    run.drain(50)
    assert sys.getrefcount(seen) == references


FIRST_IMPORT = """
import fractions, pickle, time
import rstreams_fast as rsf

def same(x): return x

halves = [pickle.dumps(fractions.Fraction(1, 2))] * 2
days = ["Wed Jan  1 00:00:00 2020"] * 2
print(rsf.from_iterable(days).map(same).map(time.strptime).map(lambda t: t.tm_year).to_list())
print(rsf.from_iterable(halves).map(same).map(pickle.loads).map(str).map(same).to_list())
print(rsf.from_iterable(map(pickle.loads, halves)).map(lambda half: str(half)).to_list())

async def call(x): return x

print(rsf.range_(2).map(lambda x: call(x)).map(type).map(lambda kind: kind.__name__).to_list())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_called_may_import(backend: str) -> None:
    """A C function imports as the frame that calls it would; so does a warning's way out."""
    done = run_python("-c", FIRST_IMPORT, env={"RSTREAMS_FAST_BACKEND": backend})
    assert done.stdout.splitlines() == [
        "[2020, 2020]",
        "['1/2', '1/2']",
        "['1/2', '1/2']",
        "['coroutine', 'coroutine']",
    ]
    assert "coroutine 'call' was never awaited" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif("c" not in BACKENDS, reason="it is part of the compiled backend")
def test_who_keeps_the_gate_of_a_generated_drain_finds_it_shut() -> None:
    """It is a local variable of that drain, and so may be met by a person who debugs a stage."""
    gates: list[Any] = []

    def stage(x: int) -> int:
        gates.append(sys._getframe(1).f_locals["gate"])
        return x

    run = make_run(load("c"), iter(range(20)), (("map", stage),))
    assert run.execution == "generated"
    run.drain(20)
    gate = gates[0]
    calls: list[Callable[[], Any]] = [gate.in_stage, gate.in_slot, lambda: gate.dropped]
    calls += [gate.end, functools.partial(gate.count, 0), functools.partial(gate.held, 0)]
    for call in calls:
        with pytest.raises(AttributeError):
            call()
    assert list(gate) == []
