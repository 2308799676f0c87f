"""Queues between threads, compiled and the standard library's, and the pool with a bound."""

from __future__ import annotations

import asyncio
import copy
import gc
import importlib
import itertools
import queue
import random
import re
import sys
import sysconfig
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rstreams_fast.queues import BoundedExecutor
from tests.core.conftest import BACKENDS, HAS_GIL, run_interrupted
from tests.helpers import (
    DEADLINE,
    Element,
    Problem,
    TestThread,
    run_python,
    run_threads,
    start_thread,
    wait_for,
    wait_gone,
    wait_until,
)

COMPILED = sys.implementation.name == "cpython"
MODULES = ["_cython", "_spec"] if COMPILED else ["_spec"]
ROOT = Path(__file__).resolve().parents[2]
KINDS = ["Queue", "LifoQueue", "PriorityQueue"]
LINES = ["not_full", "not_empty", "all_tasks_done"]
needs_compiled = pytest.mark.skipif(not COMPILED, reason="this is about the compiled queues")


with_theirs = pytest.mark.parametrize("queues", [*MODULES, "theirs"], indirect=True)


@pytest.fixture(params=MODULES)
def queues(request: pytest.FixtureRequest) -> Any:
    if request.param == "theirs":
        return queue
    return importlib.import_module(f"rstreams_fast.core.{request.param}.queues")


@pytest.fixture
def compiled() -> Any:
    return importlib.import_module("rstreams_fast.core._cython.queues")


def waiting(q: Any, line: str) -> int:
    """How many threads wait in the queue for ``line``; asking changes nothing."""
    if hasattr(q, "_waiting") and "mutex" not in vars(q):
        return q._waiting(LINES.index(line))
    return len(vars(q)[line]._waiters)


def start_waiting(q: Any, call: Callable[[], Any], line: str) -> TestThread[Any]:
    """Start a thread that makes the call; return when it waits."""
    before = waiting(q, line)
    thread = start_thread(call)
    wait_until(lambda: waiting(q, line) > before, "the thread's wait")
    return thread


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as raised:
        return type(raised)


