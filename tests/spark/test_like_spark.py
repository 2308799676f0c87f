"""Frames and values that Spark's own stages take: ours take them, with the same values."""

# ruff: noqa: DTZ001 - times without a zone are what is tested

from __future__ import annotations

import datetime as dt
import threading
import time
from contextlib import nullcontext
from decimal import Decimal as D
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.accumulators import AccumulatorParam

import rstreams_fast.spark as rs
from rstreams_fast.spark.versions import spark_version
from tests.helpers import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOON = dt.datetime(2024, 6, 1, 12)
AWARE = NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))


def objects(*values: Any) -> pd.Series:
    return pd.Series(list(values), dtype=object)


def moments(*texts: str | None) -> pd.Series:
    return pd.Series(pd.to_datetime(list(texts)))


def of_arrow(values: list[Any], kind: pa.DataType) -> pd.Series:
    return pd.Series(values, dtype=pd.ArrowDtype(kind))


#: What both take: the type, and two rows of a column.
TAKEN: list[tuple[str, Callable[[], Any]]] = [
    ("timestamp", lambda: moments("2024-06-01 12:00", "2024-12-01 12:00")),
    ("timestamp", lambda: moments("2024-10-27 02:30", None)),  # an hour that comes twice
    ("timestamp", lambda: moments("2024-06-01 12:00", None).dt.tz_localize("Asia/Tokyo")),
    ("timestamp", lambda: moments("2024-06-01 12:00", None).astype("datetime64[s]")),
    ("timestamp", lambda: objects(NOON, None)),
    ("timestamp", lambda: objects(AWARE, None)),
    ("timestamp", lambda: objects(dt.datetime(3000, 1, 1), None)),
    ("timestamp", lambda: of_arrow([NOON, None], pa.timestamp("us"))),
    ("timestamp", lambda: objects(None, None)),
    ("timestamp_ntz", lambda: moments("2024-06-01 12:00", None)),
    ("timestamp_ntz", lambda: moments("2024-06-01 12:00", None).dt.tz_localize("Asia/Tokyo")),
    ("timestamp_ntz", lambda: objects(AWARE, None)),
    ("date", lambda: moments("2024-06-01 23:00", None)),
    ("date", lambda: moments("2024-06-01 23:00", None).dt.tz_localize("America/New_York")),
    ("date", lambda: objects(dt.date(2024, 1, 1), None)),
    ("date", lambda: objects(dt.date(3000, 1, 1), dt.datetime(3000, 1, 1, 5))),
    ("interval day to second", lambda: pd.to_timedelta([1, 2], unit="h")),
    ("interval day to second", lambda: objects(dt.timedelta(1), None)),
    ("boolean", lambda: [1, 0]),
    ("boolean", lambda: [2.0, np.nan]),
    ("boolean", lambda: objects(1, 0)),
    ("boolean", lambda: pd.Series([2, None], dtype="Int64")),
    ("boolean", lambda: ["true", "false"]),
    ("int", lambda: [True, False]),
    ("int", lambda: pd.Series([True, None], dtype="boolean")),
    ("int", lambda: [1.0, np.nan]),
    ("int", lambda: pd.Series([1, None], dtype="Int64")),
    ("int", lambda: of_arrow([1, None], pa.int64())),
    ("int", lambda: objects(np.int64(1), np.int8(2))),
    ("int", lambda: pd.Categorical([1, 2])),
    ("int", lambda: ["1", "2"]),
    ("int", lambda: [D(1), D(2)]),
    ("bigint", lambda: [2**63 - 1, 2**53 + 1]),
    ("float", lambda: [1.1, np.nan]),
    ("double", lambda: [True, False]),
    ("double", lambda: [D("1.5"), D(2)]),
    ("double", lambda: ["1.5", "2"]),
    ("double", lambda: [np.inf, np.nan]),
    ("decimal(10,2)", lambda: [1.5, 2.25]),
    ("decimal(10,2)", lambda: [D("1.5"), D(2)]),
    ("double", lambda: objects(D("1234567890123456789.5"), None)),  # the nearest double
    ("double", lambda: of_arrow([D("1234567890123456789.5"), None], pa.decimal128(38, 9))),
    ("string", lambda: pd.Categorical(["a", None])),
    ("string", lambda: pd.Series(["a", None], dtype="string")),
    ("string", lambda: objects("a", np.nan)),
    ("string", lambda: [b"a", b"b"]),
    ("binary", lambda: [b"a", bytearray(b"b")]),
    ("binary", lambda: ["a", "b"]),
    ("array<int>", lambda: [np.array([1, 2]), [3]]),
    ("array<int>", lambda: objects((1, 2), {3})),
    ("array<int>", lambda: objects([1.0, np.nan], None)),
    ("array<int>", lambda: objects(np.array([True]), None)),
    ("array<boolean>", lambda: objects([1, 0], None)),
    ("array<timestamp>", lambda: objects([NOON, None], [AWARE])),
    ("array<date>", lambda: objects([dt.date(2024, 1, 1)], None)),
    ("array<array<double>>", lambda: objects([[1.0], None], [])),
    ("map<string,bigint>", lambda: [{"a": 1}, {}]),
    ("map<string,double>", lambda: objects({"a": np.nan}, None)),
    ("map<string,timestamp>", lambda: objects({"a": NOON}, None)),
    ("map<string,array<int>>", lambda: objects({"a": np.array([1])}, None)),
    ("map<string,struct<a:int>>", lambda: objects({"a": {"a": 1}, "b": (2,)}, None)),
    ("struct<a:int,b:string>", lambda: [{"a": 1, "b": "x"}, {"b": "y", "a": 2}]),
    ("struct<a:int,b:string>", lambda: [(1, "x"), (2, "y")]),
    ("struct<a:int,b:string>", lambda: objects({"a": 1}, {})),
    ("struct<a:int,b:string>", lambda: objects((1,), [2, "y"])),
    ("struct<a:timestamp>", lambda: objects({"a": NOON}, None)),
    ("struct<a:map<string,int>>", lambda: objects({"a": {"k": 1}}, None)),
]

