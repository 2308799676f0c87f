"""What comes out of lookup and enrich on real Spark: values, order, nulls, types, names."""

# ruff: noqa: DTZ001 - times without a zone are what is tested
from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.versions import spark_version
from tests.spark.stages import V, doubled, made, parts, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

UTC = dt.UTC


def keyed(spark: SparkSession, rows: int, partitions: int = 2) -> DataFrame:
    """Ids 0, 1, ...; ``k`` is the id, every tenth a null."""
    from pyspark.sql import functions as f

    frame = spark.range(0, rows, 1, partitions)
    return frame.withColumn("k", f.expr("if(id % 10 = 3, null, id)"))


def test_columns_of_values_in_order(spark: SparkSession) -> None:
    """Of several keys and of expressions, within each other, and side by side."""
    from pyspark.sql import functions as f

    async def look(k: int) -> str:
        import asyncio

        if k % 3:
            await asyncio.sleep(0.001 * (k % 4))
        return f"v{k}"

    def several(a: int, b: str, c: float) -> str:
        return f"{a}/{b}/{c}"

    async def plus(k: int) -> int:
        return k + 1

    value, add = rs.lookup(look, "string"), rs.lookup(plus, "long")
    of_three = rs.lookup(several, "string", concurrency=4)
    rows = (
        keyed(spark, 3000)
        .select("*", value("k").alias("v"), add(add("id")).alias("two"))
        .select("*", value("two").alias("t"))
        .where("id < 2990")
        .select("*", of_three("id", f.upper(f.col("v")), f.col("id") * 0.5).alias("u"))
        .collect()
    )
    for i, row in enumerate(rows):
        v = None if i % 10 == 3 else f"v{i}"
        u = v and f"{i}/{v.upper()}/{i * 0.5}"
        assert (row.id, row.v, row.two, row.t, row.u) == (i, v, i + 2, f"v{i + 2}", u)
    assert len(rows) == 2990


def test_no_call_is_repeated_or_dropped_by_the_optimizer(
    spark: SparkSession, tmp_path: Any
) -> None:
    path = str(tmp_path / "calls")

    async def look(k: int) -> int:
        with open(path, "a") as file:  # noqa: PTH123, ASYNC230
            file.write(f"{k}\n")
        return k * 2

    value = rs.lookup(look, "long")
    rows = (
        spark.range(0, 200, 1, 2)
        .withColumn("v", value("id"))
        .where("v % 4 = 0 and v > 10")
        .selectExpr("v", "v + 1 as w", "v * v as x")
        .where("w > 11")
        .collect()
    )
    assert [r.v for r in rows] == [v for v in range(0, 400, 4) if v > 10]
    with open(path) as file:  # noqa: PTH123
        calls = Counter(int(line) for line in file)
    assert calls == Counter(range(200))


