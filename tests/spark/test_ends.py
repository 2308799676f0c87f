"""How a stage ends on real Spark: early, killed, failed; and what it leaves behind: nothing."""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rstreams_fast.spark as rs
from tests.helpers import run_python, start_thread, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def threads_of_workers(spark: SparkSession) -> dict[int, list[str]]:
    """The threads that plain tasks, many enough to be given every idle worker, find there."""

    def look(batches: Any) -> Any:
        import pyarrow as pa

        names = [thread.name for thread in threading.enumerate()]
        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {"pid": pa.array([os.getpid()], pa.int64()), "names": [",".join(names)]}
            )

    rows = spark.range(0, 8, 1, 8).mapInArrow(look, "pid long, names string").collect()
    return {row.pid: row.names.split(",") for row in rows}


def assert_nothing_left(spark: SparkSession) -> set[int]:
    """No worker has a thread of ours; returns the workers that there are."""
    found = threads_of_workers(spark)
    for names in found.values():
        assert not [name for name in names if name.startswith("rstreams")], names
    return set(found)


def test_the_next_task_of_the_same_worker_finds_no_thread(spark: SparkSession) -> None:
    async def look(k: int) -> int:
        await asyncio.sleep(0.001)
        return os.getpid()

    def look_sync(k: int) -> int:
        return os.getpid()

    def whole(batch: Any) -> Any:
        import pyarrow as pa

        return pa.RecordBatch.from_pydict({"pid": pa.array([os.getpid()], pa.int64())})

    ids = spark.range(0, 400, 1, 4)
    stages = [
        lambda: ids.select(rs.lookup(look, "long")("id").alias("pid")),
        lambda: ids.select(rs.lookup(look_sync, "long", concurrency=4)("id").alias("pid")),
        lambda: ids.transform(rs.enrich(look, on="id", output="pid long", ordered=False)),
        lambda: ids.transform(rs.map_batches(whole, "pid long")),
    ]
    for stage in stages:
        workers = {row.pid for row in stage().select("pid").distinct().collect()}
        assert workers & assert_nothing_left(spark), "no worker was reused: nothing was proved"


def test_limit_stops_the_calls(spark: SparkSession, tmp_path: Path) -> None:
    calls = str(tmp_path / "calls")

    async def look(k: int) -> int:
        with open(calls, "a") as file:  # noqa: ASYNC230, PTH123
            file.write("x")
        await asyncio.sleep(0.002)
        return k * 2

    with rs.Metrics() as metrics:
        value = rs.lookup(look, "long", metrics=metrics)
        enrich = rs.enrich(look, on="id", output="v long", metrics=metrics)
        many = spark.range(0, 10_000_000, 1, 1)
        for frame in (many.withColumn("v", value("id")), many.transform(enrich)):
            assert [r.v for r in frame.limit(5).collect()] == [0, 2, 4, 6, 8]
        assert_nothing_left(spark)
        # They stop at the next output after Spark has gone: a few batches, never ten million rows.
        assert Path(calls).stat().st_size < 100_000
        # Spark kills a worker that has not heard of the end after two seconds: on a busy machine.
        over = {"stopped", "done", "lost"}
        wait_until(lambda: metrics.totals().state in over, "the end of both")


