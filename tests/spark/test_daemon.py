"""The drop-in daemon: calls in order on threads and on a loop, and a job with no line changed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from rstreams_fast.spark.daemon import calls as calls_module
from rstreams_fast.spark.daemon.admission import Admission
from rstreams_fast.spark.daemon.calls import (
    Call,
    LoopCalls,
    ThreadCalls,
    batches_in_order,
    rows_in_order,
)
from rstreams_fast.spark.daemon.recognised import unrecognised
from rstreams_fast.spark.daemon.steps import Step
from tests.helpers import DEADLINE, run_python, wait_until
from tests.spark.backends import BACKENDS, use_backend


@pytest.fixture
def admission() -> Admission:
    return Admission()


@pytest.fixture
def threads(admission: Admission) -> Iterator[ThreadCalls]:
    made = ThreadCalls(4, "test", admission)
    yield made
    made.close()
    made.join()


@pytest.fixture(params=sorted(BACKENDS))
def loop(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, admission: Admission
) -> Iterator[LoopCalls]:
    use_backend(request.param, monkeypatch)
    from rstreams_fast.spark.worker import pump

    monkeypatch.setattr(calls_module, "CallWindow", pump.CallWindow)
    made = LoopCalls(4, 16, admission)
    yield made
    made.close()
    made.join()


def test_threads_overlap_and_rows_keep_their_order(
    threads: ThreadCalls, admission: Admission
) -> None:
    barrier = threading.Barrier(4)

    def call(x: int) -> int:
        barrier.wait(DEADLINE)
        return x

    rows = (threads.submit(call, (x,)) for x in range(400))
    assert list(rows_in_order(rows, 16, admission)) == list(range(400))


def test_rows_are_taken_ahead_up_to_the_bound(threads: ThreadCalls, admission: Admission) -> None:
    taken = []

    def rows() -> Iterator[Call]:
        for x in range(100):
            taken.append(x)
            yield threads.submit(int, (x,))

    outcomes = rows_in_order(rows(), 8, admission)
    assert next(outcomes) == 0
    assert len(taken) == 8


def test_a_row_may_have_several_calls_and_values(
    threads: ThreadCalls, admission: Admission
) -> None:
    rows = [(threads.submit(int, ("1",)), "as it is", threads.submit(str, (2,)))]
    assert list(rows_in_order(rows, 2, admission)) == [(1, "as it is", "2")]


def test_a_failure_is_raised_in_its_row(threads: ThreadCalls, admission: Admission) -> None:
    rows = rows_in_order((threads.submit(int, (text,)) for text in ("1", "x", "3")), 8, admission)
    assert next(rows) == 1
    with pytest.raises(ValueError, match="'x'"):
        next(rows)


def test_two_batches_are_under_way_and_no_more_than_the_bound(
    threads: ThreadCalls, admission: Admission
) -> None:
    taken = []

    def batches() -> Iterator[tuple[Call, int]]:
        for x in range(6):
            taken.append(x)
            yield threads.submit(lambda x: [x], (x,)), 100

    outcomes = batches_in_order(batches(), 1, admission)
    assert next(outcomes) == 0
    assert taken == [0, 1]
    assert list(outcomes) == [1, 2, 3, 4, 5]


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


def test_a_step_alone_runs_the_code_above_it_once(loop: LoopCalls) -> None:
    calls = []

    async def suspends(x: int) -> int:
        await asyncio.sleep(0)
        if x == 3:
            raise ValueError("three")
        return 2 * x

    step = Step(suspends)
    step.alone = True

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
    assert unrecognised() is None
    found = find_spec("pyspark.worker")
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text(encoding="utf-8")
    for name in ("def read_single_udf", "def chain", "SQL_BATCHED_UDF"):
        refusal = unrecognised(source.replace(name, "def another" if "def" in name else "ANOTHER"))
        assert refusal is not None
        assert name.split()[-1] in refusal
    assert "evaluate" in str(unrecognised(source.replace("evaluate", "assess")))


JOB = """
import asyncio, datetime, gc, os, threading, time
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col, udf
import rstreams_fast.spark as rs

build = SparkSession.builder.master("local[2]")
for name, value in {{
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
    "spark.python.daemon.module": "rstreams_fast.spark.daemon",
    **{conf},
}}.items():
    build = build.config(name, value)
spark = build.getOrCreate()
context = spark.sparkContext
context.setLogLevel("OFF")

