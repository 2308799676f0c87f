"""The drop-in's calls: in order, on threads and on a loop; after a failure; within bytes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rstreams_fast.spark.daemon.admission import Admission
from rstreams_fast.spark.daemon.calls import (
    CallSubmitter,
    LoopCalls,
    ThreadCalls,
    batches_in_order,
    rows_in_order,
)
from rstreams_fast.spark.daemon.compare import compared_rows
from rstreams_fast.spark.daemon.seam_check import seam_mismatch
from rstreams_fast.spark.daemon.steps import Step
from tests.helpers import DEADLINE, run_python, wait_until

MIB = 1 << 20


@pytest.fixture
def admission() -> Admission:
    return Admission()


@pytest.fixture
def threads(admission: Admission) -> Iterator[ThreadCalls]:
    made = ThreadCalls(4, "test", admission)
    yield made
    made.close()
    made.join()


@pytest.fixture
def loop(backend: str, admission: Admission) -> Iterator[LoopCalls]:
    made = LoopCalls(4, 16, admission)
    yield made
    made.close()
    made.join()


def test_rows_and_batches_are_taken_ahead_up_to_the_bound(
    threads: ThreadCalls, admission: Admission
) -> None:
    taken: list[int] = []

    def each(made: Callable[[int], Any]) -> Iterator[Any]:
        taken.clear()
        for x in range(100):
            taken.append(x)
            yield made(x)

    outcomes = rows_in_order(each(lambda x: threads.submit(int, (x,))), 8, admission)
    assert next(outcomes) == 0
    assert len(taken) == 8
    of_hundred = each(lambda x: (threads.submit(lambda x: [x], (x,)), 100))
    outcomes = batches_in_order(of_hundred, 1, admission)
    assert next(outcomes) == 0
    assert taken == [0, 1]
    assert list(outcomes) == list(range(1, 100))
    # A row may have several calls, and values.
    rows = [(threads.submit(int, ("1",)), "as it is", threads.submit(str, (2,)))]
    assert list(rows_in_order(rows, 2, admission)) == [(1, "as it is", "2")]


def test_closing_abandons_what_has_not_begun(admission: Admission) -> None:
    threads = ThreadCalls(1, "test", admission)
    begun, go = threading.Event(), threading.Event()

    def call() -> bool:
        begun.set()
        return go.wait(DEADLINE)

    first, second = threads.submit(call, ()), threads.submit(call, ())
    assert begun.wait(DEADLINE)
    threads.close()
    late = threads.submit(call, ())
    for call_ in (second, late):
        with pytest.raises(RuntimeError, match="task ended"):
            call_.outcome()
    go.set()
    assert first.outcome()
    threads.join()


DEEP = """
from rstreams_fast.spark.daemon.admission import Admission
from rstreams_fast.spark.daemon.calls import ThreadCalls

def deep(_):
    return sorted([0], key=deep)

threads = ThreadCalls(1, "test", Admission())
try:
    threads.submit(deep, (0,)).outcome()
except RecursionError:
    print("as on the main thread")
"""


def test_a_call_may_be_as_deep_in_itself_as_on_the_main_thread() -> None:
    assert run_python("-c", DEEP).stdout == "as on the main thread\n"


LIMITED = """
import resource, threading
from pathlib import Path
from rstreams_fast.spark.daemon.admission import Admission
from rstreams_fast.spark.daemon.calls import ThreadCalls

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
threads, barrier = ThreadCalls(32, "test", Admission()), threading.Barrier(32)

def reserved():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() >> 20

def allocates(_):
    barrier.wait(60)
    return bytearray(2000)