@pytest.mark.slow  # a question of time
def test_calls_stop_within_100_ms_of_sparks_hang_up(spark: SparkSession, tmp_path: Path) -> None:
    worker, late = str(tmp_path / "worker"), str(tmp_path / "late")

    def make() -> Any:
        hung_up: Any = None

        async def look(k: int) -> int:
            nonlocal hung_up
            if hung_up is None:
                poll, links = select.poll(), list[str]()
                for entry in Path("/proc/self/fd").iterdir():  # noqa: ASYNC240
                    with suppress(OSError):
                        links.append(str(entry.readlink()))
                        if links.count(links[-1]) == 3 and links[-1].startswith("socket:"):
                            poll.register(int(entry.name), select.POLLRDHUP)  # that of Spark
                hung_up = lambda: bool(poll.poll(0))  # noqa: E731
                Path(worker).write_text(str(os.getpid()))  # noqa: ASYNC240
            if hung_up():
                with open(late, "a") as file:  # noqa: ASYNC230, PTH123
                    file.write(f"{time.monotonic()}\n")
            await asyncio.sleep(0.002)
            return k * 2

        return look

    frame = spark.range(0, 10_000_000, 1, 1).transform(rs.enrich(make(), on="id", output="v long"))
    seconds = []
    for _ in range(3):  # the machine may be busy once
        Path(late).write_text("")
        assert [r.v for r in frame.limit(5).collect()] == [0, 2, 4, 6, 8]
        pid = Path(worker).read_text()
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the end of the worker")
        times = [float(at) for at in Path(late).read_text().split()] or [0.0]
        seconds.append(max(times) - min(times))
    assert min(seconds) < 0.1, seconds


@pytest.mark.parametrize(
    "failure", [FileNotFoundError, pytest.param(MemoryError, marks=pytest.mark.slow)]
)
def test_a_worker_that_cannot_look_for_the_hang_up_ends_its_task(
    spark: SparkSession, failure: type[Exception]
) -> None:
    """A container may have no ``/proc``, which is no failure; any other is that of the task."""

    async def look(k: int) -> int:
        return 2 * k

    fn = rs.lookup(look, "long").as_map_fn(name="v")

    def without_proc(batches: Any) -> Any:
        looked = []

        def iterdir(path: Path) -> Any:
            looked.append(str(path))
            raise failure(str(path))

        usual, Path.iterdir = Path.iterdir, iterdir  # type: ignore[assignment,method-assign]
        try:
            yield from fn(batches)
        finally:
            Path.iterdir = usual  # type: ignore[method-assign]
            assert looked == ["/proc/self/fd"]

    frame = spark.range(0, 10, 1, 1).mapInArrow(without_proc, "id long, v long")
    running = start_thread(frame.collect)
    try:
        if failure is FileNotFoundError:
            assert [row.v for row in running.result()] == [2 * k for k in range(10)]
        else:
            with pytest.raises(Exception, match="MemoryError: /proc/self/fd"):
                running.result()
    finally:
        spark.sparkContext.cancelAllJobs()


def test_a_stage_that_ends_early_ends_well(spark: SparkSession) -> None:
    """An iterator that does not read its input to the end: Spark discards such a worker."""
    fn = rs.lookup(lambda k: k * 2, "long", concurrency=2).as_map_fn(name="v")

    def early(batches: Any) -> Any:
        outputs = fn(batches)
        yield next(outputs)
        outputs.close()

    rows = spark.range(0, 5_000, 1, 2).mapInArrow(early, "id long, v long").collect()
    assert rows
    assert all(r.v == 2 * r.id for r in rows)
    assert_nothing_left(spark)