# ---- The standard library's face ----------------------------------------------------------------
@pytest.mark.parametrize("kind", [*KINDS, "SimpleQueue"])
def test_random_calls_do_what_the_standard_library_does(queues: Any, kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(20):
        size = chance.choice([-1, 0, 1, 2.5, 3, 70])
        arguments = () if kind == "SimpleQueue" else (size,)
        ours, theirs = getattr(queues, kind)(*arguments), getattr(queue, kind)(*arguments)
        names = ["put", "put", "get", "put_nowait", "get_nowait", "empty", "qsize"]
        if kind != "SimpleQueue":
            names += ["full", "task_done"]
        for _ in range(500):
            name = chance.choice(names)
            args: tuple[Any, ...] = ()
            if name.startswith("put"):
                args = (chance.randrange(1000),)
            if name in {"put", "get"}:
                args += chance.choice([(False,), (True, 0), (True, 0.0), (True, -1), (False, -1)])
            assert outcome(partial(getattr(ours, name), *args)) == outcome(
                partial(getattr(theirs, name), *args)
            ), (name, args)
            if kind != "SimpleQueue":
                assert ours.unfinished_tasks == theirs.unfinished_tasks
                assert ours.maxsize == theirs.maxsize


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_is_one_of_the_standard_library_s(queues: Any, kind: str) -> None:
    cls = getattr(queues, kind)
    assert isinstance(cls(), getattr(queue, kind))
    assert isinstance(cls(), queues.Queue)
    assert cls[int]


def test_a_call_that_waits_gives_up_in_time(queues: Any) -> None:
    q = queues.Queue(1)
    begun = time.monotonic()
    assert outcome(partial(q.get, timeout=0.05)) is queue.Empty
    q.put(1)
    assert outcome(partial(q.put, 2, timeout=0.05)) is queue.Full
    assert time.monotonic() - begun >= 0.1
    assert waiting(q, "not_empty") == waiting(q, "not_full") == 0
    assert q.get() == 1


@needs_compiled
@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_who_is_woken_for_what_another_took_gives_up_in_time(compiled: Any, kind: str) -> None:
    """The ``SimpleQueue`` of CPython before 3.13 waits for ever if that comes as time is over."""
    q = getattr(compiled, kind)()
    over = threading.Event()

    def wait_again_and_again() -> None:
        while not over.is_set():
            outcome(partial(q.get, timeout=0.001))

    threads = [start_thread(wait_again_and_again) for _ in range(3)]
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        q.put(1)
        outcome(q.get_nowait)
    over.set()
    for thread in threads:
        thread.result()


@needs_compiled
def test_no_number_is_no_time_out(compiled: Any) -> None:
    for wait_ in (compiled.Queue().get, compiled.SimpleQueue().get):
        with pytest.raises(ValueError, match="non-negative"):
            wait_(timeout=float("nan"))


def test_a_simple_queue_takes_no_bound(queues: Any) -> None:
    for call in (partial(queues.SimpleQueue, 3), partial(queues.SimpleQueue, maxsize=3)):
        assert outcome(call) is TypeError


def test_more_room_wakes_a_put(queues: Any) -> None:
    q = queues.Queue(1)
    q.put(1)
    put = start_waiting(q, partial(q.put, 2), "not_full")
    q.maxsize = 3
    q.put(3)  # which the standard library needs to notice
    q.get()
    put.result()


@pytest.mark.parametrize("immediate", [False, True])
def test_shutdown_wakes_all(queues: Any, immediate: bool) -> None:
    full, empty = queues.Queue(1), queues.Queue()
    full.put(1)
    threads = [start_waiting(full, partial(full.put, n), "not_full") for n in (2, 3)]
    threads += [start_waiting(empty, empty.get, "not_empty") for _ in range(2)]
    joined = start_waiting(full, full.join, "all_tasks_done")
    for q in (full, empty):
        q.shutdown(immediate)
        assert q.is_shutdown
    for call in (*(thread.result for thread in threads), partial(full.put_nowait, 4)):
        assert outcome(call) is queues.ShutDown
    if not immediate:
        assert full.get() == 1
        full.task_done()
    joined.result()
    assert outcome(full.get_nowait) is queues.ShutDown


@pytest.mark.parametrize("line", LINES)
def test_a_user_may_enter_the_conditions_after_a_shutdown(queues: Any, line: str) -> None:
    q = queues.Queue()
    q.shutdown()
    with getattr(q, line) as entered:
        getattr(q, line).wait(0)
        assert entered
    for call in (partial(q.put, 1), q.get, partial(q.put, 1, False), partial(q.get, False)):
        assert outcome(call) is queues.ShutDown


def test_a_shutdown_at_once_does_not_finish_what_was_taken(queues: Any) -> None:
    q = queues.Queue()
    q.put(1)
    q.put(2)
    q.get()
    joined = start_waiting(q, q.join, "all_tasks_done")
    q.shutdown(immediate=True)
    assert q.unfinished_tasks == 1
    wait_until(lambda: waiting(q, "all_tasks_done"), "the join, again")
    q.task_done()
    joined.result()


# ---- Becoming the standard library's queue ------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_a_subclass_are_called(queues: Any, kind: str) -> None:
    class Refusing(getattr(queues, kind)):  # type: ignore[misc]
        refuses = False

        def _put(self, item: int) -> None:
            if self.refuses:
                raise Problem
            super()._put(item)

        def _get(self) -> int:
            return super()._get() + 100

    q = Refusing(2)
    q.put(1)
    q.refuses = True
    assert outcome(partial(q.put, 2)) is Problem
    assert q.qsize() == q.unfinished_tasks == 1
    assert q.get() == 101
    q.shutdown()
    assert outcome(q.get) is queues.ShutDown


def test_one_that_asks_for_the_mutex_finds_all_that_is_there(queues: Any) -> None:
    q = queues.Queue(3)
    for i in range(3):
        q.put(i)
    put = start_waiting(q, partial(q.put, 3), "not_full")
    with q.mutex:
        assert list(q.queue) == [0, 1, 2]
        assert q.unfinished_tasks == 3
        q.queue.clear()
        q.not_full.notify()
    put.result()
    assert q.get() == 3
    got = start_waiting(q, q.get, "not_empty")
    q.put(4)
    assert got.result() == 4
    assert q.mutex is q.not_empty._lock
    q.shutdown()
    assert q.is_shutdown


@pytest.mark.parametrize("first", ["mutex", *LINES])
def test_conditions_that_a_user_sets_are_the_queue_s(queues: Any, first: str) -> None:
    q = queues.Queue()
    mutex = threading.RLock()
    own = {"mutex": mutex, **{line: threading.Condition(mutex) for line in LINES}}
    for name in sorted(own, key=lambda name: name != first):
        setattr(q, name, own[name])

    def wait_for_an_element() -> bool:
        with q.not_empty:
            return bool(q.not_empty.wait_for(q._qsize, DEADLINE))

    woken = start_waiting(q, wait_for_an_element, "not_empty")
    q.put(1)
    assert woken.result(2 * DEADLINE)


def test_another_container_may_take_the_place_of_the_queue_s(queues: Any) -> None:
    q = queues.Queue()
    q.put(1)
    q.queue = deque([2, 3])
    assert [q.get(), q.qsize()] == [2, 1]
    q.queue = deque([4])
    assert list(q.queue) == [4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_subclass_may_have_a_container_of_its_own(queues: Any, kind: str) -> None:
    class Distinct(getattr(queues, kind)):  # type: ignore[misc]
        def _init(self, maxsize: int) -> None:
            self.elements: dict[int, None] = {}

        def _qsize(self) -> int:
            return len(self.elements)

        def _put(self, item: int) -> None:
            self.elements[item] = None

        def _get(self) -> int:
            return self.elements.popitem()[0]

    q = Distinct()
    q.put(1)
    q.put(1)
    assert [q.qsize(), q.get()] == [1, 1]
    assert not hasattr(q, "queue")


def test_who_waits_goes_on_waiting_in_the_queue_it_becomes(queues: Any) -> None:
    q = queues.LifoQueue()
    got = start_waiting(q, q.get, "not_empty")
    assert q.queue == []
    wait_until(lambda: waiting(q, "not_empty"), "the get, there")
    q.put(1)
    assert got.result() == 1


@with_theirs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", ["_put", "_get", "_qsize"])
def test_hooks_of_an_instance_are_called(queues: Any, kind: str, hook: str) -> None:
    q = getattr(queues, kind)()
    q.put(1)
    called = []
    of_the_class = getattr(q, hook)

    def instead(*element: Any) -> Any:
        called.append(element)
        return of_the_class(*element)

    setattr(q, hook, instead)
    q.put(2)
    assert sorted([q.get(), q.get()]) == [1, 2]
    assert called
    delattr(q, hook)
    q.put(3)
    assert q.get() == 3


@with_theirs
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_shares_the_elements(queues: Any, kind: str) -> None:
    class Named(getattr(queues, kind)):  # type: ignore[misc]
        name = ""

    q = Named(maxsize=3)
    q.name = "orders"
    q.put(1)
    other = copy.copy(q)
    assert (type(other), other.name) == (Named, "orders")
    assert (other.maxsize, other.unfinished_tasks) == (3, 1)
    other.put(2)
    q.put(0)
    assert q.full()
    assert sorted([q.get(), other.get(), q.get()]) == [0, 1, 2]
    with pytest.raises(TypeError):
        copy.deepcopy(q)


@with_theirs
def test_a_simple_queue_has_no_copy(queues: Any) -> None:
    with pytest.raises(TypeError):
        copy.copy(queues.SimpleQueue())


# ---- Memory -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["Queue", "LifoQueue", "SimpleQueue"])
def test_a_queue_in_a_circle_is_collected(queues: Any, kind: str) -> None:
    q, element = getattr(queues, kind)(), Element()
    element.queue = q  # type: ignore[attr-defined]
    q.put(element)
    gone = weakref.ref(element)
    del q, element
    wait_gone(gone, "the element")


@pytest.mark.parametrize("kind", [*KINDS, "SimpleQueue"])
def test_nothing_is_kept_of_what_was_taken(queues: Any, kind: str) -> None:
    q = getattr(queues, kind)()
    for _ in range(40):
        q.put((id(element := Element()), element))
        del element
    while not q.empty():
        gone = weakref.ref(q.get()[1])
        wait_gone(gone, "the element")
    q.put((0, element := Element()))
    gone = weakref.ref(element)
    del q, element
    wait_gone(gone, "what a queue had")


def test_a_deep_nest_of_queues_is_freed(queues: Any) -> None:
    inner: Any = Element()
    gone = weakref.ref(inner)
    for _ in range(100_000):
        outer = queues.SimpleQueue()
        outer.put(inner)
        inner = outer
    del inner, outer
    wait_gone(gone)


def test_a_finalizer_may_put_into_the_queue_it_interrupts(queues: Any) -> None:
    q, numbers = queues.SimpleQueue(), itertools.count()
    seen: list[int] = []

    class Circle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            q.put(next(numbers))

    while not seen or seen[-1] < 3000:
        Circle()
        q.put(next(numbers))
        seen.append(q.get())
    gc.collect()
    while not q.empty():
        seen.append(q.get())
    assert sorted(seen) == list(range(len(seen)))


@needs_compiled
def test_room_for_many_is_given_back(compiled: Any) -> None:
    q = compiled.Queue()
    for _ in range(2):
        deque(map(q.put, range(100_000)), maxlen=0)
        assert [q.get() for _ in range(100_000)] == list(range(100_000))


# ---- Fairness -----------------------------------------------------------------------------------
def test_who_waits_is_served_in_order_of_arrival(queues: Any) -> None:
    q = queues.Queue(1)
    getters = [start_waiting(q, q.get, "not_empty") for _ in range(4)]
    for i, getter in enumerate(getters):
        q.put(i)
        assert getter.result() == i
    q.put(-1)
    putters = [start_waiting(q, partial(q.put, i), "not_full") for i in range(4)]
    assert q.get() == -1
    for i, putter in enumerate(putters):
        putter.result()
        assert q.get() == i


@needs_compiled
@pytest.mark.skipif(not HAS_GIL, reason="without a GIL the one that waits is faster")
def test_newcomers_pass_a_few_times_only(compiled: Any) -> None:
    q = compiled.Queue()
    patience = 16
    getter = start_waiting(q, q.get, "not_empty")

    def put_and_get(element: object) -> Any:
        # In C, so that the GIL stays here unless the get waits.
        return next(zip(map(q.put, [element]), itertools.starmap(q.get, [()]), strict=True))[1]

    for i in range(patience):
        assert put_and_get(i) == i
        wait_until(lambda: waiting(q, "not_empty"), "the getter's next wait")
    then = start_thread(lambda: (getter.result(), q.put("next")))
    assert put_and_get("the getter's") == "next"
    assert getter.result() == "the getter's"
    then.result()


# ---- Many threads -------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("kind", [*KINDS, "SimpleQueue"])
def test_many_producers_and_consumers_lose_nothing(queues: Any, kind: str, size: int) -> None:
    q = getattr(queues, kind)(*(() if kind == "SimpleQueue" else (size,)))
    sides, each = 4, 100

    def produce(first: int) -> list[int]:
        for i in range(first, first + each):
            timeout = None if i % 3 else 0.001
            while outcome(partial(q.put, i, timeout=timeout)) is queue.Full:
                pass
        return []

    def consume() -> list[int]:
        taken: list[int] = []
        while len(taken) < each:
            call = (q.get, q.get, q.get_nowait, partial(q.get, timeout=0.001))[len(taken) % 4]
            got = outcome(call)
            if got is not queue.Empty:
                taken.append(got)
        return taken

    calls = [partial(produce, n * each) for n in range(sides)] + [consume] * sides
    taken = run_threads(calls, timeout=3 * DEADLINE)[sides:]
    assert sorted(itertools.chain(*taken)) == list(range(sides * each))
    if kind in {"Queue", "SimpleQueue"}:  # each producer's elements in its order
        for part in taken:
            for n in range(sides):
                mine = [i for i in part if i // each == n]
                assert mine == sorted(mine)


@pytest.mark.parametrize("immediate", [False, True])
def test_a_shutdown_among_many_threads_ends_them_all(queues: Any, immediate: bool) -> None:
    for _ in range(10):
        q = queues.Queue(4)
        accepted, taken = deque[int](), deque[int]()  # whose appends need no lock

        def produce(q: Any = q, accepted: deque[int] = accepted) -> None:
            for i in itertools.count():
                if outcome(partial(q.put, i)) is queues.ShutDown:
                    return
                accepted.append(i)

        def consume(q: Any = q, taken: deque[int] = taken) -> None:
            while (element := outcome(q.get)) is not queues.ShutDown:
                taken.append(element)
                q.task_done()

        def end(q: Any = q, taken: deque[int] = taken) -> None:
            wait_until(lambda: len(taken) > 20, "some elements")
            q.shutdown(immediate)
            if not immediate:
                q.join()

        run_threads([produce] * 3 + [consume] * 3 + [end], timeout=3 * DEADLINE)
        assert q.qsize() == 0
        if immediate:
            assert len(taken) <= len(accepted) <= len(taken) + 4
        else:
            assert sorted(taken) == sorted(accepted)
            assert q.unfinished_tasks == 0


WAITS = """
from rstreams_fast.queues import Queue, SimpleQueue, BoundedExecutor
full = Queue(1)
full.put(0)
pool, go = BoundedExecutor(1, max_queue_size=1), threading.Event()
pool.submit(go.wait)
pool.submit(go.wait)
calls = [Queue().get, SimpleQueue().get, full.join, lambda: full.put(1),
         lambda: Queue().get(timeout=60), lambda: pool.submit(go.wait)]
wait = lambda: time.sleep(0.05)
"""
AFTERWARDS = """
assert full.get(timeout=1) == 0
full.put(2, timeout=1)
go.set()
pool.shutdown()
"""


def test_ctrl_c_ends_every_wait(promptly: float) -> None:
    run_interrupted(WAITS, AFTERWARDS, promptly)


WOKEN = """
import signal, threading, time
from importlib import import_module
queues = import_module("rstreams_fast.core.{module}.queues")
for attempt in range(10):
    q = queues.{kind}({arguments})
    {prepare}
    def interrupt_and_wake():
        while {waiting} == 0:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGINT)
        {wake}
    thread = threading.Thread(target=interrupt_and_wake)
    returned = False
    try:
        thread.start()
        {call}
        returned = True
    except KeyboardInterrupt:
        pass
    thread.join()
    assert q.qsize() == {left}, (attempt, returned, q.qsize())
"""
EMPTY = ("q._waiting(1)", "len(q.not_empty._waiters)", "q.put(1)", "q.get()", "1 - returned")
FULL = ("q._waiting(0)", "len(q.not_full._waiters)", "q.get()", "q.put(1)", "int(returned)")


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("kind", "arguments", "case"),
    [("Queue", "", EMPTY), ("Queue", "1", FULL), ("SimpleQueue", "", EMPTY)],
)
def test_ctrl_c_that_meets_a_wake_up_loses_nothing(
    module: str, kind: str, arguments: str, case: tuple[str, ...]
) -> None:
    if kind == "SimpleQueue" and module == "_spec":
        pytest.skip("the standard library's SimpleQueue loses the element")
    in_c, in_python, wake, call, left = case
    program = WOKEN.format(
        module=module,
        kind=kind,
        arguments=arguments,
        prepare="q.put(0)" if arguments else "",
        waiting=in_python if module == "_spec" else in_c,
        wake=wake,
        call=call,
        left=left,
    )
    run_python("-c", program)


STORM = """
import signal, threading
from rstreams_fast.queues import Queue, ShutDown
q, each, taken, others, inside = Queue(2), 3000, [], [], False
def produce(first):
    for i in range(first, first + each):
        q.put(i)
producers = [threading.Thread(target=produce, args=(first,)) for first in (0, each)]
def interrupt(*_):
    global inside
    if inside:
        inside = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
def consume():
    try:
        others.extend(iter(q.get, None))
    except ShutDown:
        pass
consumer = threading.Thread(target=consume)
def storm():
    while any(thread.is_alive() for thread in producers):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        producers[0].join(0.0005)
    q.shutdown()
for thread in (*producers, consumer):
    thread.start()
killer = threading.Thread(target=storm)
killer.start()
over, interrupted = False, 0
while not over:
    try:
        inside = True
        try:
            taken.extend(iter(q.get, None))  # all in C: it is interrupted in a wait only
        except ShutDown:
            over = True
        inside = False
    except KeyboardInterrupt:
        interrupted += 1
killer.join()
consumer.join()
assert sorted(taken + others) == list(range(2 * each)), (len(taken), len(others))
print(interrupted)
"""


# A signal that meets a thread in a wait for a lock of the interpreter's own breaks that lock.
BREAKS_ITS_LOCKS = bool(sysconfig.get_config_var("Py_GIL_DISABLED")) and (
    sys.version_info < (3, 13, 14) or (3, 14) <= sys.version_info < (3, 14, 5)
)


@needs_compiled
@pytest.mark.skipif(sys.platform == "win32", reason="no signal is sent to a thread")
@pytest.mark.skipif(BREAKS_ITS_LOCKS, reason="a bug of CPython's, gh-148820, crashes it")
def test_a_storm_of_ctrl_c_loses_nothing() -> None:
    assert int(run_python("-c", STORM, env={"RSTREAMS_FAST_BACKEND": "c"}).stdout) > 0


FORKED = """
import os, threading, time, warnings
from rstreams_fast.queues import Queue
warnings.simplefilter("ignore")
empty, full = Queue(), Queue(1)
full.put(0)
threads = [threading.Thread(target=call, daemon=True)
           for call in [empty.get, lambda: full.put(1), full.join] * 3]
for thread in threads:
    thread.start()
while [q._waiting(n) for q, n in ((empty, 1), (full, 0), (full, 2))] != [3, 3, 3]:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    empty.put(1)
    assert empty.get(timeout=10) == 1  # it is not given to one that exists in the parent only
    assert full.get() == 0
    full.put(2, timeout=10)
    assert full.get() == 2
    full.task_done()
    full.task_done()
    full.join()
    assert [q._waiting(n) for q in (empty, full) for n in range(3)] == [0] * 6
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_compiled
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_the_child_of_a_fork_forgets_who_waited() -> None:
    run_python("-c", FORKED, env={"RSTREAMS_FAST_BACKEND": "c"})


FORKED_IN_A_WAIT = """
import os, signal, threading, time, warnings
from rstreams_fast.queues import Queue
warnings.simplefilter("ignore")
q = Queue()
others = [threading.Thread(target=q.get, daemon=True) for _ in range(2)]
child = -1
def fork(*_):
    global child
    child = os.fork()
    if child == 0:
        signal.alarm({deadline})
        threading.Thread(target=q.put, args=(1,)).start()
signal.signal(signal.SIGUSR1, fork)
def interrupt():
    while q._waiting(1) < 2:
        time.sleep(0.001)
    others[1].start()
    while q._waiting(1) < 3:
        time.sleep(0.001)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    while child < 0:
        time.sleep(0.001)
    for n in range(3):
        q.put(n)
others[0].start()
while q._waiting(1) < 1:
    time.sleep(0.001)
threading.Thread(target=interrupt).start()
q.get()
if child == 0:
    assert [q._waiting(n) for n in range(3)] == [0] * 3
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_compiled
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_fork_in_a_signal_handler_goes_on_waiting_in_the_child() -> None:
    program = FORKED_IN_A_WAIT.format(deadline=int(DEADLINE))
    run_python("-c", program, env={"RSTREAMS_FAST_BACKEND": "c"})


EXIT = """
import builtins, threading, time
from rstreams_fast.queues import Queue
queue = Queue()
class Late:
    def __del__(self):
        for n in range(20000):
            queue.put(n)
            queue.get(timeout=30)
        print("done", flush=True)
def get(depth):
    return get(depth - 1) if depth else queue.get()
threading.stack_size(64 << 20)
for depth in (0, 1, 5):
    threading.Thread(target=get, args=(depth,), daemon=True).start()
while queue._waiting(1) < 3:
    time.sleep(0.001)
builtins.late = Late()
"""


@needs_compiled
def test_a_finalizer_uses_a_queue_after_the_threads_that_waited_are_gone() -> None:
    said = run_threads([lambda: run_python("-c", EXIT).stdout] * 4, timeout=4 * DEADLINE)
    assert said == ["done\n"] * 4


WAIT = """
import sys
from rstreams_fast import SpscRing
{patch}
try:
    SpscRing(1).get(timeout=10)
except RuntimeError as refused:
    print(refused)
try:
    import rstreams_fast.queues
except ImportError as refused:
    print(refused)
"""


@needs_compiled
def test_greenlets_are_told_that_they_cannot_wait_here(patch_of_greenlets: str) -> None:
    env = {"RSTREAMS_FAST_BACKEND": "c", "PYTHONWARNINGS": "ignore"}
    refused = run_python("-c", WAIT.format(patch=patch_of_greenlets), env=env).stdout.splitlines()
    assert len(refused) == 2
    assert all("would block every greenlet" in sentence for sentence in refused)
    # Another backend has rings for greenlets, but no queues.
    assert ["RSTREAMS_FAST_BACKEND=python" in sentence for sentence in refused] == [True, False]


# ---- The pool with a bound ----------------------------------------------------------------------
def fill(pool: BoundedExecutor, go: threading.Event, size: int) -> list[Future[Any]]:
    """Have one thread run, and ``size`` calls wait."""
    running = threading.Event()

    def run() -> bool:
        running.set()
        return go.wait(DEADLINE)

    first = pool.submit(run)
    wait_for(running, "the first call")
    return [first, *(pool.submit(go.wait, DEADLINE) for _ in range(size))]


def start_submit(pool: BoundedExecutor, call: Callable[[], Any]) -> TestThread[Future[Any]]:
    return start_waiting(pool._places, partial(pool.submit, call), "not_full")


def test_a_submit_waits_for_room() -> None:
    go = threading.Event()
    with BoundedExecutor(1, max_queue_size=2) as pool:
        futures = fill(pool, go, 2)
        submit = start_submit(pool, lambda: "late")
        go.set()
        assert submit.result().result(DEADLINE) == "late"
        assert wait(futures, DEADLINE).not_done == set()
        assert list(pool.map(abs, range(-9, 0))) == list(range(9, 0, -1))


def test_a_cancelled_call_frees_its_place_when_its_turn_comes() -> None:
    go = threading.Event()
    with BoundedExecutor(1, max_queue_size=1) as pool:
        _, second = fill(pool, go, 1)
        assert second.cancel()
        submit = start_submit(pool, lambda: 1)
        go.set()
        assert submit.result().result(DEADLINE) == 1


def test_shutdown_wakes_a_submit_that_waits() -> None:
    go = threading.Event()
    pool = BoundedExecutor(1, max_queue_size=1)
    futures = fill(pool, go, 1)
    submit = start_submit(pool, lambda: 1)
    pool.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after shutdown"):
        submit.result()
    go.set()
    assert [each.result(DEADLINE) for each in futures] == [True, True]
    pool.shutdown()


def test_cancel_futures_leaves_what_runs() -> None:
    go = threading.Event()
    pool = BoundedExecutor(1, max_queue_size=3)
    first, *others = fill(pool, go, 3)
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(each.cancelled() for each in others)
    go.set()
    assert first.result(DEADLINE)
    pool.shutdown()


def test_a_thread_of_the_pool_does_not_wait_for_itself() -> None:
    def submit_two() -> Future[int]:
        pool.submit(int)
        return pool.submit(int)

    with BoundedExecutor(1, max_queue_size=1) as pool:
        with pytest.raises(RuntimeError, match="1 calls wait already"):
            pool.submit(submit_two).result(DEADLINE)
        assert pool.submit(int).result(DEADLINE) == 0


def test_a_broken_pool_refuses_and_keeps_no_place(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise Problem

    with BoundedExecutor(1, max_queue_size=1, initializer=fail) as pool:
        with pytest.raises(RuntimeError):
            pool.submit(int).result(DEADLINE)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="initializer failed"):
                pool.submit(int)
    assert "Exception in initializer" in caplog.text


PLACES = """
import signal, time
from rstreams_fast.queues import BoundedExecutor
def interrupt():
    while {waiting} == 0:
        time.sleep(0.001)
    signal.raise_signal(signal.SIGINT)
for _ in range(10):
    pool = BoundedExecutor(1, max_queue_size=1)
    places = pool._places
    try:
        pool.submit(interrupt)  # which ends, and so wakes the third submit
        pool.submit(int)
        pool.submit(int)
    except KeyboardInterrupt:
        pass
    pool.shutdown()
    assert places.qsize() == 0
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_that_meets_a_free_place_keeps_none(backend: str) -> None:
    waiting_ = "places._waiting(0)" if backend == "c" else "len(places.not_full._waiters)"
    program = PLACES.format(waiting=waiting_)
    run_python("-c", program, env={"RSTREAMS_FAST_BACKEND": backend})


def test_a_failed_submit_keeps_the_place_of_a_call_that_waits() -> None:
    class Name(str):
        __slots__ = ()

        def __str__(self) -> str:
            if fails:
                raise Problem
            return "pool"

    async def submit() -> None:
        pool.submit(int)

    fails, ran = [True], threading.Event()
    # The pool asks for the name after it has put the call into its queue.
    with BoundedExecutor(1, max_queue_size=1, thread_name_prefix=Name("pool")) as pool:
        with pytest.raises(Problem):
            pool.submit(ran.set)
        with pytest.raises(RuntimeError, match="1 calls wait already"):
            asyncio.run(submit())
        fails.clear()
        pool.submit_at_once(int)
        wait_for(ran, "the call that waited")
        assert pool.submit(int).result(DEADLINE) == 0
    assert pool._places.qsize() == 0


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_the_bound_is_checked(size: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_queue_size"):
        BoundedExecutor(1, max_queue_size=size)


# ---- CPython's own tests ------------------------------------------------------------------------
def run_theirs(suite: str, at_least: int) -> None:
    program = ("-m", "tests.core.stdlib_suites", suite)
    done = run_python(*program, cwd=ROOT, check=False, timeout=280)  # it sleeps now and then
    if re.search(r"No module named 'test['.]", done.stderr):
        pytest.skip("this interpreter came without its tests (Debian: libpython3.*-testsuite)")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= at_least  # before that the tests themselves print


@pytest.mark.timeout(300)
def test_cpython_s_tests_of_queues() -> None:
    run_theirs("queue", 25)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cpython_s_tests_of_thread_pools() -> None:
    run_theirs("pool", 35)
