"""lookup and enrich as plain iterator functions: no Spark, every backend."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import json
import threading
import time
from collections import Counter, namedtuple
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, Problem, start_thread, wait_until
from tests.spark.backends import every_backend
from tests.spark.conftest import Frozen
from tests.spark.stages import (
    D,
    K,
    Service,
    as_async,
    batches,
    doubled,
    in_or_out_of_order,
    made,
    one,
    outputs,
    parts,
    same,
    waiting,
)

SUB_BATCH_ROWS = 1024
"""Rows of an output batch at most."""
OUTPUT_BATCHES = 4
"""Output batches that wait for Spark at most."""

pytestmark = pytest.mark.usefixtures("backend", "no_leaked_threads")


def looked_up(fn: Any, rows: int, size: int = 1000, **words: Any) -> list[Any]:
    """Return the values of the keys 0, 1, ..., in batches of ``size``."""
    output = made(rs.lookup, fn, words.pop("returns", pa.int64()), **words).as_map_fn()(
        parts(rows, size)
    )
    return [value for batch in output for value in batch["value"].to_pylist()]


def with_d(fn: Any, **words: Any) -> rs.Enrich:
    return made(rs.enrich, fn, on="k", output=D, **words)


# -- values, order, nulls --------------------------------------------------------------------------
@every_backend
@in_or_out_of_order
@pytest.mark.parametrize("size", [1, 7, 3000])
def test_every_row_leaves_once_with_its_own_value(size: int, ordered: bool) -> None:
    rows = 3000 if size > 1 else 200
    keys = [None if k % 10 == 3 else k for k in range(rows)]
    inputs = list(batches(*(keys[i : i + size] for i in range(0, rows, size))))
    made = list(with_d(doubled, ordered=ordered).as_map_fn()(inputs))
    assert not ordered or max(batch.num_rows for batch in made) <= SUB_BATCH_ROWS
    found = pa.Table.from_batches(made)
    assert (found["k"].to_pylist() == keys) == ordered
    assert Counter(found["k"].to_pylist()) == Counter(keys)
    expected = [None if k is None else 2 * k for k in found["k"].to_pylist()]
    assert found["d"].to_pylist() == expected


@pytest.mark.parametrize(("pending", "size"), [(64, 4000), (None, 1000)])
def test_large_results_leave_in_small_sub_batches(pending: int | None, size: int) -> None:
    async def look(_k: int) -> str:
        await asyncio.sleep(0)
        return "x" * 10_000

    words: Any = {"concurrency": 8, "bounds": rs.Bounds(rows=pending, bytes=1 << 20)}
    stage = made(rs.lookup, look, pa.string(), **words)
    sizes = [batch.num_rows for batch in stage.as_map_fn()(parts(4000, size))]
    assert sum(sizes) == 4000
    # The size is learned from the first; the keys of the second may be converted by then.
    learned = [rows for rows, end in zip(sizes, accumulate(sizes), strict=True) if end > 2048]
    assert max(learned) <= (1 << 20) / 10_000 / (8 if pending else 4)


@pytest.mark.parametrize("on_null", ["skip", "call"])
def test_a_null_key_is_no_call_unless_asked_for(on_null: str) -> None:
    seen: list[Any] = []

    async def look(k: int | None, s: str | None) -> str:
        seen.append((k, s))
        return f"{k}{s}"

    keys = one(k=pa.array([1, None, 3, None], pa.int64()), s=["a", "b", None, None])
    found = outputs(rs.lookup(look, pa.string(), on_null=on_null), keys)["value"].to_pylist()
    if on_null == "skip":
        assert (seen, found) == ([(1, "a")], ["1a", None, None, None])
    else:
        assert seen == [(1, "a"), (None, "b"), (3, None), (None, None)]
        assert found == ["1a", "Noneb", "3None", "NoneNone"]


@in_or_out_of_order
def test_long_runs_of_null_keys_cost_no_call_and_hold_no_more_rows(ordered: bool) -> None:
    async def look(k: int) -> int:
        calls[0] += 1
        await asyncio.sleep(0)
        return k

    calls, size, count, read = Counter[int](), 500, 60, 0
    nulls = pa.RecordBatch.from_pydict({"k": pa.nulls(size, pa.int64())})

    def upstream() -> Any:
        nonlocal read
        for batch in [*[nulls] * count, *parts(size, size), *[nulls] * count]:
            read += 1
            yield batch

    enrich = with_d(look, ordered=ordered, concurrency=2, bounds=rs.Bounds(rows=100))
    stage = enrich.as_map_fn()(upstream())
    rows = next(stage).num_rows
    time.sleep(0.1)  # for the others to run as far as they can
    # in the ring, in the reader's hand, in work, between loop and main
    assert read <= 16 + 1 + (100 + 2 * SUB_BATCH_ROWS) / size + 1 + OUTPUT_BATCHES + 4
    assert rows + sum(batch.num_rows for batch in stage) == (2 * count + 1) * size
    assert calls[0] == size
    assert next(enrich.as_map_fn()([nulls]))["d"].null_count == size


def test_batches_without_rows_pass() -> None:
    (empty,) = batches([])
    inputs = [empty, *parts(10, 5), empty, *parts(3, 3), empty]
    found = outputs(rs.lookup(doubled, pa.int64()), inputs)
    assert found["value"].to_pylist() == [2 * k for k in [*range(10), *range(3)]]
    assert list(rs.lookup(doubled, pa.int64()).as_map_fn()([empty])) == []


def test_a_slow_call_at_the_head_does_not_stop_the_others() -> None:
    others, seen, enough = 500, 0, asyncio.Event()

    async def look(k: int) -> int:
        nonlocal seen
        if k == 0:
            await enough.wait()  # answered only after the others were made
        else:
            seen += 1
            if seen == others:
                enough.set()
            await asyncio.sleep(0)
        return k

    found = looked_up(look, 1000, 10, concurrency=8, bounds=rs.Bounds(rows=others + 1))
    assert found == list(range(1000))


@pytest.mark.parametrize("suspends", [False, True])
def test_the_first_results_do_not_wait_for_the_rest(suspends: bool) -> None:
    never = asyncio.Event()

    async def look(k: int) -> int:
        if k >= 3:  # more than half of those in line go on waiting
            await never.wait()
        elif suspends:
            await asyncio.sleep(0)
        return k

    stage: Any = rs.lookup(look, pa.int64(), concurrency=8).as_map_fn()(parts(1000, 1000))
    found: list[int] = []
    while len(found) < 3:
        found += next(stage)["value"].to_pylist()
    assert found == [0, 1, 2]
    stage.close()


@in_or_out_of_order
def test_results_leave_while_upstream_is_dry(ordered: bool) -> None:
    go_on = threading.Event()
    stage = with_d(doubled, ordered=ordered).as_map_fn()(waiting(go_on, range(5), range(3)))
    found: list[int] = []
    while len(found) < 5:
        found += next(stage)["k"].to_pylist()
    assert sorted(found) == list(range(5))
    go_on.set()
    assert sum(batch.num_rows for batch in stage) == 3


# -- several outputs -------------------------------------------------------------------------------

PAIR = pa.schema([("d", pa.int64()), ("s", pa.string())])


class Named(NamedTuple):
    """In an order of its own."""

    s: str
    d: int


@in_or_out_of_order
@pytest.mark.parametrize("kind", ["tuple", "dict", "mixed", "named"])
def test_several_outputs(kind: str, ordered: bool) -> None:
    async def look(k: int) -> Any:
        if k == 5:
            return None
        if kind == "tuple" or (kind == "mixed" and k % 2):
            return (2 * k, str(k))
        return Named(str(k), 2 * k) if kind == "named" else {"s": str(k), "d": 2 * k}

    found = outputs(rs.enrich(look, on=["k"], output=PAIR, ordered=ordered), parts(50, 20))
    assert found.schema.names == ["k", "d", "s"]
    expected = [(k, None, None) if k == 5 else (k, 2 * k, str(k)) for k in range(50)]
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == expected


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ((1,), ValueError, "1 values for the 2 columns d, s"),
        ((1, "a", 2), ValueError, "3 values for the 2 columns"),
        ({"d": 1}, ValueError, "missing: s"),
        ({"d": 1, "s": "a", "x": 1}, ValueError, "unknown: x"),
        ({"d": 1, "x": "a"}, ValueError, "unknown: x; missing: s"),
        (namedtuple("Other", "x s")(1, "a"), ValueError, "unknown: x; missing: d"),  # noqa: PYI024
        ([1, "a"], TypeError, "tuple or a dict"),
        (1, TypeError, "tuple or a dict"),
        (("1", "a"), TypeError, "column 'd' is declared int64"),
        ((1, 2), TypeError, "column 's' is declared string"),
    ],
)
def test_a_wrong_result_names_the_column_and_the_key(
    result: Any, error: type[Exception], words: str
) -> None:
    async def look(k: int) -> Any:
        return result if k == 7 else (k, "a")

    with pytest.raises(error) as caught:
        outputs(rs.enrich(look, on=["k"], output=PAIR), parts(10, 10))
    assert words in str(caught.value)
    assert "the key k=7" in str(caught.value)


def test_a_wrong_value_after_null_keys_names_its_own_key() -> None:
    async def look(k: int) -> Any:
        return "text" if k == 17 else float(k)

    keys = [None if k % 10 == 3 else k for k in range(40)]
    with pytest.raises(TypeError, match=r"column 'value' is declared double.*k=17: str 'text'"):
        list(rs.lookup(look, pa.float64()).as_map_fn(on="k")(batches(keys)))


# -- failures --------------------------------------------------------------------------------------
@every_backend
@in_or_out_of_order
@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize(
    ("words", "raised", "said"),
    [
        ({}, Problem("no such thing"), "for the key k=42"),
        ({"dedupe": True}, SystemExit(1), "raised by look for the key k=42"),
        ({"serialize_by": "k", "concurrency": 1}, SystemExit(1), "raised by look for the key k=42"),
        ({"serialize_by": "k"}, SystemExit(1), "raised by look for the key k=42"),
    ],
    ids=str,
)
def test_what_the_function_raises_comes_out_with_its_key(
    words: Any, raised: BaseException, said: str, suspends: bool, ordered: bool
) -> None:
    async def look(k: int) -> Any:
        if suspends:
            await asyncio.sleep(0)
        if k == 42:
            raise raised
        return k

    with pytest.raises(type(raised)) as caught:
        outputs(with_d(look, ordered=ordered, **words), parts(50, 30) * 2)
    assert any(said in note for note in caught.value.__notes__)


@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError, SystemExit, Frozen])
@pytest.mark.parametrize("sync", [False, True])
def test_exceptions_that_mean_something_to_others_or_refuse_attributes(
    kind: type[BaseException], sync: bool
) -> None:
    """To generators and loops."""
    raised = Frozen(7) if kind is Frozen else kind()

    def look(k: int) -> int:
        if k == 3:
            raise raised
        return k

    for retry, said in ((None, "for the key 3"), (rs.Retry(1, backoff=0), "2 of 2")):
        with pytest.raises((RuntimeError, SystemExit, Frozen)) as caught:
            looked_up(look if sync else as_async(look), 10, retry=retry)
        if kind is Frozen:
            assert caught.value is raised
            assert any(said in note for note in raised.__notes__)


def test_a_function_that_stops_the_loop_loses_no_row_silently() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    stopped = threading.Event()

    def upstream() -> Any:
        first, second = parts(20, 10)
        yield first
        assert stopped.wait(DEADLINE)
        wait_until(loops[0].is_closed, "the end of the loop")
        yield second

    async def look(k: int) -> int:
        if k == 5:
            loops.append(asyncio.get_running_loop())
            loops[0].stop()
            stopped.set()
        return k

    with pytest.raises(RuntimeError, match="look stopped the loop, which is the stage's"):
        list(rs.lookup(look, pa.int64()).as_map_fn()(upstream()))


def test_a_sync_function_that_returns_a_coroutine_is_told_apart() -> None:
    with pytest.raises(
        TypeError, match="returned a coroutine, which nobody awaits; make it 'async"
    ):
        looked_up(lambda k: doubled(k + 0), 3)


def test_a_cancellation_from_within_is_no_timeout() -> None:
    async def look(k: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(3600)
        return k

    with pytest.raises(RuntimeError, match="was cancelled, but not by the stage"):
        looked_up(look, 1, timeout=DEADLINE)


# -- dedupe and serialize_by -----------------------------------------------------------------------
@every_backend
@in_or_out_of_order
def test_equal_keys_in_flight_share_one_call(ordered: bool) -> None:
    calls, keys = Counter[int](), [i % 4 for i in range(400)]

    async def look(k: int) -> int:
        calls[k] += 1
        await asyncio.sleep(0.02)
        return 2 * k

    inputs = batches(*(keys[i : i + 80] for i in range(0, 400, 80)))
    found = outputs(with_d(look, ordered=ordered, dedupe=True), inputs)
    assert Counter(found["k"].to_pylist()) == Counter(keys)
    assert found["d"].to_pylist() == [2 * k for k in found["k"].to_pylist()]
    assert calls.total() < 40
    assert not ordered or found["k"].to_pylist() == keys


@in_or_out_of_order
@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ([[1.0, None], [2.0]], pa.list_(pa.float64())),
        ([{"a": 1, "b": [{"c": "x"}]}, {"a": 2, "b": []}], None),
        ([[("p", 1), ("q", 2)], [("p", 2)]], pa.map_(pa.string(), pa.int64())),
        ([float("nan"), 1.5], pa.float64()),
        ([[float("nan")], [1.5]], pa.list_(pa.float64())),
    ],
)
def test_keys_of_every_type_are_shared(ordered: bool, keys: list[Any], kind: Any) -> None:
    calls = []

    async def look(k: Any, row: int) -> str:
        calls.append((k, row))
        await asyncio.sleep(0.01)
        return json.dumps(k)

    batch = pa.RecordBatch.from_pydict({"k": pa.array(keys * 5, kind), "row": [0, 1] * 5})
    text = pa.schema([("d", pa.string())])
    words: Any = {"ordered": ordered, "dedupe": True, "timeout": DEADLINE}
    found = outputs(
        made(rs.enrich, look, on=["k", "row"], output=text, **words), [batch]
    ).to_pylist()
    assert len(calls) == 2, calls
    assert isinstance(calls[0][0], float | list | dict)
    assert copy.deepcopy(calls[0][0]) is calls[0][0] or type(copy.copy(calls[0][0])) in (list, dict)
    assert [row["d"] for row in found] == [json.dumps(calls[row["row"]][0]) for row in found]


@every_backend
@in_or_out_of_order
@pytest.mark.parametrize("keys", [1, 2])
def test_calls_of_one_key_take_turns(ordered: bool, keys: int) -> None:
    running, seen, most = Counter[int](), [], 0

    async def look(k: int, *row: int) -> int:
        nonlocal most
        running[k] += 1
        assert running[k] == 1
        most = max(most, running.total())
        seen.append((k, *row))
        await asyncio.sleep(0.001)
        running[k] -= 1
        if row and row[0] % 7 == 3:
            raise ValueError(row)
        return 2 * k

    batch = pa.RecordBatch.from_pydict({"k": [i % 5 for i in range(200)], "row": range(200)})
    words: Any = {"serialize_by": "k", "concurrency": 3, "on_failure": "null"}
    enrich = made(rs.enrich, look, on=["k", "row"][:keys], output=D, ordered=ordered, **words)
    found = outputs(enrich, [batch]).to_pylist()
    assert sorted(row["row"] for row in found) == list(range(200))
    failed = {row for row in range(200) if row % 7 == 3} if keys == 2 else set()
    assert {row["row"] for row in found if row["d"] is None} == failed
    assert most == 3
    if keys == 2:
        for k in range(5):
            assert [row for key, row in seen if key == k] == list(range(k, 200, 5))


# -- bounds ----------------------------------------------------------------------------------------
KINDS: dict[str, Any] = {
    "lookup": lambda service, **words: made(rs.lookup, service.look, pa.int64(), **words),
    "unordered": lambda service, **words: with_d(service.look, ordered=False, **words),
    "threads": lambda service, **words: made(rs.lookup, service.answer, pa.int64(), **words),
    "batches": lambda service, **words: made(rs.map_batches, service.batch, K, **words),
    "batches on threads": lambda service, **words: made(
        rs.map_batches, service.batch_sync, K, **words
    ),
}


@every_backend
@pytest.mark.parametrize("kind", KINDS)
def test_calls_overlap_across_batches_up_to_concurrency_and_the_window(kind: str) -> None:
    service, of_rows = Service(meet=7), "batches" not in kind
    words: Any = {"concurrency": 7, **({"bounds": rs.Bounds(rows=20)} if of_rows else {})}
    with rs.Metrics() as metrics:
        found = outputs(KINDS[kind](service, metrics=metrics, **words), parts(300, 3))
        total = metrics.totals()
    assert sorted(found["k"].to_pylist()) == list(range(300))
    assert service.most == total.max_running == 7
    assert (total.state, total.rows_in, total.rows_out) == ("done", 300, 300)
    assert total.calls == len(service.calls) == (300 if of_rows else 100)
    assert not of_rows or 7 <= total.max_pending <= 20


def test_a_slow_consumer_stops_the_reading() -> None:
    rows, size, read, left = 60_000, 1000, 0, 0
    budget = 10 * parts(size, size)[0].nbytes

    def upstream() -> Any:
        nonlocal read
        for batch in parts(rows, size):
            read += batch.num_rows
            yield batch

    with rs.Metrics() as metrics:
        words: Any = {"concurrency": 4, "bounds": rs.Bounds(rows=64, bytes=budget)}
        stage = made(rs.lookup, same, pa.int64(), metrics=metrics, **words)
        for index, batch in enumerate(stage.as_map_fn()(upstream())):
            left += batch.num_rows
            if index % 20 == 0:  # let the others run as far as they can
                time.sleep(0.01)
            # What was given back comes with the next pull; until then this batch is held, too.
            assert read - left <= 11 * size
        total = metrics.totals()
    assert left == rows
    assert total.max_buffered_bytes <= budget
    assert total.max_buffered_batches <= 10
    assert total.max_buffered_rows <= 10 * size


def test_one_batch_always_passes_a_small_budget() -> None:
    with rs.Metrics() as metrics:
        found = looked_up(doubled, 1000, 100, bounds=rs.Bounds(bytes=1), metrics=metrics)
        assert len(found) == 1000
        assert metrics.totals().max_buffered_batches == 1


# -- ends ------------------------------------------------------------------------------------------
def endless() -> Iterator[pa.RecordBatch]:
    while True:
        yield from parts(1000, 100)


@every_backend
@in_or_out_of_order
def test_close_ends_everything(ordered: bool) -> None:
    waiting = cancelled = 0
    all_wait = threading.Event()

    async def look(k: int) -> int:
        nonlocal waiting, cancelled
        try:
            if k >= 100:
                waiting += 1
                if waiting == 64:
                    all_wait.set()
                await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return k

    with rs.Metrics() as metrics:
        stage: Any = with_d(look, ordered=ordered, metrics=metrics).as_map_fn()(endless())
        next(stage)
        assert all_wait.wait(DEADLINE)
        stage.close()
        assert metrics.totals().state == "stopped"
    assert cancelled == waiting == 64


def test_close_does_not_wait_for_a_call_that_refuses_to_end() -> None:
    after_close: list[int] = []
    closed = threading.Event()

    async def look(k: int) -> int:
        if closed.is_set():
            after_close.append(k)
        while k:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return k

    stage: Any = rs.lookup(look, pa.int64(), concurrency=3).as_map_fn()(parts(100, 100))
    next(stage)
    start_thread(stage.close).result()
    closed.set()
    assert not after_close


def test_close_while_upstream_says_nothing_runs_no_function_any_more() -> None:
    silent, service = threading.Event(), Service()
    upstream = waiting(silent, range(10), range(10))
    stage: Any = rs.lookup(service.look, pa.int64()).as_map_fn()(upstream)
    next(stage)
    stage.close()
    seen = len(service.calls)
    silent.set()  # the reader ends now; nothing is made of what it read
    assert len(service.calls) == seen == 10


def test_a_broken_pipe_after_close_is_no_error(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    reading, closing = threading.Event(), threading.Event()

    def upstream() -> Any:
        yield from parts(10, 10)
        reading.set()
        assert closing.wait(DEADLINE)
        raise ConnectionResetError("the other side has gone")

    stage: Any = rs.lookup(doubled, pa.int64()).as_map_fn()(upstream())
    next(stage)
    assert reading.wait(DEADLINE)
    threading.Timer(0.1, closing.set).start()
    stage.close()
    assert not capfd.readouterr().err
    assert not caplog.records


def test_what_clients_leave_on_the_loop_is_ended() -> None:
    ended = threading.Event()
    tasks = set[asyncio.Task[None]]()

    async def background() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def look(k: int) -> int:
        if not tasks:
            tasks.add(asyncio.get_running_loop().create_task(background()))
            await asyncio.sleep(0)
        return await asyncio.to_thread(lambda: 2 * k)

    assert looked_up(look, 20, 10) == [2 * k for k in range(20)]
    assert ended.is_set()


def test_a_generator_that_hangs_in_its_finally_does_not_keep_the_partition() -> None:
    left: list[Any] = []

    async def answers() -> Any:
        try:
            yield 1
        finally:
            await asyncio.Event().wait()

    async def look(k: int) -> int:
        if not left:
            left.append(answers())
            await anext(left[0])
        return 2 * k

    assert start_thread(lambda: looked_up(look, 3)).result() == [0, 2, 4]


def test_the_callers_context_is_seen_by_the_function() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def look(k: int) -> str:
        return variable.get()

    variable.set("set")
    for fn in (look, as_async(look)):
        assert looked_up(fn, 3, returns=pa.string()) == ["set"] * 3


def test_a_function_may_have_any_attribute() -> None:
    class Mock:
        def __getattr__(self, name: str) -> Any:
            return Mock()

        def __call__(self, k: int) -> int:
            return 2 * k

    assert looked_up(Mock(), 3) == [0, 2, 4]


def test_retry_delays_grow_up_to_their_bound() -> None:
    retry = rs.Retry(9, backoff=1, factor=2, max_backoff=5, jitter=0)
    assert [retry.delay(n) for n in (1, 2, 3, 4, 5000)] == [1, 2, 4, 5, 5]
    for jitter, least in ((0.5, 0.5), (1, 0)):
        delays = [rs.Retry(9, backoff=1, jitter=jitter).delay(1) for _ in range(1000)]
        assert least <= min(delays) < least + 0.1
        assert 0.9 < max(delays) <= 1
    assert rs.Retry(1).jitter == 1
    none = rs.Retry(10_000, backoff=0)
    assert [none.delay(n) for n in (1, 2, 1026, 9_999)] == [0, 0, 0, 0]
