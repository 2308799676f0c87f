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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE
from tests.spark import stages
from tests.spark.stages import (
    D,
    batches,
    in_or_out_of_order,
    made,
    one,
    outputs,
    rows,
    values,
    waiting,
)

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


class Service(stages.Service):
    """Doubles lists of keys."""

    async def __call__(self, keys: list[Any]) -> list[Any]:
        await self.look(keys)
        return [2 * k for k in keys]

    def plain(self, keys: list[Any]) -> tuple[Any, ...]:
        return tuple(asyncio.run(self(keys)))


@in_or_out_of_order
@pytest.mark.parametrize("sync_fn", [True, False])
def test_every_row_gets_its_own_result_of_a_call_of_many(ordered: bool, sync_fn: bool) -> None:
    service = Service()
    fn: Any = service.plain if sync_fn else service
    words: Any = {"batch": rs.Batching(60, linger=5), "concurrency": 3, "ordered": ordered}
    keys = [None if k % 10 == 3 else k for k in range(3000)]
    found = rows(made(rs.enrich, fn, on="k", output=D, **words), keys[:1100], keys[1100:])
    expected = [(k, None if k is None else 2 * k) for k in keys]
    assert found == expected if ordered else sorted(found, key=str) == sorted(expected, key=str)
    assert service.most <= 3
    sizes = list(map(len, service.calls))
    assert max(sizes) == 60
    assert sum(sizes) == 2700
    assert len(sizes) <= 2700 // 60 + 10


@asynccontextmanager
async def client() -> AsyncIterator[str]:
    yield "client"


def test_several_keys_are_tuples_and_the_client_comes_first_in_each_attempt() -> None:
    asked = []

    async def fetch(client: str, keys: list[tuple[int, int]]) -> list[int]:
        asked.append((client, keys))
        if len(asked) == 1:
            raise OSError("down")
        return [a + b for a, b in keys]

    words: Any = {"using": client, "batch": rs.Batching(10, linger=0)}
    words["retry"] = rs.Retry(1, backoff=0)
    stage = made(rs.enrich, fetch, on=["a", "b"], output=D, **words)
    assert outputs(stage, one(a=[1, 2], b=[10, 20]))["d"].to_pylist() == [11, 22]
    assert asked == [("client", [(1, 10), (2, 20)])] * 2


def test_equal_keys_are_asked_for_once_and_an_exception_among_the_results_is_a_row_s() -> None:
    calls: list[Any] = []

    async def fetch(keys: list[int]) -> list[Any]:
        calls.append(keys)
        return [KeyError("gone") if k == 5 else 2 * k for k in keys]

    words: Any = {"batch": 100, "dedupe": True}
    keys = [k % 7 for k in range(70)]
    stage = made(rs.enrich, fetch, on="k", output=D, on_failure="null", **words)
    assert rows(stage, keys) == [(k, None if k == 5 else 2 * k) for k in keys]
    assert calls == [list(range(7))]
    with pytest.raises(KeyError, match="gone") as caught:
        rows(made(rs.enrich, fetch, on="k", output=D, **words), keys)
    assert "for the key k=5" in caught.value.__notes__[0]


def test_a_list_that_is_not_full_goes_when_it_has_lingered() -> None:
    service, more, found = Service(), threading.Event(), list[int]()
    stage = rs.enrich(service, on="k", output=D, batch=rs.Batching(64, linger=0.001))
    for output in stage.as_map_fn()(waiting(more, [1, 2, 3], [4])):
        found += output["d"].to_pylist()
        more.set()
    assert found == [2, 4, 6, 8]
    assert service.calls == [[1, 2, 3], [4]]


@pytest.mark.parametrize("words", [{}, {"cache": rs.Cache()}, {"journal": True}], ids=str)
@pytest.mark.parametrize("sync_fn", [True, False])
def test_no_list_waits_for_more_rows_than_the_partition_has(
    words: dict[str, Any], sync_fn: bool, tmp_path: Path
) -> None:
    """The last rows, or a lone one, would else wait for longer than a test may."""
    if "journal" in words:
        words = {"journal": rs.Journal(tmp_path, version="1")}
    service = Service()
    fn: Any = service.plain if sync_fn else service
    batch = rs.Batching(64, linger=2 * DEADLINE)
    stage = made(rs.enrich, fn, on="k", output=D, batch=batch, **words)
    for keys in ([1], [None, 7, None], range(70)):
        service.calls.clear()
        begin = time.monotonic()
        assert values(stage, keys) == [None if k is None else 2 * k for k in keys]
        assert time.monotonic() - begin < DEADLINE
        assert len(service.calls) <= 2