def meet(x):  # eight at once, across batches of four
    threading.__dict__.setdefault("_meeting", threading.Barrier(8)).wait(60)
    return x

def which(x):  # eight ask at once for what takes a while to load
    threading.__dict__.setdefault("_meeting", threading.Barrier(8)).wait(60)
    return id(large.value)

def names(x, y=0):
    calls.add(1)
    return f"{{x}}-{{y}}-{{known.value.get(x)}}-{{TaskContext.get().partitionId()}}"

def day(x):
    return datetime.date(2020, 1, 1) + datetime.timedelta(days=x)

def fails(x):
    if x >= 90:
        raise ValueError(f"at {{x}}")
    return x

def ends(x):
    raise StopIteration("gone")

async def doubled(x):
    await asyncio.sleep(0.001)
    return None if x == 5 else 2 * x

attempts = set()

@rs.bounded(timeout=60, retry=rs.Retry(1, backoff=0))
async def second(x):
    await asyncio.sleep(0)
    if x not in attempts:
        attempts.add(x)
        raise ValueError("the first attempt")
    return x

async def cancelled(x):
    await asyncio.sleep(0)
    raise KeyError("in a coroutine")

async def alone(x):
    return any(type(thing).__name__ == "Step" and thing.alone for thing in gc.get_objects())

def message(column):
    try:
        numbers.select(column).collect()
    except Exception as error:
        return str(error)
    raise AssertionError("it did not fail")

numbers = spark.range(0, 96, 1, 1)
knows_names = spark.version >= "4"
for arrow in (False, True):
    calls, known = context.accumulator(0), context.broadcast({{1: "one"}})
    def made(fn, returns):
        return udf(fn, returns, useArrow=arrow)
    more = made(lambda x: x + 1, "long")
    double, zero = made(doubled, "long"), made(lambda: 7, "long")
    rows = numbers.select(
        made(names, "string")("id", y=more("id")) if knows_names
        else made(names, "string")("id", more("id")),
        made(day, "date")(col("id").cast("int")), zero(),
        more(more("id")), *([made(meet, "long")("id")] if {overlap} else ["id"]),
    ).collect()
    assert [tuple(row) for row in rows] == [
        (f"{{x}}-{{x + 1}}-{{'one' if x == 1 else None}}-0", day(x), 7, x + 2, x) for x in range(96)
    ], rows[:3]
    assert calls.value == 96
    if {overlap}:
        large = context.broadcast(list(range(1_000_000)))
        assert len(set(numbers.select(made(which, "long")("id")).collect())) == 1
    rows = numbers.select(double("id"), double(more("id")), more("id"), "id").collect()
    def twice(x):
        return None if x == 5 else 2 * x
    assert [tuple(row) for row in rows] == [(twice(x), twice(x + 1), x + 1, x) for x in range(96)]
    rows = numbers.select(made(second, "long")("id")).collect()
    assert [x for (x,) in rows] == list(range(96))
    assert numbers.limit(1).select(made(alone, "boolean")("id")).first()[0]
    text = message(made(fails, "long")("id"))
    assert "ValueError: at 90" in text and "rstreams_fast" not in text, text
    assert "in fails" in text.split("Traceback (most recent call last):")[1].splitlines()[1], text
    text = message(made(ends, "long")("id"))
    assert "STOP_ITERATION_OCCURRED" in text, text
    text = message(made(cancelled, "long")("id"))
    assert "KeyError: 'in a coroutine'" in text and "rstreams_fast" not in text, text
    assert len(numbers.select(more("id")).limit(3).collect()) == 3
    assert len(spark.range(0, 6, 1, 6).select(more("id")).collect()) == 6
(frozen,) = context.parallelize([0], 1).map(lambda _: gc.get_freeze_count()).collect()
assert frozen > 10_000, frozen
threads = context.parallelize(range(4), 4).map(lambda _: threading.active_count()).collect()
assert threads == [1] * 4, threads
spark.stop()
print("as stock")
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("overlap", [True, False], ids=["overlapping", "not-asked"])
def test_a_job_with_no_line_changed(run_script: Callable[..., str], overlap: bool) -> None:
    conf = {"spark.executorEnv.RSTREAMS_FAST_UDF_CONCURRENCY": "8"} if overlap else {}
    assert run_script(JOB.format(conf=conf, overlap=overlap), 280).endswith("as stock\n")