#: What Spark loses something of, or refuses; each time the second row.
REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("int", lambda: objects(1, 1.5), "1.5 is no whole number"),
    ("int", lambda: [1.0, 1.5], "1.5 is no whole number"),
    ("int", lambda: objects(None, "x"), "str is no integer"),
    ("tinyint", lambda: [1, 300], "300"),
    ("float", lambda: [1.0, 1e300], "too large for a float"),
    ("decimal(20,2)", lambda: [D(1), D("1.005")], "data loss"),
    ("string", lambda: objects("a", 1), "int is no string"),
    ("string", lambda: objects("a", NOON), "datetime is no string"),
    ("timestamp", lambda: objects(NOON, "2024"), "str is no datetime"),
    ("timestamp", lambda: pd.to_datetime([0, 1], utc=True), "nanoseconds"),
    ("timestamp_ntz", lambda: pd.to_datetime([0, 1]), "nanoseconds"),
    ("interval day to second", lambda: pd.to_timedelta([0, 1]), "nanoseconds"),
    ("date", lambda: objects(None, "2024-01-01"), "str is no date"),
    ("array<int>", lambda: [[1], [1.5]], "1.5 is no whole number"),
    ("array<string>", lambda: [["ab"], "ab"], "str is no list"),
    ("map<string,int>", lambda: [{}, {"a": 1.5}], "1.5 is no whole number"),
    ("map<string,int>", lambda: [{}, [("a", 1), ("a", 2)]], "a map has a key twice"),
    ("struct<a:int,b:string>", lambda: [(1, "x"), (1, "x", 2)], "3 values for the 2 fields"),
    ("struct<a:int,b:string>", lambda: [{}, {"c": 2}], "fields .*c.* instead of .*a.*, .*b"),
]