@pytest.mark.parametrize("pauses", [{0: 0.01}, {0: 0.01, 2: 0.1}], ids=str)
def test_no_repeated_row_waits_for_more_rows_than_the_partition_has(
    pauses: dict[int, float],
) -> None:
    sent: list[list[int]] = []

    async def fetch(keys: list[int]) -> list[Any]:
        sent.append(keys)
        left = pauses if len(sent) == 1 else {}
        return [rs.RetryAfter(left[k]) if k in left else 2 * k for k in keys]

    stage = rs.lookup(fetch, pa.int64(), batch=rs.Batching(10, linger=3600))
    begin = time.monotonic()
    assert values(stage, range(3)) == [0, 2, 4]
    assert time.monotonic() - begin < DEADLINE
    assert sent == [[0, 1, 2], list(pauses)]


def test_no_row_waits_for_a_repeated_row_that_has_passed_its_deadline() -> None:
    more, found = threading.Event(), list[Any]()

    async def fetch(keys: list[int]) -> list[Any]:
        return [2 * k or rs.RetryAfter(3600) for k in keys]

    fn = rs.Policy(patience=3600, deadline=1.0)(fetch)
    words: Any = {"batch": rs.Batching(2, linger=3600), "on_failure": "null", "ordered": False}
    stage = rs.enrich(fn, on="k", output=D, **words)
    begin = time.monotonic()
    for output in stage.as_map_fn()(waiting(more, [0, 1], [2])):
        found += output["d"].to_pylist()
        more.set()
    assert time.monotonic() - begin < DEADLINE
    assert sorted(found, key=str) == [2, 4, None]


@pytest.mark.parametrize("budget", [None, 0.1, 0.0])
def test_a_row_that_failed_is_called_again_without_its_list(budget: float | None) -> None:
    """A list that is answered earns for each of its rows: a tenth of 1000 may be called again."""
    sent: list[list[int]] = []

    async def fetch(keys: list[int]) -> list[Any]:
        sent.append(keys)
        before = sum(map(len, sent))
        return [OSError("down") if k % 20 == 7 and before <= 1000 else 2 * k for k in keys]

    retry = rs.Retry(1, backoff=0.001, jitter=0, budget=budget)
    words: Any = {"batch": rs.Batching(100, linger=0.05), "retry": retry, "on_failure": "column"}
    found = outputs(made(rs.lookup, fetch, pa.int64(), **words), batches(range(1000)))[-1]
    failed = [k for k, one in enumerate(found.to_pylist()) if one["error"] is not None]
    assert len(failed) == (40 if budget == 0 else 0)  # ten are free
    again = [k for keys in sent for k in keys][1000:]
    assert sorted(again + failed) == list(range(7, 1000, 20))
    assert found[8]["attempts"].as_py() == 1
    assert found[7]["attempts"].as_py() == 2


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"bytes": 4000}, "4000 bytes"),
        ({"weight": 4000, "weigh": len}, "a weight of 4000"),
        ({"weight": 2.0, "weigh": lambda key: len(key) / 2000, "bytes": 9000}, "9000 bytes"),
        ({"weight": 9e9, "weigh": len, "bytes": 4000}, "4000 bytes"),
    ],
)
def test_a_list_is_no_larger_than_allowed_and_a_larger_key_goes_alone(
    bounds: dict[str, Any], said: str
) -> None:
    sent: list[list[str]] = []

    async def fetch(keys: list[str]) -> list[int]:
        sent.append(keys)
        return list(map(len, keys))

    keys = ["x" * (900 if k % 50 else 5000) for k in range(300)]
    batch = rs.Batching(100, linger=0.001, **bounds)
    stage = rs.lookup(fetch, pa.int64(), batch=batch, concurrency=2)
    assert stages.values(stage, keys, kind=pa.string()) == list(map(len, keys))
    assert max(sum(map(len, some)) for some in sent if len(some) > 1) <= 4000
    assert len(sent) < 100
    assert f"of up to 100 keys and {said}" in stage.describe()


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
    with pytest.raises(error, match=message):
        rows(rs.enrich(lambda _: result, on="k", output=D, batch=3), [1, 2, 3])


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
    stage = made(rs.enrich, fetch, on="k", output=D, **words)
    for _ in range(2):
        found = outputs(stage, one(k=keys))["d"].to_pylist()
        assert sorted(found) == sorted(int(at.timestamp()) for at in both * 3)
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
    stage = rs.enrich(fetch, on="k", output=D, using=Session, batch=4, dedupe=True)
    keys = one(k=pa.array(times, pa.timestamp("us", "UTC")))
    assert outputs(stage, keys)["d"].to_pylist() == [1730615400] * 2


