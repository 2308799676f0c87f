"""The drop-in's calls after a failure, within a bound on bytes, and beyond what a LIMIT wants."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rstreams_fast.spark.daemon.admission import Admission
from rstreams_fast.spark.daemon.calls import (
    Call,
    LoopCalls,
    Submits,
    ThreadCalls,
    batches_in_order,
    rows_in_order,
)
from rstreams_fast.spark.daemon.steps import Step
from tests.helpers import wait_until

MIB = 1 << 20


@contextlib.contextmanager
def calling(kind: str, admission: Admission, size: int = 4) -> Iterator[Submits]:
    window: Submits = (
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


def test_of_two_failures_the_first_in_row_order_is_raised() -> None:
    admission = Admission()
    fn = user_function("threads", fails_at(1, 2), lambda x: x == 1 and not admission.stopped)
    with calling("threads", admission) as calls:
        rows = rows_in_order((calls.submit(fn, (x,)) for x in range(100)), 64, admission)
        assert next(rows) == 0
        with pytest.raises(ValueError, match="row 1"):
            next(rows)


def test_a_row_that_does_not_end_holds_up_a_failure_no_longer_than_the_deadline() -> None:
    admission, over = Admission(), threading.Event()
    fn = user_function("threads", fails_at(2), lambda x: x == 1 and not over.is_set())
    with calling("threads", admission) as calls:
        rows = rows_in_order((calls.submit(fn, (x,)) for x in range(100)), 64, admission)
        assert next(rows) == 0
        with pytest.raises(ValueError, match="row 2") as raised:
            next(rows)
        assert raised.value.__context__ is None
        over.set()


@pytest.mark.parametrize("failing", ["threads", "loop"])
def test_a_failure_of_one_kind_of_call_stops_the_other(failing: str) -> None:
    admission, started = Admission(), list[int]()
    kinds = ["threads", "loop"] if failing == "threads" else ["loop", "threads"]
    fails = user_function(kinds[0], fails_at(20), lambda _: False)
    waits = user_function(kinds[1], started.append, lambda x: x > 0 and not admission.stopped)
    with calling(kinds[0], admission) as first, calling(kinds[1], admission) as second:
        rows = ((first.submit(fails, (x,)), second.submit(waits, (x,))) for x in range(100))
        outcomes = rows_in_order(rows, 64, admission)
        assert next(outcomes) == (0, None)
        with pytest.raises(ValueError, match="row 20"):
            for _ in outcomes:
                pass
    assert len(started) <= 5


def test_of_batches_the_first_failure_in_order_is_raised_and_no_more_are_taken() -> None:
    admission, taken = Admission(), list[int]()
    fn = user_function("threads", fails_at(1, 2), lambda x: x == 1 and not admission.stopped)

    def batches(calls: Submits) -> Iterator[tuple[Call, int]]:
        for x in range(100):
            taken.append(x)
            yield calls.submit(lambda x: [fn(x)], (x,)), 1

    with calling("threads", admission) as calls:
        rows = batches_in_order(batches(calls), 8, admission)
        assert next(rows) == 0
        with pytest.raises(ValueError, match="row 1"):
            next(rows)
    assert len(taken) <= 9


RESULTS = [
    lambda: bytes(MIB),
    lambda: "x" * MIB,
    lambda: {"a": ["y" * (MIB // 4)] * 4},
    lambda: tuple([(str(n) * 8, n) for n in range(MIB // 128)]),
]


@pytest.mark.parametrize("result", RESULTS, ids=["bytes", "str", "dict", "tuple"])
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
    for turn in range(200):
        admission = Admission(MIB)
        with calling("threads", admission, 8) as calls:
            fn = fails_at(*range(turn, 400, 3))
            rows = rows_in_order((calls.submit(fn, (x,)) for x in range(400)), 32, admission)
            given = list[int]()
            with pytest.raises(ValueError, match=f"^row {turn}$"):
                collections.deque(map(given.append, rows))
            assert given == list(range(turn))


HEAD = """
import asyncio, pathlib, threading
import pyspark.sql.functions as F
from pyspark.sql import SparkSession
from tests.helpers import wait_until

build = SparkSession.builder.master("local[1]")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "rstreams_fast.spark.daemon",
    "spark.executorEnv.RSTREAMS_FAST_UDF_CONCURRENCY": "8",
    "spark.executorEnv.RSTREAMS_FAST_UDF_BATCHES": "4",
    "spark.executorEnv.RSTREAMS_FAST_UDF_METRICS": str(pathlib.Path.cwd() / "figures"),
}.items():
    build = build.config(name, value)
spark = build.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
work = pathlib.Path.cwd()
numbers = spark.range(0, 3000, 1, 1)

def begins(name):
    with (work / name).open("a") as file:
        file.write(".")

def begun(name):
    return len((work / name).read_text())
"""

ENDS = (
    HEAD
    + """
def fails_or_hangs(name):  # what hangs does not end by itself
    def plain(x):
        begins(name)
        if x == 0:
            raise ValueError("in row 0")
        threading.Event().wait()
    async def suspends(x):
        begins(name)
        if x == 0:
            raise ValueError("in row 0")
        await asyncio.Event().wait()
    def column(values):
        begins(name)
        if 0 in list(values):
            raise ValueError("in row 0")
        threading.Event().wait()
    return plain, suspends, column

made = {}
for kind in ("plain", "arrow", "plain-async", "arrow-async", "pandas"):
    plain, suspends, column = fails_or_hangs(kind)
    fn = suspends if kind.endswith("async") else plain
    made[kind] = (
        F.pandas_udf(column, "long") if kind == "pandas"
        else F.udf(fn, "long", useArrow=kind.startswith("arrow"))
    )
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
for kind, column in made.items():
    try:
        numbers.select(column("id")).collect()
    except Exception as error:
        assert "ValueError: in row 0" in str(error) and "rstreams_fast" not in str(error), error
    else:
        raise AssertionError(kind)
    assert begun(kind) <= 8, (kind, begun(kind))

def hangs_later(name):
    def plain(x):
        if x < 1000:
            return x * "x"
        begins(name)
        threading.Event().wait()
    async def suspends(x):
        if x < 1000:
            return x * "x"
        begins(name)
        await asyncio.Event().wait()
    return plain, suspends

for number, kind in enumerate(("limit", "limit-async")):
    fn = hangs_later(kind)[number]
    frame = numbers.select(F.udf(fn, "string", useArrow=False)("id").alias("y"))
    assert [y for (y,) in frame.where("y >= ''").limit(3).collect()] == ["", "x", "xx"], kind
    wait_until(lambda: not workers_threads(), f"the end of the calls of {kind}", timeout=60)
    assert not (work / kind).exists() or begun(kind) <= 8
spark.stop()
print("as stock")
"""
).replace(
    "def begins(",
    """def workers_threads():
    import psutil
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "python" in process.name() and process.num_threads() > 1:
                found.append(process)
        except psutil.Error:
            pass
    return found

def begins(""",
)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_jobs_end_at_a_failure_or_a_limit_though_other_calls_hang(
    run_script: Callable[..., str],
) -> None:
    assert run_script(ENDS, 180).endswith("as stock\n")