before = reserved()
kept = [call.outcome() for call in [threads.submit(allocates, (0,)) for _ in range(32)]]
print(reserved() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of addresses is Linux's")
def test_threads_reserve_little_where_a_worker_s_memory_is_limited() -> None:
    assert int(run_python("-c", LIMITED).stdout) < 100


def test_coroutines_overlap_on_the_loop_and_none_of_a_chain_runs_twice(
    loop: LoopCalls, admission: Admission
) -> None:
    running, most, before = set(), [0], []

    async def suspends(x: int) -> int:
        running.add(x)
        most[0] = max(most[0], len(running))
        await asyncio.sleep(0.001)
        running.discard(x)
        return x + 1

    def ahead(x: int) -> int:
        before.append(x)
        return 2 * x

    steps = (Step(ahead), Step(suspends), Step(suspends))

    def chained(x: int) -> int:
        for step in steps:
            x = step(x)
        return x

    rows = (loop.submit(chained, (x,)) for x in range(50))
    assert list(rows_in_order(rows, 16, admission)) == [2 * x + 2 for x in range(50)]
    assert before == list(range(50))
    assert most == [4]


def test_a_step_that_returns_the_awaitable_runs_the_code_above_it_once(loop: LoopCalls) -> None:
    calls = []

    async def suspends(x: int) -> int:
        await asyncio.sleep(0)
        if x == 3:
            raise ValueError("three")
        return 2 * x

    step = Step(suspends)
    step.returns_awaitable = True

    def passes(x: int) -> object:
        calls.append(x)
        return step(x)

    *before, last = (loop.submit(passes, (x,)) for x in (4, 5, 3))
    assert [call.outcome() for call in before] == [8, 10]
    with pytest.raises(ValueError, match="three"):
        last.outcome()
    assert calls == [4, 5, 3]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_coroutine_raises_is_the_outcome(loop: LoopCalls, error: BaseException) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)):
        loop.submit(Step(fails), ()).outcome()


def test_closing_cancels_coroutines_and_wakes_who_waits_for_them(loop: LoopCalls) -> None:
    cancelled, begun = [], []

    async def waits(x: int) -> None:
        begun.append(x)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(x)

    made = [loop.submit(Step(waits), (x,)) for x in range(6)]
    wait_until(lambda: len(begun) == 4, "four calls")
    loop.close()
    loop.join()
    assert sorted(cancelled) == begun == [0, 1, 2, 3]
    for call in made[:4]:
        with pytest.raises(asyncio.CancelledError):
            call.outcome()
    for call in made[4:]:
        with pytest.raises(RuntimeError, match="task ended"):
            call.outcome()


def test_what_calls_leave_on_the_loop_ends_with_it_or_is_left(
    loop: LoopCalls, capfd: pytest.CaptureFixture[str]
) -> None:
    ended, tasks = threading.Event(), []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def refuses() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def hangs_at_its_end() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.Event().wait()

    async def call() -> None:
        tasks.extend(map(asyncio.create_task, (waits(), refuses())))
        tasks.append(generator := hangs_at_its_end())
        await anext(generator)

    loop.submit(Step(call), ()).outcome()
    loop.close()
    assert loop._group.join(DEADLINE) == []
    assert ended.is_set()
    tasks.clear()
    gc.collect()
    assert "destroyed" not in capfd.readouterr().err


def test_worker_py_is_recognised_by_what_it_contains() -> None:
    assert seam_mismatch() is None
    found = find_spec("pyspark.worker")
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text(encoding="utf-8")
    for name in ("def read_single_udf", "def chain", "SQL_BATCHED_UDF", "fail_on_stopiteration"):
        refusal = seam_mismatch(source.replace(name, "def another" if "def" in name else "another"))
        assert refusal is not None
        assert name.split()[-1] in refusal
    assert "evaluate" in str(seam_mismatch(source.replace("evaluate", "assess")))
    source = source.replace("handle_worker_exception", "other")
    assert "handle_worker" in str(seam_mismatch(source.replace("try_simplify_traceback", "other")))


# -- failures and bounds --------------------------------------------------------------------------
def test_a_failure_on_the_loop_stops_no_call_of_an_earlier_row(
    loop: LoopCalls, admission: Admission
) -> None:
    threads = ThreadCalls(1, "test", admission)
    failed, called = threading.Event(), list[int]()

    async def fail() -> None:
        failed.set()
        raise ValueError("boom")

    def call(row: int) -> int:
        assert failed.wait(DEADLINE)
        wait_until(lambda: admission.stopped, "the failure to stop the task")
        called.append(row)
        return row

    rows = [threads.submit(call, (0,)), threads.submit(call, (1,))]
    failing = loop.submit(Step(fail), ())
    late = threads.submit(call, (2,))
    assert [row.outcome() for row in rows] == [0, 1]
    for row in (failing, late):
        with pytest.raises((ValueError, RuntimeError)):
            row.outcome()
    assert called == [0, 1]
    threads.close()
    threads.join()