# -- cache -----------------------------------------------------------------------------------------
def test_a_result_is_kept_for_later_partitions_and_copies_of_the_cache() -> None:
    calls, cache = list[Any](), rs.Cache()

    async def fetch(k: Any) -> Any:
        calls.append(k)
        await asyncio.sleep(0)
        return None if k == 3 else k

    for again in (cache, pickle.loads(pickle.dumps(cache))):
        stage = rs.enrich(rs.Policy(cache=again)(fetch), on="k", output=D)
        assert rows(stage, [1, 3, None], [4]) == [(1, 1), (3, None), (None, None), (4, 4)]
    assert calls == [1, 3, 4]
    rows(rs.enrich(rs.Policy(cache=rs.Cache())(fetch), on="k", output=D), [1])
    assert calls == [1, 3, 4, 1]


@dataclass(frozen=True)
class Times:
    by: int = field(compare=False)  # those that are equal are not the same

    async def __call__(self, k: float) -> int:
        return int(k) * self.by

    async def of(self, k: float) -> int:
        return int(k) * self.by

    async def client(self, factor: int, k: float) -> int:
        return factor * int(k) * self.by


async def times(by: int, k: float) -> int:
    return int(k) * by


def test_each_function_client_and_type_of_keys_has_results_of_its_own() -> None:
    cache, client = rs.Cache(), Times(1).client
    fns = [(fn, by, None) for by in (2, 3) for fn in (Times(by), Times(by).of)]
    fns += [(functools.partial(times, by), by, None) for by in (4, 5)]
    factories = [functools.partial(contextlib.nullcontext, by) for by in (6, 7)]
    fns += [(client, 6 + place, using) for place, using in enumerate(factories)]
    for again in (False, True):
        for fn, by, using in fns:
            for kind in (pa.int64(), pa.float64(), pa.bool_()):
                with rs.Metrics() as metrics:
                    words: Any = {"cache": cache, "using": using, "metrics": metrics}
                    stage = made(rs.enrich, fn, on="k", output=D, **words)
                    keys = one(k=pa.array([1], pa.int64()).cast(kind))
                    assert outputs(stage, keys)["d"].to_pylist() == [by]
                    assert metrics.totals().cache_hits == again


def test_what_one_stage_keeps_serves_another_kind_of_failure_and_a_failure_leaves_nothing() -> None:
    calls: list[Any] = []

    async def fetch(k: int) -> int:
        calls.append(k)
        if k == 9:
            raise OSError("down")
        return k

    cache = rs.Cache()
    bare = rs.lookup(rs.Policy(cache=cache)(fetch), pa.int64(), on_failure="null")
    told = rs.lookup(rs.Policy(cache=cache)(fetch), pa.int64(), on_failure="column")
    for key, both in ((1, (bare, told)), (2, (told, bare)), (9, (bare, told))):
        for stage in both:
            ((_, value),) = rows(stage, [key])
            found = value if stage is bare else value["value"]
            assert found == (None if key == 9 else key)
    assert calls == [1, 2, 9, 9]


@pytest.mark.parametrize("bounds", [{"entries": 100}, {"bytes": 100_000}])
def test_a_cache_is_bounded(bounds: dict[str, int]) -> None:
    calls: list[int] = []

    async def fetch(k: int) -> str:
        calls.append(k)
        return "x" * (500 if k < 2000 else 10**6)

    stage = rs.lookup(rs.Policy(cache=rs.Cache(**bounds))(fetch), pa.string(), concurrency=1)
    rows(stage, range(2000))
    calls.clear()
    rows(stage, reversed(range(2000)))
    kept = sorted(set(range(2000)) - set(calls))
    assert kept == list(range(2000 - len(kept), 2000))
    assert 20 <= len(kept) <= 100
    if "bytes" in bounds:
        for _ in range(2):
            rows(stage, [2000])
        assert calls.count(2000) == 2


def test_a_cache_goes_before_lists_and_hits_are_counted(tmp_path: Any) -> None:
    service, metrics = Service(), rs.Metrics(tmp_path)
    words: Any = {"cache": rs.Cache(), "batch": rs.Batching(10, linger=0), "metrics": metrics}
    stage = made(rs.enrich, service, on="k", output=D, **words)
    for keys in ([1, 2], [2, 3]):
        assert rows(stage, keys) == [(k, 2 * k) for k in keys]
    assert service.calls == [[1, 2], [3]]
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

    value = rs.lookup(rs.Policy(cache=rs.Cache())(fetch), "long", batch=16)
    frame = spark.range(0, 100, 1, 1).withColumn("v", value("id"))
    asked: list[str] = []
    for _ in range(30):
        assert [row.v for row in frame.collect()] == [2 * k for k in range(100)]
        before, asked = len(asked), calls.read_text().splitlines()
        if len(asked) == before:
            break
    assert len(asked) == before
    assert len(set(asked)) == len(asked)