BATCHES = """
import asyncio, threading
from pathlib import Path
import pyspark.sql.functions as F
import rstreams_fast.spark as rs
from pyspark.sql import SparkSession

build = SparkSession.builder.master("local[1]")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
    "spark.python.daemon.module": "rstreams_fast.spark.daemon",
    "spark.executorEnv.RSTREAMS_FAST_UDF_CONCURRENCY": "8",
    "spark.executorEnv.RSTREAMS_FAST_UDF_BATCHES": "4",
    "spark.executorEnv.RSTREAMS_FAST_UDF_METRICS": str(Path.cwd() / "figures"),
}.items():
    build = build.config(name, value)
spark = build.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
numbers = spark.range(0, 96, 1, 1)

def met(count):
    threading.__dict__.setdefault(f"_of_{count}", threading.Barrier(count)).wait(60)

def four_batches(column):
    met(4)
    return column

def eight_calls(x):
    met(8)
    return x

async def suspends(x):
    return x

def fails(column):
    raise ValueError("in a batch")

failed = set()

@rs.bounded(retry=rs.Retry(1, backoff=0))
def second(x):
    if x in failed:
        return x
    failed.add(x)
    raise ValueError("the first attempt")

@rs.bounded(timeout=0.01, retry=rs.Retry(1, backoff=0))
async def slow_at_first(x):
    if x not in failed:
        failed.add(x)
        await asyncio.Event().wait()
    return x

columns = {"four_batches": F.pandas_udf(four_batches, "long"), "suspends": F.udf(suspends, "long")}
columns["eight_calls"] = F.udf(eight_calls, "long")
columns["second"] = F.udf(second, "long")
columns["slow_at_first"] = F.udf(slow_at_first, "long")
kinds = [F.pandas_udf]
if hasattr(F, "arrow_udf"):
    columns["four_batches "] = F.arrow_udf(four_batches, "long")
    kinds.append(F.arrow_udf)
for name, column in columns.items():
    rows = numbers.select("id", column("id")).collect()
    assert [tuple(row) for row in rows] == [(x, x) for x in range(96)], name
for made in kinds:
    try:
        numbers.select(made(fails, "long")("id")).collect()
    except Exception as error:
        assert "ValueError: in a batch" in str(error) and "rstreams_fast" not in str(error), error
    else:
        raise AssertionError("it did not fail")

found = rs.Metrics("figures").by_stage()
figures = {
    name: (of.state, of.rows_in, of.rows_out, of.calls, of.max_running, of.concurrency)
    for name, of in found.items()
}
rows = 96 * len(kinds)
assert figures.pop("four_batches") == ("done", rows, rows, rows // 4, 4, 4)
assert figures.pop("eight_calls") == ("done", 96, 96, 96, 8, 8)
assert figures.pop("suspends")[:4] == ("done", 96, 96, 96)
assert figures.pop("second")[:4] == figures.pop("slow_at_first")[:4] == ("done", 96, 96, 96)
assert (found["second"].retries, found["second"].timeouts) == (96, 0), found["second"]
of = found["slow_at_first"]
assert of.retries >= 96 and of.timeouts == of.retries, of
state, rows_in, rows_out = figures.pop("fails")[:3]
assert (state, rows_out) == ("failed", 0) and 0 < rows_in <= 16 * len(kinds), found
# Each of 96 calls, eight at once, waits for 0.01 seconds.
assert found["slow_at_first"].waiting_function > 0.06, found["slow_at_first"]
assert not figures, figures
assert found["eight_calls"].max_buffered_rows == 96 and not found["eight_calls"].buffered_rows

def profiled(x):
    return x

if spark.version >= "4":  # its profilers
    spark.conf.set("spark.sql.pyspark.udf.profiler", "perf")
    made = (F.udf(profiled, "long"), F.udf(profiled, "long", useArrow=True))
    made += (F.pandas_udf(profiled, "long"),)
    for column, calls in zip(made, (96, 96, 24), strict=True):
        assert [x for (_, x) in numbers.select("id", column("id")).collect()] == list(range(96))
        of_last = max(spark._profiler_collector._perf_profile_results.items())[1]
        counts = [of[1] for (_, _, name), of in of_last.stats.items() if name == "profiled"]
        assert counts == [calls], of_last.stats
spark.stop()
print("as stock")
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_batches_overlap_where_asked_and_the_driver_sees_figures(
    run_script: Callable[..., str],
) -> None:
    assert run_script(BATCHES, 280).endswith("as stock\n")
