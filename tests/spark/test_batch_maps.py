"""map_batches and stage as plain iterator functions: no Spark, every backend."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.taskcontext import TaskContext

import rstreams_fast.spark as rs
from rstreams_fast.errors import RingClosed
from tests.helpers import DEADLINE, Problem, start_thread, wait_until
from tests.spark.backends import every_backend
from tests.spark.conftest import Frozen
from tests.spark.stages import D, K, as_async, made, parts
from tests.spark.stages import same as rows_same

pytestmark = pytest.mark.usefixtures("backend", "no_leaked_threads")


def keys(outputs: Any) -> list[int]:
    return [k for batch in outputs for k in batch["k"].to_pylist()]


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


async def same_async(batch: pa.RecordBatch) -> pa.RecordBatch:
    await asyncio.sleep(0.001 * (batch["k"][0].as_py() % 3))
    return batch


def in_pieces(batch: pa.RecordBatch) -> Any:
    for start in range(0, batch.num_rows, 3):
        yield batch.slice(start, 3)


def as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch, batch.slice(0, 0)])


# -- map_batches -----------------------------------------------------------------------------------


def test_an_iterable_waits_for_its_turn() -> None:
    made = 0
    first_may_end = threading.Event()

    def many(batch: pa.RecordBatch) -> Any:
        nonlocal made
        if batch["k"][0].as_py() == 0:
            assert first_may_end.wait(DEADLINE)
            yield batch
            return
        for _ in range(1000):
            made += 1
            yield batch

    stage = rs.map_batches(many, K, concurrency=2).as_map_fn()(parts(20, 10))
    threading.Timer(0.2, first_may_end.set).start()
    first = next(stage)
    assert first["k"][0].as_py() == 0
    assert made <= 4  # two in the ring, one in hand, one to come
    assert len(list(stage)) == 1000


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        *((kind(), kind) for kind in (Problem, TimeoutError, RingClosed)),
        *((kind(), RuntimeError) for kind in (StopIteration, asyncio.CancelledError)),
        (Frozen(7), Frozen),  # takes a note, though it refuses attributes
    ],
    ids=repr,
)
def test_an_exception_comes_out_with_its_rows(
    sync: bool, raised: BaseException, kind: type[Exception]
) -> None:
    def bad(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["k"][0].as_py() == 50:
            raise raised
        return batch

    if sync and isinstance(raised, asyncio.CancelledError):
        return  # a matter of loops
    stage = rs.map_batches(bad if sync else as_async(bad), K).as_map_fn()
    with pytest.raises(kind) as caught:
        start_thread(lambda: list(stage(parts(100, 10)))).result()
    notes = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert any("rows 50 to 59" in note for note in notes)


@pytest.mark.parametrize("sync", [True, False])
def test_the_metrics_count_the_call_that_fails_the_task(sync: bool, tmp_path: Path) -> None:
    def bad(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["k"][0].as_py() == 50:
            raise Problem
        return batch

    metrics = rs.Metrics(tmp_path)
    stage = rs.map_batches(bad if sync else as_async(bad), K, metrics=metrics)
    with pytest.raises(Problem):
        keys(stage.as_map_fn()(parts(100, 10)))
    total = metrics.totals()
    assert (total.state, total.failures, total.failure_types) == ("failed", 1, {"Problem": 1})


# -- the schema ------------------------------------------------------------------------------------

WIDE = pa.schema([("s", pa.string()), ("d", pa.float64()), ("t", pa.timestamp("us", "UTC"))])


def test_columns_are_matched_by_name_and_cast() -> None:
    text = pa.array(["a"])
    views = [text.cast(pa.string_view())] if hasattr(pa, "string_view") else []  # pyarrow 16
    for given in (text.dictionary_encode(), text.cast(pa.large_string()), *views):
        odd = batch_of(t=pa.array([0], pa.timestamp("ms", "America/New_York")), s=given, d=[1])
        (found,) = rs.map_batches(lambda _, b=odd: b, WIDE).as_map_fn()(parts(1, 1))
        assert found.schema == WIDE
        assert found.column(0).to_pylist() == ["a"]


class OtherFrame(list[str]):
    """Of another library: it iterates over the names of its columns."""

    columns = ("k",)


def as_frame(batch: pa.RecordBatch) -> Any:
    return batch.to_pandas()


def as_records(batch: pa.RecordBatch) -> Any:
    return np.array([(k,) for k in batch["k"].to_pylist()], dtype=[("k", "i8")])


def as_dicts(batch: pa.RecordBatch) -> Any:
    return batch.to_pylist()


def several(batch: pa.RecordBatch) -> Any:
    yield as_dicts(batch.slice(0, 3))
    yield as_frame(batch.slice(3, 3))
    yield []
    yield as_table(batch.slice(6).slice(0, 0))
    yield as_records(batch.slice(6))


FNS = [same, in_pieces, as_table, as_frame, as_records, as_dicts, several]


@every_backend
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("fn", FNS)
def test_outputs_of_every_kind_come_in_the_order_of_the_inputs(fn: Any, asynchronous: bool) -> None:
    async def fn_async(batch: pa.RecordBatch) -> Any:
        await asyncio.sleep(0.001 * (batch["k"][0].as_py() % 3))
        found = fn(batch)
        return list(found) if fn is in_pieces else found

    outputs = rs.map_batches(fn_async if asynchronous else fn, K).as_map_fn()(parts(300, 10))
    assert keys(outputs) == list(range(300))


#: What runs on the loop, on threads, and as a stream.
STAGES: list[Callable[..., Any]] = [
    lambda **words: made(rs.lookup, rows_same, pa.int64(), **words),
    lambda **words: made(rs.enrich, rows_same, on="k", output=D, ordered=False, **words),
    lambda **words: made(rs.map_batches, same, K, **words),
    lambda **words: made(rs.map_batches, in_pieces, K, **words),
    lambda **words: made(rs.map_batches, same_async, K, **words),
    lambda **words: rs.stage(lambda stream: stream, K, **words),
    lambda **words: rs.stage(lambda stream: stream.publish_on(prefetch=4), K, **words),
    lambda **words: rs.stage(lambda stream: stream.map_async(same_async), K, **words),
]
every_stage = pytest.mark.parametrize("make", STAGES)


@every_stage
def test_no_input_starts_and_opens_nothing(make: Callable[..., Any]) -> None:
    before, opened = threading.active_count(), list[int]()
    words = {} if STAGES.index(make) > 4 else {"using": lambda: opened.append(1)}
    assert list(make(**words).as_map_fn()([])) == []
    assert not opened
    assert threading.active_count() == before


@every_stage
def test_what_upstream_raises_comes_out(make: Callable[..., Any]) -> None:
    def upstream() -> Any:
        yield from parts(20, 10)
        raise Problem("upstream")

    with pytest.raises(Problem, match="upstream"):
        list(make().as_map_fn()(upstream()))


@every_backend
@every_stage
def test_close_ends_the_threads(make: Callable[..., Any]) -> None:
    def endless() -> Any:
        while True:
            yield from parts(100, 10)

    with rs.Metrics() as metrics:
        outputs = make(metrics=metrics).as_map_fn()(endless())
        next(outputs)
        outputs.close()
        assert metrics.totals().state == "stopped"


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (batch_of(x=[1]), ValueError, r"missing: k; unknown: x"),
        (batch_of(k=[1], x=[1]), ValueError, r"unknown: x"),
        (batch_of(k=["1"]), TypeError, r"'k' as string, declared is int64"),
        (batch_of(k=[1.0, 1.5]), TypeError, r"declared int64 at row 1 of the batch: 1.5"),
        (batch_of(k=[True]), TypeError, r"'k' as bool, declared is int64"),
        ([{"k": 1}, {"q": 2}], ValueError, r"row 1 of what .*gave .*unknown: q; missing: k"),
        (OtherFrame("k"), TypeError, r"must return rows .*, got OtherFrame"),
        *(
            (result, TypeError, f"RecordBatch.*, got {named}")
            for result, named in (
                *((None, "NoneType"), (5, "int"), ("text", "str")),
                *(([1], "int: 1"), ({"k": [1]}, "dict"), ({}, "dict")),
            )
        ),
    ],
)
def test_a_result_that_is_not_as_declared_is_refused(
    result: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        list(rs.map_batches(lambda _: result, K).as_map_fn()(parts(1, 1)))


def test_a_zone_is_where_it_is_declared_and_a_builder_gives_a_stream() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    naive = batch_of(t=pa.array([0], pa.timestamp("us")))
    with pytest.raises(TypeError, match="one has a time zone, the other has none"):
        list(rs.map_batches(lambda _: naive, schema).as_map_fn()(parts(1, 1)))
    stage: Any = rs.stage(lambda stream: 5, K)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="must return a Stream, got int"):
        list(stage.as_map_fn()(parts(1, 1)))


# -- its words -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["generator", "iterable", "async"])
@pytest.mark.parametrize("on_failure", ["raise", "drop"])
@pytest.mark.parametrize("failing", [2, 3])
def test_a_failed_call_is_made_again_then_raised_or_dropped(
    tmp_path: Any, kind: str, on_failure: str, failing: int
) -> None:
    left = [failing]

    class Several:
        def __init__(self, batch: pa.RecordBatch) -> None:
            self.batch = batch

        def __iter__(self) -> Any:
            yield self.batch.slice(0, 3)  # which must not leave before the rest is known
            if self.batch["k"][0].as_py() == 20 and left[0]:
                left[0] -= 1
                raise OSError("service away")
            yield self.batch.slice(3)

    def generator(batch: pa.RecordBatch) -> Any:
        yield from Several(batch)

    async def fn_async(batch: pa.RecordBatch) -> Any:
        return Several(batch)

    fn: Any = {"generator": generator, "iterable": Several, "async": fn_async}[kind]
    metrics = rs.Metrics(tmp_path)
    words: Any = {"retry": rs.Retry(2, backoff=0), "on_failure": on_failure, "metrics": metrics}
    outputs = made(rs.map_batches, fn, K, **words).as_map_fn()(parts(50, 10))
    if failing == 3 and on_failure == "raise":
        with pytest.raises(OSError, match="service away") as raised:
            keys(outputs)
        assert "this was attempt 3 of 3" in raised.value.__notes__[0]
    else:
        dropped = range(20, 30) if failing == 3 else ()
        assert keys(outputs) == [k for k in range(50) if k not in dropped]
    total = metrics.totals()
    assert (total.retries, total.failures) == (2, int(failing == 3))


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_not_as_declared_is_never_dropped(sync: bool) -> None:
    def fn(_: pa.RecordBatch) -> Any:
        return [{"q": 1}]

    stage = rs.map_batches(fn if sync else as_async(fn), K, on_failure="drop")
    with pytest.raises(ValueError, match="unknown: q"):
        keys(stage.as_map_fn()(parts(10, 5)))


def test_a_wait_for_the_next_attempt_ends_with_the_stage() -> None:
    waits = threading.Event()

    def fn(batch: pa.RecordBatch) -> Any:
        if batch["k"][0].as_py():
            waits.set()
            raise OSError("service away")
        return batch

    stage = rs.map_batches(rs.Policy(retry=rs.Retry(1, backoff=3600, max_backoff=3600))(fn), K)
    outputs: Any = stage.as_map_fn()(parts(20, 10))
    next(outputs)
    assert waits.wait(DEADLINE)
    start_thread(outputs.close).result()


# -- stage -----------------------------------------------------------------------------------------
def test_any_stream_of_parts() -> None:
    def build(stream: Any) -> Any:
        return stream.map(lambda b: b.slice(1)).publish_on().filter(lambda b: b.num_rows > 5)

    stage = rs.stage(build, K)
    assert keys(stage.as_map_fn()(parts(95, 10))) == [k for k in range(90) if k % 10]
    assert "publish_on" in stage.describe()
    in_order = rs.stage(lambda stream: stream.map_async(same_async, concurrency=4), K)
    assert keys(in_order.as_map_fn()(parts(300, 10))) == list(range(300))


def test_a_stage_may_end_early() -> None:
    read = 0

    def upstream() -> Any:
        nonlocal read
        for batch in parts(100_000, 10):
            read += 1
            yield batch

    stage = rs.stage(lambda stream: stream.take(3), K)
    assert keys(stage.as_map_fn()(upstream())) == list(range(30))
    assert read < 100


@every_backend
@pytest.mark.parametrize("boundary", [False, True])
@pytest.mark.parametrize("raised", [Problem("in the stage"), Frozen(7), StopIteration()], ids=repr)
def test_exceptions_of_a_stage_come_out(raised: Exception, boundary: bool) -> None:
    """A ``StopIteration`` is no end, and what takes no note comes out itself."""

    def bad(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["k"][0].as_py() == 50:
            raise raised
        return batch

    def build(stream: Any) -> Any:
        return stream.publish_on().map(bad).publish_on() if boundary else stream.map(bad)

    kind = RuntimeError if isinstance(raised, StopIteration) else type(raised)
    with rs.Metrics() as metrics:
        with pytest.raises(kind) as caught:
            list(rs.stage(build, K, metrics=metrics).as_map_fn()(parts(100, 10)))
        assert metrics.totals().state == "failed"
    assert caught.value is raised or "StopIteration" in str(caught.value)


@pytest.fixture
def in_a_task() -> Iterator[None]:
    """As in a worker of Spark's."""
    context: Any = TaskContext._getOrCreate()
    context._stageId = context._partitionId = context._attemptNumber = 0
    context._taskAttemptId = 0
    yield
    TaskContext._taskContext = None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stage_does_not_end_before_its_threads_unless_the_worker_does(
    asynchronous: bool, in_a_task: None
) -> None:
    """A function that refuses to end must not meet the next task."""
    taken, entered, go_on = threading.Event(), threading.Event(), threading.Event()

    def hold(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["k"][0].as_py():
            entered.set()
            assert go_on.wait(DEADLINE)
        return batch

    async def hold_async(batch: pa.RecordBatch) -> pa.RecordBatch:
        # Once it holds the loop, nothing comes out of it.
        while batch["k"][0].as_py() and not taken.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return hold(batch)

    def build(stream: Any) -> Any:
        return stream.map_async(hold_async) if asynchronous else stream.publish_on().map(hold)

    for patient in (True, False):
        for event in (taken, entered, go_on):
            event.clear()
        stage = rs.stage(build, K).as_map_fn()(parts(30, 10))
        next(stage)
        taken.set()
        assert entered.wait(DEADLINE)
        if patient:
            threading.Timer(0.1, go_on.set).start()
            stage.close()
        else:
            with pytest.raises(RuntimeError, match="did not end with the stage; the worker is"):
                stage.close()
        left = [
            thread.name
            for thread in threading.enumerate()
            if thread.name.startswith("rstreams") and thread.name != "rstreams-leases"
        ]
        assert bool(left) == (not patient), left
    go_on.set()


def test_the_batches_alive_in_a_stage_are_bounded_by_bytes() -> None:
    size, count = parts(1000, 1000)[0].nbytes, 0
    words: Any = {"bounds": rs.Bounds(bytes=5 * size)}
    with rs.Metrics() as metrics:
        stage = rs.stage(lambda s: s.publish_on(prefetch=1000), K, metrics=metrics, **words)
        for batch in stage.as_map_fn()(parts(1000, 1000)[0] for _ in range(200)):
            del batch
            count += 1
            if count % 20 == 0:
                time.sleep(0.01)
        gc.collect()
        total = metrics.totals()
    assert count == 200
    assert total.max_buffered_batches <= 5
    assert total.max_buffered_bytes <= 5 * size


def test_a_stage_that_keeps_everything_does_not_hang() -> None:
    def build(stream: Any) -> Any:
        tables = stream.batch(3).map(pa.Table.from_batches)
        return tables.map(lambda table: table.combine_chunks().to_batches()[0])

    stage = rs.stage(build, K, bounds=rs.Bounds(bytes=parts(10, 10)[0].nbytes))
    assert keys(stage.as_map_fn()(parts(30, 10))) == list(range(30))


def test_rows_are_taken_while_another_thread_imports_pandas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    rows = [{"k": np.int64(1)}, {"k": 2}]
    assert keys(rs.map_batches(lambda _: rows, K).as_map_fn()(parts(1, 1))) == [1, 2]


def test_a_slow_upstream_is_told_from_a_slow_stage() -> None:
    begun, came = time.monotonic(), list[Any]()

    def upstream() -> Any:
        first, second = parts(2, 1)
        yield first
        wait_until(lambda: came, "the first batch comes out")
        time.sleep(0.1 + 2 * (time.monotonic() - begun))  # longer than all else, on any machine
        yield second

    with rs.Metrics() as metrics:
        came.extend(rs.stage(lambda s: s, K, metrics=metrics).as_map_fn()(upstream()))
        total = metrics.totals()
    assert total.waiting_upstream > 0.1
    assert total.waiting_upstream > total.waiting_function