@pytest.mark.skipif(
    spark_version() < (4, 3), reason="an older mapInPandas refuses some of what is in the table"
)
def test_what_map_in_pandas_takes_map_batches_takes(
    spark: SparkSession, conf: Callable[..., Any]
) -> None:
    """One job of each, with a column of each pair."""
    pairs = TAKEN

    def frame_of() -> pd.DataFrame:
        return pd.DataFrame({f"c{place}": make() for place, (_, make) in enumerate(pairs)})

    def frames(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            yield frame_of()

    def by_places(batch: Any) -> Any:
        frame = frame_of()
        return frame.set_axis(range(len(frame.columns)), axis=1)

    schema = ", ".join(f"c{place} {kind}" for place, (kind, _) in enumerate(pairs))
    one = spark.range(0, 1, 1, 1)
    with conf(
        spark__sql__session__timeZone="Europe/Berlin",
        spark__sql__execution__pandas__convertToArrowArraySafely="true",
    ):
        expected = one.mapInPandas(frames, schema).collect()
        found = one.transform(rs.map_batches(lambda batch: frame_of(), schema)).collect()
        again = one.transform(rs.map_batches(by_places, schema)).collect()
    assert again == found or repr(again) == repr(found)
    for place, (kind, make) in enumerate(pairs):
        ours, theirs = ([row[place] for row in rows] for rows in (found, expected))
        assert repr(ours) == repr(theirs), (kind, make())


@pytest.mark.parametrize(("kind", "make", "words"), REFUSED)
def test_what_would_be_lost_is_an_error_that_names_column_and_row(
    spark: SparkSession, kind: str, make: Callable[[], Any], words: str
) -> None:
    def one(batch: Any) -> Any:
        return pd.DataFrame({"v": make()})

    with pytest.raises(TypeError, match=f"column 'v' .* for row 1 of what .*one gave: .*{words}"):
        list(rs.map_batches(one, f"v {kind}").as_map_fn()([pa.RecordBatch.from_pydict({"k": [1]})]))


def test_names_of_a_frame_that_do_not_match_are_an_error(spark: SparkSession) -> None:
    def outputs(frame: pd.DataFrame) -> list[Any]:
        stage = rs.map_batches(lambda batch: frame, "a int, b int").as_map_fn()
        return [
            row
            for batch in stage([pa.RecordBatch.from_pydict({"k": [1]})])
            for row in batch.to_pylist()
        ]

    assert outputs(pd.DataFrame()) == []
    assert outputs(pd.DataFrame({"b": [1], "a": [2]})) == [{"a": 2, "b": 1}]
    assert outputs(pd.DataFrame([[1, 2]])) == [{"a": 1, "b": 2}]
    for frame, words in (
        (pd.DataFrame({"a": [1]}), "missing: b"),
        (pd.DataFrame({"a": [1], "b": [1], "B": [1]}), "unknown: B"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "missing: b"),
        (pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"]), "a name comes twice"),
        (pd.DataFrame([[1, 2, 3]]), "missing: a, b; unknown: 0, 1, 2"),
    ):
        with pytest.raises(ValueError, match=words):
            outputs(frame)


def test_a_structured_array_goes_by_the_same_rules(spark: SparkSession) -> None:
    kinds = [("t", "M8[us]"), ("d", "M8[D]"), ("i", "m8[ms]"), ("b", "i8"), ("l", "f8", (2,))]
    rows = np.array([("2024-06-01T12:00", "2024-06-01", 5, 1, (1, 2))], kinds)
    schema = "t timestamp, d date, i interval day to second, b boolean, l array<int>"
    stage = rs.map_batches(lambda batch: rows, schema).as_map_fn()
    (found,) = stage([pa.RecordBatch.from_pydict({"k": [1]})])
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert found["t"].cast(pa.timestamp("us", zone))[0].as_py().replace(tzinfo=None) == NOON
    assert [found[name][0].as_py() for name in "dibl"] == [
        NOON.date(),
        dt.timedelta(milliseconds=5),
        True,
        [1, 2],
    ]


# -- Arrow's types ---------------------------------------------------------------------------------
TEXT, RAW, NUMBERS = ["a", None, "", "b"], [b"a", None, b"", b"b"], [1, 1, 2, None]
LISTS: list[Any] = [[1, 2], None, [], [None]]
OF_INTS = pa.list_(pa.int32())


def coded(*words: Any) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0], pa.int32()), pa.array(*words))


#: Arrays, the types that say the same, and the values.
SAME = [
    (pa.array(RAW, pa.large_binary()), pa.binary(), RAW),
    (pa.array([b"aa"] * 4, pa.binary(2)), pa.binary(), [b"aa"] * 4),
    (pa.array(LISTS, pa.large_list(pa.int64())), OF_INTS, LISTS),
    (pc.run_end_encode(pa.array(NUMBERS)), pa.int32(), NUMBERS),
    (coded(["a", ""]), pa.string(), ["a", None, "", "a"]),
    (coded([[1], [2]]), OF_INTS, [[1], None, [2], [1]]),
    (pa.array(NUMBERS, pa.decimal256(30, 0)), pa.int32(), NUMBERS),
]
if hasattr(pa, "bool8"):  # pyarrow 18 and later have all of these
    VIEWS, IN_LISTS = pa.list_view(pa.int64()), [[x] for x in LISTS]
    MAPPED = [[("a", [1])], None, [], [("b", None)]]
    SAME += [
        (pa.array(RAW, pa.binary_view()), pa.binary(), RAW),
        (pa.array(TEXT, pa.string_view()), pa.string(), TEXT),
        (pa.array(LISTS, VIEWS), OF_INTS, LISTS),
        (pa.array(LISTS, pa.large_list_view(pa.int64())), OF_INTS, LISTS),
        (pa.array(IN_LISTS, pa.list_(VIEWS, 1)), pa.list_(OF_INTS), IN_LISTS),
        (pa.array(MAPPED, pa.map_(pa.string_view(), VIEWS)), pa.map_(pa.string(), OF_INTS), MAPPED),
        (coded(["x", None], pa.string_view()), pa.string(), ["x", None, None, "x"]),
        (pa.array([1, None] * 2, pa.bool8()), pa.bool_(), [True, None] * 2),
        (pa.array([b"1" * 16, None] * 2, pa.uuid()), pa.binary(), [b"1" * 16, None] * 2),
    ]