@contextlib.contextmanager
def calling(kind: str, admission: Admission, size: int = 4) -> Iterator[CallSubmitter]:
    window: CallSubmitter = (
        ThreadCalls(size, "test", admission)
        if kind == "threads"
        else LoopCalls(size, 64, admission)
    )
    try:
        yield window
    finally:
        admission.stop()
        window.close()
        window.join()


def user_function(kind: str, fn: Callable[[int], Any], pause: Callable[[int], bool]) -> Any:
    """A function of either kind that calls ``fn`` and does not end while ``pause(x)``."""

    def on_thread(x: int) -> Any:
        wait_until(lambda: not pause(x), "the end of the pause")
        return fn(x)

    async def on_loop(x: int) -> Any:
        while pause(x):  # noqa: ASYNC110 - a state that threads change
            await asyncio.sleep(0.001)
        return fn(x)

    return on_thread if kind == "threads" else Step(on_loop)


def fails_at(*rows: int) -> Callable[[int], int]:
    def fn(x: int) -> int:
        if x in rows:
            raise ValueError(f"row {x}")
        return x

    return fn


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_no_call_starts_after_a_failure_and_it_is_raised_at_once(kind: str) -> None:
    admission, started, over = Admission(), list[int](), threading.Event()
    fn = user_function(
        kind,
        lambda x: started.append(x) or fails_at(3)(x),  # type: ignore[func-returns-value]
        lambda x: x > 3 and not over.is_set(),  # later rows do not end before the failure
    )
    with calling(kind, admission) as calls:
        outcomes = rows_in_order((calls.submit(fn, (x,)) for x in range(1000)), 512, admission)
        given = list[int]()
        with pytest.raises(ValueError, match="row 3"):
            given.extend(iter(lambda: next(outcomes), None))
        over.set()
    assert started[:4] == [0, 1, 2, 3]
    assert len(started) <= 4 + 3  # those of later rows that had started


def failing_after(given: threading.Event, admission: Admission) -> Callable[[int], bool]:
    """Pause row 2 until row 0 was given, and row 1 until row 2 has failed."""
    return lambda x: (x == 2 and not given.is_set()) or (x == 1 and not admission.stopped)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("of_batches", [False, True])
def test_of_two_failures_the_first_in_order_is_raised_if_its_call_ends(
    of_batches: bool, ends: bool
) -> None:
    """A row that does not end holds up another's failure no longer than the deadline."""
    admission, given, over, taken = Admission(), threading.Event(), threading.Event(), list[int]()
    if ends:
        fn = user_function("threads", fails_at(1, 2), failing_after(given, admission))
    else:
        paused = {1: over, 2: given}
        waits = lambda x: x in paused and not paused[x].is_set()  # noqa: E731
        fn = user_function("threads", fails_at(2), waits)

    def each(calls: CallSubmitter) -> Iterator[Any]:
        for x in range(100):
            taken.append(x)
            if of_batches:
                yield calls.submit(lambda x: [fn(x)], (x,)), 1
            else:
                yield calls.submit(fn, (x,))

    with calling("threads", admission) as calls:
        in_order = batches_in_order if of_batches else rows_in_order
        rows = in_order(each(calls), 8, admission)
        assert next(rows) == 0
        given.set()
        with pytest.raises(ValueError, match="row 1" if ends else "row 2") as raised:
            next(rows)
        assert ends or raised.value.__context__ is None
        over.set()
    assert len(taken) <= 9


@pytest.mark.parametrize("failing", ["threads", "loop"])
def test_a_failure_of_one_kind_of_call_stops_the_other(failing: str) -> None:
    admission, started, given = Admission(), list[int](), list[Any]()
    kinds = ["threads", "loop"] if failing == "threads" else ["loop", "threads"]
    fails = user_function(kinds[0], fails_at(20), lambda _: False)
    waits = user_function(kinds[1], started.append, lambda x: x > 0 and not admission.stopped)
    with calling(kinds[0], admission) as first, calling(kinds[1], admission) as second:
        rows = ((first.submit(fails, (x,)), second.submit(waits, (x,))) for x in range(100))
        with pytest.raises(ValueError, match="row 20"):
            given.extend(rows_in_order(rows, 64, admission))
    assert given == [(x, None) for x in range(len(given))]
    assert sorted(started) == list(range(20))  # the rows before it, as Spark's own loop does