@pytest.mark.parametrize("simplified", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_the_functions_exception_is_the_tasks_with_its_key(
    spark: SparkSession, conf: Any, simplified: str
) -> None:
    from pyspark.errors import PythonException

    class NoSuchPlane(Exception):
        pass

    async def look(k: int) -> int:
        await asyncio.sleep(0)
        if k == 777:
            raise NoSuchPlane("tail number unknown")
        return k

    name = "spark__sql__execution__pyspark__udf__simplifiedTraceback__enabled"
    frame = spark.range(0, 1000, 1, 1)
    for found in (
        frame.select(rs.lookup(look, "long")("id")),
        frame.transform(rs.enrich(look, on="id", output="v long")),
    ):
        with conf(**{name: simplified}), pytest.raises(PythonException) as caught:
            found.collect()
        for part in ("NoSuchPlane: tail number unknown", "raised by", "the key", "777"):
            assert part in str(caught.value)
    assert_nothing_left(spark)


@pytest.mark.parametrize("sync", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_call_that_never_answers_can_be_cancelled(
    spark: SparkSession, tmp_path: Path, sync: bool
) -> None:
    """Spark kills a Python worker that does not react; a cancelled job does not hang."""
    started = str(tmp_path / "started")

    def say_pid() -> None:
        aside = Path(f"{started}.{threading.get_native_id()}")
        aside.write_text(str(os.getpid()))
        aside.replace(started)

    async def never(k: int) -> int:
        say_pid()
        await asyncio.Event().wait()
        return k

    def never_sync(k: int) -> int:
        say_pid()
        threading.Event().wait()
        return k

    value = rs.lookup(never_sync if sync else never, "long", concurrency=2)
    running = start_thread(lambda: spark.range(0, 10, 1, 1).select(value("id")).collect())
    wait_until(lambda: Path(started).exists() or not running.is_alive(), "the first call")
    pid = int(Path(started).read_text())
    spark.sparkContext.cancelAllJobs()
    with pytest.raises(Exception, match=r"(?i)cancel"):
        running.result()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the worker")


@pytest.mark.slow  # seconds of silence
def test_closing_while_upstream_says_nothing_discards_the_worker(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The reader cannot be joined then; the task ends all the same, and no other meets it."""
    go_on, calls, closed = (str(tmp_path / name) for name in ("go-on", "calls", "closed"))

    def slow(batches: Any) -> Any:
        for index, batch in enumerate(batches):
            yield batch
            # Only then: what was given before fills the pipes and comes through.
            while index == 24 and not Path(go_on).exists():
                time.sleep(0.02)

    async def look(k: int) -> int:
        with open(calls, "a") as file:  # noqa: ASYNC230, PTH123
            file.write("x")
        return os.getpid()

    fn = rs.lookup(look, "long").as_map_fn(name="pid")

    def early(batches: Any) -> Any:
        outputs = fn(batches)
        yield next(outputs)
        before, seen = -1, 0
        while before < seen:  # until all that came was worked on
            time.sleep(0.5)
            before, seen = seen, Path(calls).stat().st_size
        begin = time.monotonic()
        outputs.close()
        Path(closed).write_text(str(time.monotonic() - begin))

    frame = spark.range(0, 100_000, 1, 1).mapInArrow(slow, "id long")
    running = start_thread(frame.mapInArrow(early, "id long, pid long").collect)
    try:
        wait_until(Path(closed).exists, "the end of close()")
        made = Path(calls).stat().st_size
    finally:
        Path(go_on).touch()
    rows = running.result()
    assert 2 <= float(Path(closed).read_text()) < 4
    assert rows[0].pid not in assert_nothing_left(spark)
    assert Path(calls).stat().st_size == made


def test_the_functions_run_in_their_own_task_context(spark: SparkSession) -> None:
    async def look(k: int) -> int:
        from pyspark import TaskContext

        await asyncio.sleep(0)
        return TaskContext.get().partitionId()  # type: ignore[union-attr]

    rows = spark.range(0, 4000, 1, 4).select("id", rs.lookup(look, "long")("id").alias("p"))
    assert all(r.p == r.id // 1000 for r in rows.collect())


def test_importing_starts_nothing_and_needs_no_spark() -> None:
    script = (
        "import sys, threading, rstreams_fast.spark as rs;"
        "assert threading.active_count() == 1;"
        "assert not {'pyspark', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules);"
        "print(rs.lookup(print, 'long').describe())"
    )
    assert "lookup print" in run_python("-c", script).stdout


UNDISTURBED = """
import sys, pyarrow as pa, rstreams_fast.spark as rs

async def look(key):
    return "pandas" in sys.modules

key = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
batch = pa.RecordBatch.from_arrays([key], ["k"])
assert "pandas" not in sys.modules
(found,) = rs.lookup(look, pa.bool_()).as_map_fn()([batch])
print(*found.column(1))
"""


def test_no_call_runs_while_arrow_imports_pandas() -> None:
    """Half a second in which the loop stands still would count for the time-outs of all calls."""
    pytest.importorskip("pandas")
    assert run_python("-c", UNDISTURBED).stdout == "True\n"