def test_enrich_keeps_all_columns_and_the_order(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    async def look(k: int, s: str) -> dict[str, Any]:
        import asyncio

        await asyncio.sleep(0.001 * (k % 3))
        return {"length": len(s), "half": k / 2}

    frame = keyed(spark, 4000).withColumn("s", f.concat(f.lit("s"), "id"))
    found = frame.transform(rs.enrich(look, on=["K", "s"], output="half double, length int"))
    assert found.columns == ["id", "k", "s", "half", "length"]
    assert [field.dataType.simpleString() for field in found.schema][3:] == ["double", "int"]
    rows = found.collect()
    assert [r.id for r in rows] == list(range(4000))
    for r in rows:
        expected = (None, None) if r.k is None else (r.k / 2, len(r.s))
        assert (r.half, r.length) == expected


def test_columns_may_have_any_name_even_the_same(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    names = ["id", "a.b", "a`b", "same", "same", "Same", "*"]
    frame = spark.range(0, 30, 1, 2).selectExpr(*["id"] * len(names)).toDF(*names)

    def first(batch: Any) -> Any:
        assert batch.schema.names == [*names, "x.y"]
        return type(batch).from_arrays(batch.columns[1:2], ["*"])

    enriched = frame.transform(rs.enrich(doubled, on="a.b", output="`x.y` long NOT NULL"))
    assert enriched.columns == [*names, "x.y"]
    assert enriched.schema["x.y"].nullable
    assert [tuple(r) for r in enriched.collect()] == [(k,) * 7 + (2 * k,) for k in range(30)]
    schema = StructType([StructField("*", LongType())])
    for stage in (
        rs.map_batches(first, schema),
        rs.stage(lambda stream: stream.map(first), schema),
    ):
        assert [r[0] for r in enriched.transform(stage).collect()] == list(range(30))


def test_empty_frames_and_empty_partitions(spark: SparkSession) -> None:
    value, enrich = rs.lookup(same, "long"), rs.enrich(same, on="id", output="w long")
    for rows in (0, 3):
        sparse = spark.range(0, rows, 1, 6).withColumn("v", value("id")).transform(enrich)
        assert [(r.v, r.w) for r in sparse.collect()] == [(k, k) for k in range(rows)]


TYPES: list[tuple[str, Any]] = [
    ("boolean", True),
    ("tinyint", 7),
    ("smallint", 300),
    ("int", -(2**31)),
    ("bigint", 2**63 - 1),
    ("float", 0.5),
    ("double", 1e300),
    ("decimal(38,10)", Decimal("1234567890123456789012345678.0123456789")),
    ("decimal(5,2)", Decimal("1.50")),
    ("string", "grüße \U0001f600"),
    ("binary", b"\x00\xff"),
    ("date", dt.date(1900, 2, 28)),
    ("timestamp", dt.datetime(2013, 11, 3, 5, 30, 0, 123456, tzinfo=UTC)),
    ("timestamp", dt.datetime(2013, 11, 3, 6, 30, tzinfo=UTC)),  # the hour that comes twice
    ("timestamp_ntz", dt.datetime(2013, 3, 10, 2, 30)),  # which New York never saw
    ("interval day to second", dt.timedelta(days=3, microseconds=5)),
    ("array<string>", ["a", None, "c"]),
    ("array<array<int>>", [[1], [], [2, None]]),
    ("map<string,bigint>", {"a": 1, "b": None}),
    ("struct<a:int,b:array<double>>", {"a": 1, "b": [0.5]}),
    ("array<struct<t:timestamp>>", [{"t": dt.datetime(2020, 1, 1, tzinfo=UTC)}]),
]


def plain(value: Any) -> Any:
    """A collected value without Spark's Row and without local time."""
    if isinstance(value, dt.datetime):
        return value
    if hasattr(value, "asDict"):
        return {k: plain(v) for k, v in value.asDict().items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return bytes(value) if isinstance(value, bytearray) else value


def test_types_come_out_as_declared(spark: SparkSession) -> None:
    """Each type as a column function's, as one of enrich's outputs, and back in as a key."""
    import asyncio

    values = [value for _, value in TYPES]

    async def whole(i: int) -> Any:
        return tuple(values)

    async def every(i: int) -> Any:
        await asyncio.sleep(0)
        return None if i == 0 else tuple(values)

    async def same(*keys: Any) -> bool:
        def as_utc(value: Any) -> Any:
            if isinstance(value, dt.datetime) and value.tzinfo is not None:
                return value.astimezone(UTC)
            if isinstance(value, list):
                return [as_utc(v) for v in value]
            if isinstance(value, dict):
                return {k: as_utc(v) for k, v in value.items()}
            return value

        found = [as_utc(key) for key in keys]
        return all(found[i] == value for i, value in enumerate(values) if i not in lossy)

    # Where Spark has no Arrow UDFs, keys come through pandas, which drops zones inside of arrays.
    lossy = () if spark_version() >= (4, 1) else (20,)
    ids = spark.range(0, 2, 1, 1)
    output = ", ".join(f"c{i} {kind}" for i, (kind, _) in enumerate(TYPES))
    frame = ids.transform(rs.enrich(every, on="id", output=output))
    checked = frame.withColumn("same", rs.lookup(same, "boolean")(*frame.columns[1:]))
    first, second = checked.collect()
    assert all(first[i + 1] is None for i in range(len(TYPES)))
    assert first.same is None  # a null key
    assert second.same is True
    struct = "struct<" + ",".join(f"c{i}:{kind}" for i, (kind, _) in enumerate(TYPES)) + ">"
    row = spark.range(1).select(rs.lookup(whole, struct)("id").alias("s")).collect()[0].s
    local = second[1:-1]
    for i, (kind, value) in enumerate(TYPES):
        assert row[i] == local[i], kind
        if kind == "timestamp":  # collected as local time without a zone
            assert row[i].astimezone(UTC) == value, kind
        elif "timestamp>" not in kind:
            assert plain(row[i]) == value, kind
    assert [f.dataType.simpleString() for f in frame.schema][1:] == [kind for kind, _ in TYPES]


def test_tuples_rows_and_local_times_become_structs_and_timestamps(spark: SparkSession) -> None:
    from pyspark.sql import Row
    from pyspark.sql import functions as f

    def look(i: int) -> Any:
        return [(1, "a"), Row(b="b", a=2), {"a": 3, "b": "c"}][i]

    found = spark.range(3).select(rs.lookup(look, "struct<a:int,b:string>")("id").alias("s"))

    def naive(i: int) -> dt.datetime:
        return dt.datetime(2020, 1, 1, 12)  # local time, as in Spark's own functions

    both = found.select("s", rs.lookup(naive, "timestamp")(f.lit(1)).alias("t")).collect()
    assert [tuple(r.s) for r in both] == [(1, "a"), (2, "b"), (3, "c")]
    assert {r.t for r in both} == {dt.datetime(2020, 1, 1, 12)}


@pytest.mark.parametrize("large", [pytest.param(False, marks=pytest.mark.slow), True])
def test_keys_of_large_types(spark: SparkSession, conf: Any, large: bool) -> None:
    async def look(s: str, b: bytes) -> str:
        return s + b.decode()

    with conf(spark__sql__execution__arrow__useLargeVarTypes=large):
        frame = spark.sql("select 'x' as s, cast('y' as binary) as b")
        assert frame.select(rs.lookup(look, "string")("s", "b")).collect()[0][0] == "xy"
        enrich = rs.enrich(look, on=["s", "b"], output="v string")
        row = frame.transform(enrich).collect()[0]
        assert (row.s, bytes(row.b), row.v) == ("x", b"y", "xy")


def test_a_key_or_column_that_python_has_no_value_for_is_named(spark: SparkSession) -> None:
    from pyspark.errors import PythonException

    def ids(batch: Any) -> Any:
        return batch.select(["id"])

    frame = spark.sql("select 1L as id, interval 2 month as i")
    for found, words in (
        (frame.select(rs.lookup(same, "string")("i")), "same: a key column is an interval of mon"),
        *(
            (frame.transform(stage), "a column of the frame is an interval of month")
            for stage in (
                rs.map_batches(ids, "id long"),
                rs.stage(lambda batches: batches.map(ids), "id long"),
            )
        ),
    ):
        with pytest.raises(PythonException, match=words):
            found.collect()


@pytest.mark.parametrize(
    ("declared", "value", "words"),
    [
        ("double", "1.5", "declared double"),
        ("int", 2**31, "declared int32"),
        ("int", 1.5, "declared int32"),
        ("string", 5, "declared string"),
        ("decimal(5,2)", Decimal("1.005"), "declared decimal128(5, 2)"),
        ("array<int>", ["x"], "declared list<element: int32>"),
        ("struct<a:int>", {"b": 1}, "instead of ['a']"),
        ("date", "2020-01-01", "declared date32"),
        ("date", dt.datetime(2020, 1, 1, 12), "datetime is no date"),
        ("timestamp", 5, "int is no datetime"),
        ("timestamp_ntz", dt.datetime(2020, 1, 1, tzinfo=UTC), "it has a time zone"),
        ("map<string,int>", {"a": 0.5}, "0.5 is no whole number"),
    ],
)
def test_a_wrong_value_names_column_value_and_key(
    spark: SparkSession, declared: str, value: Any, words: str
) -> None:
    async def look(k: int) -> Any:
        return value if k == 77 else None

    with pytest.raises(TypeError) as caught:
        list(rs.lookup(look, declared).as_map_fn()(parts(100, 100)))
    for part in (words, "column 'value'", "the key 77"):
        assert part in str(caught.value)


def test_what_is_declared_is_checked_before_anything_runs(spark: SparkSession) -> None:
    frame, look = keyed(spark, 3), same
    for words, error, message in [
        ({"on": "x", "output": "v long"}, ValueError, "no column 'x'; it has id, k"),
        ({"on": "k", "output": "K long"}, ValueError, "has a column 'K' already"),
        ({"on": "k", "output": "a long, A long"}, ValueError, "names the column 'a' twice"),
        ({"on": "k", "output": "long"}, TypeError, "must name its columns"),
        ({"on": "k", "output": "v lang"}, ValueError, "no valid DDL"),
        ({"on": "k", "output": "active lang"}, ValueError, "'active lang' is no valid DDL"),
    ]:
        with pytest.raises(error, match=message):
            frame.transform(made(rs.enrich, look, **words))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="returns='lang' is no valid DDL"):
        rs.lookup(look, "lang")("k")
    with pytest.raises(TypeError, match="returns must be a DDL string"):
        rs.lookup(look, 5)("k")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at least one key column"):
        rs.lookup(look, "long")()


def test_names_are_compared_as_the_session_compares_them(spark: SparkSession, conf: Any) -> None:
    with conf(spark__sql__caseSensitive="true"):
        frame = spark.createDataFrame([(1, 2)], "id long, ID long")
        enriched = frame.transform(rs.enrich(doubled, on="ID", output="Id long"))
        assert [tuple(row) for row in enriched.collect()] == [(1, 2, 4)]
        with pytest.raises(ValueError, match="no column 'iD'"):
            frame.transform(rs.enrich(doubled, on="iD", output="v long"))


def test_spark_and_arrow_types_will_do(spark: SparkSession) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    one = spark.range(1)
    kinds = ("long", LongType(), pa.int64())
    assert one.select(*(rs.lookup(same, kind)("id") for kind in kinds)).first() == (0, 0, 0)
    for output in ("v long", StructType([StructField("v", LongType())]), V):
        frame = one.transform(rs.enrich(same, on="id", output=output))
        assert frame.schema.simpleString() == "struct<id:bigint,v:bigint>"
    assert frame.collect()[0].v == 0