@pytest.mark.parametrize(("array", "kind", "values"), SAME, ids=str)
@pytest.mark.parametrize("inside", [False, True])
def test_every_arrow_type_that_says_the_same_is_taken(
    array: pa.Array, kind: pa.DataType, values: list[Any], inside: bool
) -> None:
    """Whole, sliced and empty; by itself, and in a struct."""
    if inside:
        hidden = [False, False, True, False]
        array = pa.StructArray.from_arrays([array], names=["x"], mask=pa.array(hidden))
        kind = pa.struct([("x", kind)])
        values = [None if hide else {"x": x} for x, hide in zip(values, hidden, strict=True)]
    batch, declared = pa.RecordBatch.from_arrays([array], ["c"]), pa.schema([("c", kind)])
    stage = rs.map_batches(lambda _: [batch, batch.slice(1, 2), batch.slice(4)], declared)
    whole, part = stage.as_map_fn()([batch])
    for output, rows in ((whole, slice(0, 4)), (part, slice(1, 3))):
        output.validate(full=True)
        assert output.schema == declared
        assert output["c"].to_pylist() == values[rows]
    # It may be declared, and a stream may give it.
    rs.map_batches(lambda _: batch, pa.schema([("c", array.type)])).as_map_fn()
    (shown,) = rs.stage(lambda s: s, declared).as_map_fn()([batch])
    assert shown["c"].type == kind


# -- names that come twice -------------------------------------------------------------------------
def test_fields_of_one_name_are_told_apart_by_their_places() -> None:
    from pyspark.sql import Row

    twice = pa.struct([pa.field("a", pa.int32()), pa.field("a", pa.float32())])
    rows = [(1, 2), Row("a", "a")(3, np.float64(4)), None, (np.int8(5), None)]
    schema = pa.schema([("s", twice), ("l", pa.list_(twice))])

    def outputs(result: Any) -> Any:
        stage = rs.map_batches(lambda batch: result, schema).as_map_fn()
        (found,) = stage([pa.RecordBatch.from_pydict({"k": [1]})])
        firsts, seconds = found["s"].flatten()
        assert found["l"].flatten().flatten()[1].to_pylist()[:1] == [2]
        return found["s"].is_valid().to_pylist(), firsts.to_pylist(), seconds.to_pylist()

    expected = ([True, True, False, True], [1, 3, None, 5], [2, 4, None, None])
    assert outputs([{"s": row, "l": [(1, 2)]} for row in rows]) == expected
    assert outputs(
        pd.DataFrame({"s": objects(*map(list, [r or () for r in rows])), "l": [[(1, 2)]] * 4})
    )[1][:2] == [1, 3]
    wide = pa.struct([pa.field("a", pa.int64()), pa.field("a", pa.float64())])
    arrow = [
        pa.array(list(map(tuple, filter(None, rows))), wide),
        pa.array([[(1, 2)]] * 3, pa.list_(wide)),
    ]
    assert outputs(pa.RecordBatch.from_arrays(arrow, ["s", "l"]))[1] == [1, 3, 5]
    for bad, words in (
        ({"a": 1}, "a dict does not tell the fields .* apart"),
        (Row("a", "b")(1, 2), "fields .*'b'.* instead of .*'a', 'a'"),
        ((1, 2, 3), "3 values for the 2 fields"),
    ):
        with pytest.raises(TypeError, match=words):
            outputs([{"s": bad, "l": []}])


def test_names_that_differ_by_case_alone_are_two() -> None:
    kind = pa.struct([("a", pa.int32()), ("A", pa.int32())])
    rows = [{"s": (1, 2)}, {"s": {"A": 2, "a": 1}}]
    stage = rs.map_batches(lambda batch: rows, pa.schema([("s", kind)])).as_map_fn()
    (found,) = stage([pa.RecordBatch.from_pydict({"k": [1]})])
    assert found["s"].to_pylist() == [{"a": 1, "A": 2}] * 2