RESULTS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: bytes(MIB),
    "str": lambda: "x" * MIB,
    "dict": lambda: {"a": ["y" * (MIB // 4)] * 4},
    "tuple": lambda: tuple([(str(n) * 8, n) for n in range(MIB // 128)]),
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_results_held_are_bounded_in_bytes(kind: str, result: Callable[[], Any]) -> None:
    admission, ended, given = Admission(8 * MIB), [0], 0
    most = [0]

    def fn(_: int) -> Any:
        ended[0] += 1
        most[0] = max(most[0], ended[0] - given)
        return result()

    # The first row does not end before the others have reached the bound.
    made = user_function(kind, fn, lambda x: x == 0 and not admission.full)
    with calling(kind, admission) as calls:
        for _ in rows_in_order((calls.submit(made, (x,)) for x in range(100)), 64, admission):
            given += 1
    assert given == 100
    assert most[0] <= 8 * 2 + 2 * 4 + 1  # a result is half of one MiB at least, by this measure


def test_a_bound_in_bytes_does_not_hold_up_rows_with_calls_of_both_kinds() -> None:
    admission = Admission(2 * MIB)
    large = user_function("threads", lambda _: bytes(MIB), lambda _: False)
    slow = user_function("loop", lambda x: bytes(MIB + x), lambda x: x == 0 and not admission.full)
    with calling("threads", admission) as threads, calling("loop", admission) as loop:
        rows = ((threads.submit(large, (x,)), loop.submit(slow, (x,))) for x in range(50))
        sizes = [tuple(map(len, row)) for row in rows_in_order(rows, 64, admission)]
    assert sizes == [(MIB, MIB + x) for x in range(50)]


def test_results_whose_size_cannot_be_told_are_given_as_they_are() -> None:
    class Odd:
        def __sizeof__(self) -> int:
            raise RuntimeError("no size")

    admission, odd = Admission(MIB), Odd()
    with calling("threads", admission) as calls:
        assert list(rows_in_order((calls.submit(lambda: odd, ()),), 4, admission)) == [odd]


def test_a_stress_of_failures_gives_the_rows_before_and_then_the_first_one() -> None:
    for turn in range(0, 200, 5):
        admission = Admission(MIB)
        with calling("threads", admission, 8) as calls:
            fn = fails_at(*range(turn, 400, 3))
            rows = rows_in_order((calls.submit(fn, (x,)) for x in range(400)), 32, admission)
            given = list[int]()
            with pytest.raises(ValueError, match=f"^row {turn}$"):
                collections.deque(map(given.append, rows))
            assert given == list(range(turn))


# -- the comparison -------------------------------------------------------------------------------
def told_of(
    capsys: pytest.CaptureFixture[str], names: list[str], one_by_one: list[object], rows: object
) -> str:
    assert list(compared_rows(names, one_by_one, rows, 8)) == list(rows)  # type: ignore[call-overload]
    return capsys.readouterr().err


def test_the_first_row_that_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    told = told_of(capsys, ["seeded"], [1, 2, 3], [1, 5, 6, 7])
    assert "comparison of seeded: 2 of the first 3 rows differ" in told
    assert "row 1: one by one 2, with 8 calls at once 5" in told
    assert "made twice" in told
    nan = float("nan")
    told = told_of(capsys, ["f", "g"], [(1, nan), (2, "x")], [(1, nan), (3, "x")])
    for line in ("f: 1 of the first 2 rows differ", "g: the first 2 rows are the same"):
        assert f"comparison of {line}" in told
    with pytest.raises(ZeroDivisionError):
        list(compared_rows(["f"], [1, 2], (10 // x for x in (10, 0)), 8))
    told = capsys.readouterr().err
    assert "one by one the first rows did not fail, with 8 calls at once: ZeroDivision" in told
