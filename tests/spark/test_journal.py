"""``journal``: answers that outlive the task, the process and the job."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import os
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.fresh import forget_journals, small_segments
from tests.helpers import run_threads, wait_until
from tests.spark.journals import Doubling, answer, files, read, stage_of, values, wait_for_merges
from tests.spark.kills import soak
from tests.spark.stages import Service, V, batches, made, one, outputs

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

ROOT = Path(__file__).parents[2]
__all__ = ["small_segments"]

NOW = dt.datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=dt.UTC)
TYPES: list[tuple[pa.DataType, Any]] = [
    (pa.int64(), 2**62),
    (pa.float64(), math.inf),
    (pa.float32(), 0.1),
    (pa.string(), "grüße \U0001f600"),
    (pa.binary(), b"\x00\xff"),
    (pa.bool_(), False),
    (pa.decimal128(38, 10), Decimal("-1.0000000001")),
    (pa.date32(), dt.date(1582, 10, 4)),
    (pa.timestamp("us", "UTC"), NOW),
    (pa.timestamp("us"), NOW.replace(tzinfo=None)),
    (pa.duration("us"), dt.timedelta(days=-1, microseconds=1)),
    (pa.list_(pa.string()), ["a", None]),
    (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": None}),
    (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))]), {"a": None, "b": [1.5]}),
    (pa.struct([("a", pa.struct([("b", pa.int8())]))]), {"a": None}),
]


@pytest.mark.parametrize("words", [{}, {"ordered": False, "dedupe": True}, {"cache": None}])
def test_what_was_answered_is_not_called_again(words: Any, uri: str) -> None:
    fetch = Doubling()
    with rs.Metrics() as metrics:

        def run(*keys: range) -> list[Any]:
            if "cache" in words:  # a new one, as that of another process
                words["cache"] = rs.Cache()
            found = values(stage_of(fetch, uri, metrics=metrics, **words), *keys)
            return sorted(found, key=str)

        expected: list[Any] = list(map(answer, range(3010)))
        assert run(range(3000)) == sorted(expected[:3000], key=str)
        assert sorted(fetch.calls) == list(range(3000))
        # Another layout of the partitions.
        again = run(range(10), range(2990, 3010)) + run(range(10, 2990))
        assert sorted(again, key=str) == sorted(expected, key=str)
        assert sorted(fetch.calls) == list(range(3010))
        hits = {read.journal_hits for read in metrics.read()}
        assert hits == {0, 20, 2980}
    assert len(files(uri)) == 2  # each partition has merged what it wrote


@pytest.mark.parametrize(("kind", "value"), TYPES, ids=lambda it: str(it)[:20])
def test_answers_and_keys_of_every_type_are_found_again(kind: Any, value: Any, uri: str) -> None:
    service = Service()
    words: Any = {"journal": J(uri), "on_null": "call"}
    stage = made(rs.enrich, service.look, on="k", output=pa.schema([("v", kind)]), **words)
    first = values(stage, [value], kind=kind) + values(stage, [None], kind=kind)
    assert values(stage, [None, value], kind=kind) == first[::-1]
    assert J(uri).compact() == 1
    assert values(stage, [None, value, value], kind=kind) == [first[1], first[0], first[0]]
    assert len(service.calls) == 2
    assert first[1] is None


def test_nan_is_a_key(uri: str) -> None:
    fetch = Doubling()
    stage = rs.enrich(
        rs.Policy(journal=J(uri))(fetch), on="k", output=pa.schema([("v", pa.float64())])
    )
    for _ in range(2):
        assert math.isnan(values(stage, [math.nan], kind=pa.float64())[0])
    assert len(fetch.calls) == 1


def J(uri: str, **words: Any) -> rs.Journal:
    return rs.Journal(uri, **{"version": "1", **words})


def test_several_columns_and_nulls(uri: str) -> None:
    calls: list[Any] = []

    async def fn(a: int, b: str) -> Any:
        calls.append((a, b))
        return None if a == 1 else (a, {"x": b}) if a == 2 else {"x": a, "y": None}

    output = pa.schema([("x", pa.int64()), ("y", pa.struct([("x", pa.string())]))])
    stage = rs.enrich(rs.Policy(journal=J(uri))(fn), on=["a", "b"], output=output)
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3, None], "b": ["p", "q", "r", "s"]})
    found = []
    for _ in range(2):
        forget_journals()
        found.append([b.to_pylist() for b in stage.as_map_fn()(iter([batch]))])
    assert found[0] == found[1]
    assert calls == [(1, "p"), (2, "q"), (3, "r")]


def test_another_version_type_or_function_is_called_anew(uri: str) -> None:
    calls: list[str] = []

    async def one(k: int) -> int:
        calls.append("one")
        return k

    async def two(k: int) -> int:
        calls.append("two")
        return k

    for _ in range(2):
        for fn, version, kind in (
            (one, "1", pa.int64()),
            (one, "2", pa.int64()),
            (one, "1", pa.float64()),
            (two, "1", pa.int64()),
        ):
            output = pa.schema([("v", kind)])
            stage = rs.enrich(rs.Policy(journal=J(uri, version=version))(fn), on="k", output=output)
            assert values(stage, [1]) == [1]
    assert calls == ["one", "one", "one", "two"]


def test_failures_are_not_kept_and_outcomes_are(uri: str) -> None:
    calls: list[int] = []

    async def fn(k: int) -> int:
        calls.append(k)
        if k == 2 and calls.count(2) == 1:
            raise OSError("down")
        return k

    def found(failure: str, *keys: int) -> list[Any]:
        return values(
            rs.lookup(rs.Policy(journal=J(uri))(fn), pa.int64(), on_failure=failure), keys
        )

    told = [(row["value"], row["attempts"]) for row in found("column", 1, 2)]
    assert told == [(1, 1), (None, 1)]
    assert found("null", 1, 2) == [1, 2]
    assert calls == [1, 2, 2]
    assert found("column", 1) == [{"value": 1, "error": None, "attempts": 0, "seconds": 0.0}]


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("on_failure", ["raise", "null", "column"])
def test_a_journal_that_cannot_be_read_is_no_failure_of_a_row(on_failure: str, uri: str) -> None:
    fetch, metrics = Doubling(), rs.Metrics()
    words: Any = {"on_failure": on_failure, "metrics": metrics}
    for k in (1, 2):
        values(stage_of(fetch, uri), [k])

    def upstream() -> Iterator[pa.RecordBatch]:
        yield from batches([1])
        wait_until(lambda: metrics.totals().journal_hits, "the first answer")
        (folder,) = Path(uri).iterdir()
        folder.rename(f"{uri}-aside")
        folder.touch()
        yield from batches([1, 2])

    forget_journals()
    with metrics, pytest.raises(RuntimeError, match="the journal cannot be asked for the answer: "):
        outputs(stage_of(fetch, uri, **words), upstream())
    assert fetch.calls == [1, 2]


def test_lists_of_keys_are_answered_one_by_one(uri: str) -> None:
    asked: list[Any] = []
    ids = set[str]()

    async def fn(keys: list[tuple[int, str]]) -> list[int]:
        asked.extend(keys)
        with pytest.raises(RuntimeError, match="several keys"):
            rs.call_id()
        assert [rs.call_id(key) for key in keys] == [rs.call_id(*key) for key in keys]
        ids.update(map(rs.call_id, keys))
        return [2 * a for a, _ in keys]

    words: Any = {"batch": rs.Batching(10, linger=0.001), "journal": J(uri)}
    stage = made(rs.enrich, fn, on=["a", "b"], output=V, **words)
    for count in (5, 7):
        forget_journals()
        keys = one(a=[1, *range(count)], b=["x", *"y" * count])
        assert outputs(stage, keys)["v"].to_pylist() == [2, *(2 * k for k in range(count))]
    assert asked == [(1, "x"), *((k, "y") for k in range(7))]
    assert len(ids) == 8


def test_an_id_is_that_of_the_key_in_every_attempt_and_thread(uri: str) -> None:
    seen: dict[int, set[str]] = {k: set() for k in range(100)}

    def failing(k: int) -> int:
        seen[k].add(rs.call_id())
        attempts[k] += 1
        if attempts[k] == 1:
            raise OSError("once")
        return k

    async def fn(k: int) -> int:
        await asyncio.sleep(0.0001 * (k % 3))
        failing(k)
        await asyncio.to_thread(lambda: seen[k].add(rs.call_id()))
        return k

    fn.__qualname__ = failing.__qualname__ = "same"
    for each, version in ((fn, "1"), (failing, "1"), (failing, "2")):
        attempts = Counter[int]()
        journal = rs.Journal(f"{uri}-{each}", version=version)
        stage = rs.lookup(
            rs.Policy(retry=rs.Retry(1, backoff=0), journal=journal)(each), pa.int64()
        )
        assert values(stage, range(100)) == list(range(100))
        assert {len(ids) for ids in seen.values()} == {int(version)}
    assert len(set.union(*seen.values())) == 200


def test_a_digest_is_the_same_for_ever(uri: str) -> None:
    """What this version has written the next one finds."""
    one = pa.RecordBatch.from_pylist(
        [
            {"a": 1, "b": "a", "c": None, "d": [{"a": Decimal("1.10"), "b": NOW.date()}], "e": NOW},
            {"a": 2, "b": "\U0001fadf", "c": True, "d": [], "e": NOW},  # new to Unicode
        ]
    )

    async def fetch(*key: Any) -> int:
        return 1

    stage = made(rs.enrich, fetch, on=list("abcde"), output=V, journal=J(uri), on_null="call")
    there = one.column("e").cast(pa.timestamp("us", "America/New_York"))
    zoned = pa.RecordBatch.from_arrays([*one.columns[:4], there], one.schema.names)
    for batch in (one, zoned):
        outputs(stage, [batch])
    (segment,) = files(uri)
    assert sorted(key.hex() for key in read(segment)["key"].to_pylist()) == [
        "0e79036b9e56ecf1081005e065d7e2d2",
        "17cfcd798cd4a0cce64d515a0291edb9",
    ]


# -- damage ----------------------------------------------------------------------------------------
def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("damage", [cut, flipped, lambda content: b"", lambda content: b"x" * 900])
def test_a_damaged_segment_is_a_warning(
    damage: Any, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    fetch = Doubling()
    stage = stage_of(fetch, uri)
    expected = values(stage, range(5, 1000))
    (segment,) = files(uri)
    segment.write_bytes(damage(segment.read_bytes()))
    for _ in range(3):
        assert values(stage, range(5, 1000)) == expected
    assert len(fetch.calls) == 2 * 995
    (record,) = caplog.records
    assert segment.name in record.getMessage()
    assert rs.Journal(uri, version="1").compact() == 0
    assert len(files(uri)) == 2


def test_nobody_pays_for_what_a_journal_cannot_keep(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fetch = Doubling()
    with pytest.raises(OSError) as refused:
        values(stage_of(fetch, str(tmp_path / "file" / "in it")), [1, 2])
    assert "Journal(uri): the directory cannot be made" in str(refused.value.__notes__)
    assert not fetch.calls


def test_an_answer_that_is_none_is_named_by_the_task_and_not_kept(uri: str) -> None:
    calls: list[int] = []

    async def fn(k: int) -> Any:
        calls.append(k)
        return "no number" if calls.count(5) == 1 and k == 5 else k

    with pytest.raises(TypeError, match="for the key k=5"):
        values(stage_of(fn, uri), range(10))
    assert values(stage_of(fn, uri), range(10)) == list(range(10))
    assert sorted(calls) == sorted([*range(10), 5])


def test_answers_none_of_which_fits_leave_no_segment(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fn(k: int) -> Any:
        return "no number"

    for _ in range(2):
        with pytest.raises(TypeError, match="for the key k=5"):
            values(stage_of(fn, uri), [5])
    assert not files(uri)
    assert not caplog.records


def test_who_stops_early_has_what_was_answered(uri: str) -> None:
    fetch = Doubling()
    outputs: Any = stage_of(fetch, uri).as_map_fn()(batches(*([k] for k in range(100_000))))
    next(outputs)
    outputs.close()
    called = len(fetch.calls)
    assert 0 < called < 100_000
    assert len(values(stage_of(fetch, uri), range(called))) == called
    assert len(set(fetch.calls)) >= len(fetch.calls) - 64  # those that were cancelled


# -- compaction and bounds -------------------------------------------------------------------------
def test_small_segments_become_one(uri: str) -> None:
    fetch = Doubling()
    stage = stage_of(fetch, uri)
    for part in range(20):
        values(stage, range(10 * part, 10 * part + 10))
    left = Path(f"{uri}/{'0' * 32}/{'1' * 32}.arrow.tmp")
    left.parent.mkdir()
    left.touch()
    assert rs.Journal(uri, version="other").compact() == 19
    assert left.exists()  # somebody may be at it
    os.utime(left, (1, 1))
    assert rs.Journal(uri, version="1").compact() == 0
    assert len(files(uri)) == 1
    assert len(values(stage, range(200))) == 200
    assert len(fetch.calls) == 200


def test_a_task_that_sees_many_segments_merges_them(uri: str) -> None:
    """Of so many tasks one, so that they do not all do it: the segments are there 600 times."""
    stage = stage_of(Doubling(), uri)
    values(stage, [0])
    (segment,) = files(uri)
    for number in range(600):
        name = f"{segment.name[: -len('012345678901.arrow')]}{number:012x}.arrow"
        (segment.parent / name).write_bytes(segment.read_bytes())
    for part in range(1, 200):
        list(stage.as_map_fn()(batches([part])))
        wait_for_merges()
        if len(files(uri)) < 300:
            break
    assert len(files(uri)) < 10
    assert values(stage, range(part + 1)) == list(map(answer, range(part + 1)))


def test_micro_batches_of_one_process_leave_few_segments(uri: str) -> None:
    fetch = Doubling()
    run = stage_of(fetch, uri).as_map_fn()
    for number in range(40):
        list(run(batches([number])))
    wait_for_merges()
    assert len(files(uri)) == 2 + 40 % 16
    assert values(stage_of(fetch, uri), range(40)) == list(map(answer, range(40)))
    assert len(fetch.calls) == 40


@pytest.mark.usefixtures("small_segments")
def test_readers_and_writers_do_not_mind_compactors(uri: str) -> None:
    done = threading.Event()
    before, during = Doubling(), Doubling()
    first = stage_of(before, uri)
    for part in range(10):
        values(first, range(30 * part, 30 * part + 30))

    def compacting() -> None:
        while not done.is_set():
            rs.Journal(uri, version="1").compact()

    def running() -> None:
        try:
            for part in range(15):
                stage = stage_of(during, uri)
                keys = [*range(300), *range(300 + 50 * part, 350 + 50 * part)]
                assert values(stage, keys) == list(map(answer, keys))
        finally:
            done.set()

    run_threads([compacting, compacting, running])
    assert during.calls == list(range(300, 1050))


def test_the_oldest_answers_make_room(uri: str) -> None:
    fetch = Doubling()
    stage = stage_of(fetch, uri, max_bytes=100_000)
    for part in range(20):
        values(stage, range(1000 * part, 1000 * part + 1000))
    assert 30_000 < sum(file.stat().st_size for file in files(uri)) <= 100_000
    values(stage, range(19_000, 20_000))
    assert len(fetch.calls) == 20_000
    values(stage, range(1000))
    assert len(fetch.calls) == 21_000


def test_a_journal_counts_and_removes_no_file_but_its_own(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    fetch = Doubling()
    values(stage_of(fetch, uri), [1, 2])
    (segment,) = files(uri)
    unfinished = [segment.with_name(f"{name}.tmp") for name in (segment.name, "0" * 32 + ".arrow")]
    names = (segment.name, f"{segment.name}.tmp", "train.arrow", "train.arrow.tmp", "rows.txt")
    places = (Path(uri), Path(uri) / "data", segment.parent / "0", segment.parent)
    others = {place / name for place in places for name in names} - {segment, *unfinished}
    for file in (*others, *unfinished):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * 100_000)
        os.utime(file, (1, 1))
    for most, left in ((100_000, {segment}), (1, set())):
        rs.Journal(uri, version="1", max_bytes=most).compact()
        assert {path for path in Path(uri).rglob("*") if path.is_file()} == others | left
    assert values(stage_of(fetch, uri, max_bytes=100_000), [1, 2]) == [2, 4]
    assert fetch.calls == [1, 2, 1, 2]
    assert all(file.exists() for file in others)
    assert not caplog.records


@pytest.mark.usefixtures("small_segments")
def test_segments_stay_few_while_a_partition_writes(uri: str) -> None:
    seen: list[int] = []

    class Counting(Doubling):
        async def __call__(self, k: Any) -> Any:
            if k % 50 == 0:
                seen.append(len(files(uri)))
            return await super().__call__(k)

    values(stage_of(Counting(), uri), range(5000))
    assert 1 < max(seen) <= 60
    assert len(files(uri)) == 1


# -- words -----------------------------------------------------------------------------------------


def test_a_uri_may_be_as_spark_prints_it_or_a_path(tmp_path: Path) -> None:
    fetch = Doubling()
    for uri in (f"file:{tmp_path}", tmp_path):
        stage = rs.enrich(rs.Policy(journal=J(uri))(fetch), on="k", output=V)  # type: ignore[arg-type]
        assert values(stage, [4]) == [8]
    assert fetch.calls == [4]
    for scheme in ("s3a", "s3n"):
        assert J(f"{scheme}://bucket/path").uri == "s3://bucket/path"
    for scheme in ("foo", "x-foo"):
        stage = rs.enrich(rs.Policy(journal=J(f"{scheme}://x/y"))(fetch), on="k", output=V)
        with pytest.raises(ValueError, match=r"Journal\(uri\): .*: Unrecognized filesystem"):
            values(stage, [1])


def test_a_uri_is_shown_without_its_user_and_query() -> None:
    journal = J("hdfs://somebody@host:8020/path?replication=3")
    text = rs.lookup(rs.Policy(journal=journal)(Doubling()), pa.int64()).describe()
    assert "somebody" not in repr(journal) + text
    assert "Journal('hdfs://host:8020/path', version='1', max_bytes=None)" in text
    assert "are made again, at most 64 in each partition" in text


def test_a_segment_has_nothing_but_keys_answers_and_times(uri: str) -> None:
    values(stage_of(Doubling(), uri), [1])
    (segment,) = files(uri)
    assert read(segment).schema.names == ["key", "answer", "time"]


# -- kills -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_of_driver_executors_and_workers_repeat_few_calls() -> None:
    assert "5 kills" in soak(5, "journal")