# -- times and intervals that are coarser than Arrow's ---------------------------------------------
def test_times_and_intervals_are_as_fine_as_declared(
    spark: SparkSession, conf: Callable[..., Any]
) -> None:
    length = dt.timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=5)
    clock = dt.time(1, 2, 3, 456789)
    kinds = {
        "interval day": length,
        "interval day to hour": length,
        "interval hour to minute": length,
        "interval day to second": length,
        "array<interval day>": [length, None],
        "map<string,interval hour>": {"a": length},
        "struct<i:interval minute>": {"i": length},
    }
    clocks = spark_version() >= (4, 1)
    if clocks:
        kinds |= {f"time({digits})": clock for digits in (0, 3, 5, 6)}
        kinds |= {"struct<`a.b`:array<time(0)>>": {"a.b": [clock]}}
    one = spark.range(0, 1, 1, 1)
    output = ", ".join(f"`c.{place}` {kind}" for place, kind in enumerate(kinds))
    row = tuple(kinds.values())

    def expected_of(value: Any, kind: str) -> str:
        return f"cast(cast({value} as {kind}) as string)"

    with conf(spark__sql__timeType__enabled="true"):
        enriched = one.transform(rs.enrich(lambda k: row, on="id", output=output)).drop("id")
        rows = [dict(zip(enriched.columns, row, strict=True))]
        mapped = one.transform(rs.map_batches(lambda batch: rows, output))
        assert enriched.schema == mapped.schema
        assert [f.dataType.simpleString() for f in mapped.schema] == [
            t.replace("`", "") for t in kinds
        ]
        interval = "interval '1 02:03:04.000005' day to second"
        parts = {
            "array<interval day>": f"array({interval}, null)",
            "map<string,interval hour>": f"map('a', {interval})",
            "struct<i:interval minute>": f"named_struct('i', {interval})",
            "struct<`a.b`:array<time(0)>>": "named_struct('a.b', array(time'01:02:03.456789'))",
        }
        texts = [
            expected_of(
                parts.get(kind, "time'01:02:03.456789'" if "time(" in kind else interval), kind
            )
            for kind in kinds
        ]
        expected = [tuple(r) for r in one.selectExpr(*texts).collect()]
        for frame in (enriched, mapped):
            plain = frame.toDF(*[f"c{place}" for place in range(len(kinds))])
            shown = plain.selectExpr(*[f"cast({name} as string)" for name in plain.columns])
            assert [tuple(r) for r in shown.collect()] == expected
        chosen = [kind for kind in ("array<interval day>", "time(0)") if kind in kinds]
        looked = one.select(
            *[rs.lookup(lambda k, v=kinds[kind]: v, kind)("id").cast("string") for kind in chosen]
        )
        places = [list(kinds).index(kind) for kind in chosen]
        assert tuple(looked.collect()[0]) == tuple(expected[0][place] for place in places)


# -- variables that the threads of a worker share --------------------------------------------------
class SlowToLoad:
    """A model, which counts how often a process has loaded it."""

    loads = 0

    def __init__(self) -> None:
        self.weights = [1.0]

    def __setstate__(self, state: dict[str, Any]) -> None:
        SlowToLoad.loads += 1
        time.sleep(0.2)  # the other threads come meanwhile
        self.__dict__.update(state)


class Yielding(AccumulatorParam[int]):
    """Numbers; another thread may run between taking the old sum and setting the new one."""

    def zero(self, value: int) -> int:
        return 0

    def addInPlace(self, value1: int, value2: int) -> int:
        time.sleep(0)
        return value1 + value2


def test_threads_load_a_broadcast_once_and_lose_no_count(spark: SparkSession) -> None:
    context = spark.sparkContext
    counted, model = context.accumulator(0, Yielding()), context.broadcast(SlowToLoad())

    def score(meeting: threading.Barrier, batch: Any) -> Any:
        meeting.wait(DEADLINE)
        for _ in range(200):
            counted.add(1)
        meeting.wait(DEADLINE)
        assert model.value.weights == [1.0]
        return [{"loads": SlowToLoad.loads}]

    stage = rs.map_batches(
        score, "loads int", using=lambda: nullcontext(threading.Barrier(4)), concurrency=4
    )
    rows = spark.range(0, 4000, 1, 1).transform(stage).collect()
    assert [row.loads for row in rows] == [1] * 4
    assert counted.value == 800
