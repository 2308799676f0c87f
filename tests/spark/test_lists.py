"""``batch``: calls of lists of keys; and ``cache``: results that a worker keeps."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
import functools
import os
import pickle
import threading
import time
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, wait_until
from tests.spark.stages import D, batches

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


def rows(outputs: Iterator[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in outputs for row in batch.to_pylist()]


class Service:
    """Doubles lists of keys, and keeps what it was asked."""

    def __init__(self) -> None:
        self.lists: list[list[Any]] = []
        self.running = self.most = 0

    async def __call__(self, keys: list[Any]) -> list[Any]:
        self.lists.append(keys)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.002)
        self.running -= 1
        return [2 * k for k in keys]


# -- batch -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("sync_fn", [True, False])
def test_every_row_gets_its_own_result_of_a_call_of_many(ordered: bool, sync_fn: bool) -> None:
    service = Service()

    def plain(keys: list[int]) -> tuple[int, ...]:
        return tuple(asyncio.run(service(keys)))

    stage = rs.enrich(
        plain if sync_fn else service,
        on="k",
        output=D,
        batch=60,
        linger=5,
        concurrency=3,
        ordered=ordered,
    )
    keys = [None if k % 10 == 3 else k for k in range(3000)]
    found = rows(stage.as_map_fn()(batches(keys[:1100], keys[1100:])))
    expected = [(k, None if k is None else 2 * k) for k in keys]
    assert found == expected if ordered else sorted(found, key=str) == sorted(expected, key=str)
    assert service.most <= 3
    sizes = list(map(len, service.lists))
    assert max(sizes) == 60
    assert sum(sizes) == 2700
    assert len(sizes) <= 2700 // 60 + 10


def test_a_list_that_is_not_full_goes_when_it_has_lingered() -> None:
    service, more = Service(), threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from batches([1, 2, 3])
        assert more.wait(DEADLINE)
        yield from batches([4])

    stage = rs.enrich(service, on="k", output=D, batch=64, linger=0.001)
    found = []
    for output in stage.as_map_fn()(slowly()):
        found += output.to_pylist()
        more.set()
    assert found == [{"k": k, "d": 2 * k} for k in (1, 2, 3, 4)]
    assert service.lists == [[1, 2, 3], [4]]


def test_several_keys_are_tuples_and_the_client_comes_first() -> None:
    class Client:
        async def __aenter__(self) -> str:
            return "client"

        async def __aexit__(self, *exc: object) -> None:
            pass

    asked = []

    async def fetch(client: str, keys: list[tuple[int, int]]) -> list[int]:
        asked.append((client, keys))
        return [a + b for a, b in keys]

    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [10, 20]})
    stage = rs.enrich(fetch, on=["a", "b"], output=D, using=Client, batch=10, linger=0)
    assert rows(stage.as_map_fn()(iter([batch]))) == [(1, 10, 11), (2, 20, 22)]
    assert asked == [("client", [(1, 10), (2, 20)])]


def test_equal_keys_are_asked_for_once() -> None:
    service = Service()
    stage = rs.enrich(service, on="k", output=D, batch=100, dedupe=True)
    keys = [k % 7 for k in range(70)]
    assert rows(stage.as_map_fn()(batches(keys))) == [(k, 2 * k) for k in keys]
    assert service.lists == [list(range(7))]


@pytest.mark.parametrize("on_failure", ["raise", "null"])
def test_an_exception_among_the_results_is_the_failure_of_its_row(on_failure: str) -> None:
    async def fetch(keys: list[int]) -> list[Any]:
        return [KeyError("gone") if k == 5 else k for k in keys]

    stage = rs.enrich(fetch, on="k", output=D, batch=4, on_failure=on_failure).as_map_fn()
    if on_failure == "null":
        assert rows(stage(batches(list(range(9))))) == [
            (k, None if k == 5 else k) for k in range(9)
        ]
        return
    with pytest.raises(KeyError, match="gone") as caught:
        rows(stage(batches(list(range(9)))))
    assert "for the key k=5" in caught.value.__notes__[0]


def test_a_call_is_made_again_as_a_whole() -> None:
    asked = []

    async def fetch(keys: list[int]) -> list[int]:
        asked.append(keys)
        if len(asked) == 1:
            raise OSError("down")
        return keys

    stage = rs.enrich(fetch, on="k", output=D, batch=3, retry=rs.Retry(1, backoff=0))
    assert rows(stage.as_map_fn()(batches([1, 2, 3]))) == [(1, 1), (2, 2), (3, 3)]
    assert asked == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        ([1], ValueError, "called with 3 keys and returned 1 results"),
        ("abc", TypeError, "a list of 3 keys and must return as many results.*returned str"),
        (None, TypeError, "returned NoneType"),
        ({1, 2, 3}, TypeError, "returned set"),  # which has no order
        (pa.table({"a": [1, 2, 3], "b": [1, 2, 3]}), TypeError, "returned Table"),
        ([StopIteration()] * 3, RuntimeError, "fn returned a StopIteration for a key"),
    ],
)
def test_a_result_that_is_no_list_of_results_is_refused(
    result: Any, error: type[Exception], message: str
) -> None:
    async def fetch(_: list[int]) -> Any:
        return result

    stage = rs.enrich(fetch, on="k", output=D, batch=3)
    with pytest.raises(error, match=message):
        rows(stage.as_map_fn()(batches([1, 2, 3])))


def test_calls_have_ended_before_the_client_is_closed() -> None:
    log = []
    began = threading.Event()

    class Client:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *exc: object) -> None:
            log.append("closed")

    async def fetch(_: Client, keys: list[int]) -> list[int]:
        if keys[0] == 0:
            return keys
        try:
            began.set()
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            log.append("cancelled")
            raise
        return keys

    stage = rs.enrich(fetch, on="k", output=D, using=Client, batch=2, ordered=False)
    outputs = stage.as_map_fn()(batches(list(range(4))))
    assert next(outputs).num_rows == 2
    assert began.wait(DEADLINE)
    outputs.close()
    assert log == ["cancelled", "closed"]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "words", [{"dedupe": True}, {"cache": True}, {"dedupe": True, "ordered": False}]
)
def test_a_clock_that_is_put_back_shows_two_times(words: dict[str, Any], nested: bool) -> None:
    """``datetime`` takes the two 01:30 of that night for equal."""
    zone = zoneinfo.ZoneInfo("America/New_York")
    both = [dt.datetime(2024, 11, 3, 1, 30, tzinfo=zone, fold=fold) for fold in (0, 1)]
    asked = []

    async def fetch(key: Any) -> int:
        asked.append(key)
        await asyncio.sleep(0.01)
        when = key["at"] if nested else key
        assert type(when) is dt.datetime  # as what takes exact types, such as sqlite3, wants it
        assert when == copy.deepcopy(when)
        return int(when.timestamp())

    if "cache" in words:
        words = {"cache": rs.Cache()}
    column = pa.array(both * 3, pa.timestamp("us", "America/New_York"))
    keys = pa.StructArray.from_arrays([column], ["at"]) if nested else column
    stage = rs.enrich(fetch, on="k", output=D, **words)
    for _ in range(2):
        batch = pa.RecordBatch.from_arrays([keys], ["k"])
        found = rows(stage.as_map_fn()(iter([batch])))
        assert sorted(value for _, value in found) == sorted(int(at.timestamp()) for at in both * 3)
    assert len(asked) == (4 if "dedupe" in words else 6)


def test_a_client_is_given_as_it_is() -> None:
    clients: list[Any] = []

    class Session(dict[str, Any]):
        async def __aenter__(self) -> Self:
            clients.append(self)
            return self

        async def __aexit__(self, *exc: object) -> None:
            pass

    async def fetch(client: Session, keys: list[dt.datetime]) -> list[int]:
        assert client is clients[0]
        return [int(key.timestamp()) for key in keys]

    times = [dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.UTC)] * 2
    batch = pa.RecordBatch.from_pydict({"k": pa.array(times, pa.timestamp("us", "UTC"))})
    stage = rs.enrich(fetch, on="k", output=D, using=Session, batch=4, dedupe=True)
    assert [value for _, value in rows(stage.as_map_fn()(iter([batch])))] == [1730615400] * 2


# -- cache -----------------------------------------------------------------------------------------
def counted(calls: list[Any]) -> Any:
    async def fetch(k: Any) -> Any:
        calls.append(k)
        await asyncio.sleep(0)
        return None if k == 3 else k

    return fetch


def test_a_result_is_kept_for_later_partitions_and_copies_of_the_cache() -> None:
    calls: list[Any] = []
    cache = rs.Cache()
    fetch = counted(calls)
    for again in (cache, pickle.loads(pickle.dumps(cache))):
        stage = rs.enrich(fetch, on="k", output=D, cache=again)
        assert rows(stage.as_map_fn()(batches([1, 3, None], [4]))) == [
            (1, 1),
            (3, None),
            (None, None),
            (4, 4),
        ]
    assert calls == [1, 3, 4]
    rows(rs.enrich(fetch, on="k", output=D, cache=rs.Cache()).as_map_fn()(batches([1])))
    assert calls == [1, 3, 4, 1]


def test_each_function_and_type_of_keys_has_results_of_its_own() -> None:
    class Times:
        def __init__(self, by: int) -> None:
            self.by = by

        async def of(self, k: float) -> int:
            calls.append(k)
            return int(k) * self.by

    async def times(by: int, k: float) -> int:
        calls.append(k)
        return int(k) * by

    calls: list[float] = []
    cache = rs.Cache()
    two, three = Times(2), Times(3)
    four, five = functools.partial(times, 4), functools.partial(times, 5)
    for again in (False, True):
        del calls[:]
        for fn, by in ((two.of, 2), (three.of, 3), (four, 4), (five, 5)):
            for kind in (pa.int64(), pa.float64(), pa.bool_()):
                batch = pa.RecordBatch.from_pydict({"k": pa.array([1], pa.int64()).cast(kind)})
                stage = rs.enrich(fn, on="k", output=D, cache=cache)
                assert [row[1] for row in rows(stage.as_map_fn()(iter([batch])))] == [by]
        assert len(calls) == (0 if again else 12)


def test_functions_that_are_equal_are_not_the_same() -> None:
    @dataclass(frozen=True)
    class Times:
        by: int = field(compare=False)

        async def __call__(self, k: int) -> int:
            return k * self.by

    cache, fns = rs.Cache(), [Times(2), Times(3)]
    for fn in fns:
        stage = rs.enrich(fn, on="k", output=D, cache=cache)
        assert rows(stage.as_map_fn()(batches([1, 2]))) == [(1, fn.by), (2, 2 * fn.by)]


def test_what_came_of_another_client_is_another_result() -> None:
    async def fetch(client: int, k: int) -> int:
        return client * k

    cache = rs.Cache()
    clients = [lambda: contextlib.nullcontext(2), lambda: contextlib.nullcontext(3)]
    for by, using in zip((2, 3, 2), (*clients, clients[0]), strict=True):
        metrics = rs.Metrics()
        stage = rs.enrich(fetch, on="k", output=D, cache=cache, using=using, metrics=metrics)
        assert rows(stage.as_map_fn()(batches([1, 2]))) == [(1, by), (2, 2 * by)]
    assert metrics.totals().cache_hits == 2


def test_what_one_stage_keeps_serves_another_kind_of_failure() -> None:
    calls: list[Any] = []
    fetch, cache = counted(calls), rs.Cache()
    bare = rs.lookup(fetch, pa.int64(), cache=cache)
    told = rs.lookup(fetch, pa.int64(), cache=cache, on_failure="column")
    for key, stages in ((1, (bare, told)), (2, (told, bare))):
        for stage in stages:
            ((_, value),) = rows(stage.as_map_fn()(batches([key])))
            assert value == key if stage is bare else value["value"] == key
    assert calls == [1, 2]


def test_null_is_kept_as_long_as_one_says() -> None:
    calls: list[Any] = []
    stage = rs.enrich(counted(calls), on="k", output=D, cache=rs.Cache(null_ttl=0))
    for _ in range(2):
        rows(stage.as_map_fn()(batches([3, 4])))
    assert calls == [3, 4, 3]


@pytest.mark.parametrize("words", [{"ttl": 0.05}, {"null_ttl": 0.05}], ids=str)
def test_a_result_is_good_for_its_time(words: dict[str, float]) -> None:
    calls: list[Any] = []
    stage = rs.enrich(counted(calls), on="k", output=D, cache=rs.Cache(**words))  # type: ignore[arg-type]
    begin = time.monotonic()

    def asked_again() -> bool:
        rows(stage.as_map_fn()(batches([3, 4])))
        return calls.count(3) > 1

    wait_until(asked_again, "the end of its time")
    assert time.monotonic() >= begin + 0.05
    assert calls.count(4) == 1 or "ttl" in words


def test_a_failure_leaves_nothing() -> None:
    calls = []

    async def fetch(k: int) -> int:
        calls.append(k)
        raise OSError("down")

    stage = rs.enrich(fetch, on="k", output=D, cache=rs.Cache(), on_failure="null")
    for _ in range(2):
        assert rows(stage.as_map_fn()(batches([1]))) == [(1, None)]
    assert calls == [1, 1]


@pytest.mark.parametrize("bounds", [{"entries": 100}, {"bytes": 100_000}])
def test_a_cache_is_bounded(bounds: dict[str, int]) -> None:
    calls: list[int] = []

    async def fetch(k: int) -> str:
        calls.append(k)
        return "x" * (500 if k < 2000 else 10**6)

    stage = rs.lookup(fetch, pa.string(), cache=rs.Cache(**bounds), concurrency=1)
    rows(stage.as_map_fn()(batches(list(range(2000)))))
    calls.clear()
    rows(stage.as_map_fn()(batches(list(reversed(range(2000))))))
    kept = sorted(set(range(2000)) - set(calls))
    assert kept == list(range(2000 - len(kept), 2000))
    assert 20 <= len(kept) <= 100
    if "bytes" in bounds:
        for _ in range(2):
            rows(stage.as_map_fn()(batches([2000])))
        assert calls.count(2000) == 2


def test_a_cache_goes_before_lists_and_hits_are_counted(tmp_path: Any) -> None:
    service, cache = Service(), rs.Cache()
    metrics = rs.Metrics(tmp_path)
    stage = rs.enrich(service, on="k", output=D, cache=cache, batch=10, metrics=metrics, linger=0)
    for keys in ([1, 2], [2, 3]):
        assert rows(stage.as_map_fn()(batches(keys))) == [(k, 2 * k) for k in keys]
    assert service.lists == [[1, 2], [3]]
    assert metrics.totals().cache_hits == 1


@pytest.mark.spark
def test_a_worker_keeps_what_it_was_told_between_tasks(spark: Any, tmp_path: Path) -> None:
    """Several workers may take turns: each asks once, and one of them is given a second task."""
    calls = tmp_path / "calls"
    path = str(calls)

    async def fetch(keys: list[int]) -> list[int]:
        with open(path, "a") as file:  # noqa: ASYNC230, PTH123
            file.writelines(f"{os.getpid()} {k}\n" for k in keys)
        return [2 * k for k in keys]

    value = rs.lookup(fetch, "long", batch=16, cache=rs.Cache())
    frame = spark.range(0, 100, 1, 1).withColumn("v", value("id"))
    asked: list[str] = []
    for _ in range(30):
        assert [row.v for row in frame.collect()] == [2 * k for k in range(100)]
        before, asked = len(asked), calls.read_text().splitlines()
        if len(asked) == before:
            break
    assert len(asked) == before
    assert len(set(asked)) == len(asked)
