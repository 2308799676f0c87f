"""Types that Arrow carries as something else, or not at all: users' own, intervals, variants."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as t

import rstreams_fast.spark as rs
from rstreams_fast.spark.versions import spark_version
from tests.spark.stages import doubled, same, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Point:
    """A user's own class, which Spark stores as two numbers."""

    def __init__(self, x: float, y: float) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    def __hash__(self) -> int:
        return hash((self.x, self.y))


class PointType(t.UserDefinedType):
    @classmethod
    def sqlType(cls) -> t.StructType:
        return t.StructType([t.StructField(name, t.DoubleType(), False) for name in "xy"])

    @classmethod
    def module(cls) -> str:
        return __name__

    def serialize(self, point: Point) -> Any:
        return (point.x, point.y)

    def deserialize(self, datum: Any) -> Point:
        return Point(datum[0], datum[1])


Point.__UDT__ = PointType()  # type: ignore[attr-defined]


def the_same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def through_batches(frame: DataFrame) -> list[DataFrame]:
    """Return what ``map_batches`` and ``stage`` hand on as it is."""
    return [
        frame.transform(rs.map_batches(the_same, frame.schema)),
        frame.transform(rs.stage(lambda batches: batches.map(the_same), frame.schema)),
    ]


# -- outside of Spark ------------------------------------------------------------------------------
def test_what_numpy_pandas_and_spark_have_is_plain_in_tuples_and_rows_too() -> None:
    point = pa.struct([("x", pa.float64()), ("y", pa.float64())])
    dated = pa.struct([("a", pa.date32()), ("b", pa.string())])
    date = np.datetime64("2020-01-02")
    of_kinds: list[tuple[pa.DataType, Any, Any]] = [
        (pa.float32(), np.float32(1), 1.0),
        (pa.list_(point), [Point(1, 2)], [{"x": 1, "y": 2}]),
        (pa.timestamp("us", "UTC"), pd.NaT, None),
        (dated, t.Row(b=pd.NA, a=date), {"a": dt.date(2020, 1, 2), "b": None}),
        (point, Point(1, np.float64(2)), {"x": 1, "y": 2}),
    ]
    kind = pa.struct([(f"c{place}", it[0]) for place, it in enumerate(of_kinds)])
    (found,) = values(rs.lookup(lambda _: tuple(it[1] for it in of_kinds), kind), [1])
    assert list(found.values()) == [it[2] for it in of_kinds]


@pytest.mark.parametrize("kind", [t.VarcharType(3), t.CharType(3)])
def test_char_and_varchar_are_strings_wherever_they_are(kind: Any) -> None:
    fields = [t.StructField("a", t.ArrayType(kind)), t.StructField("m", t.MapType(kind, kind))]
    stage = rs.lookup(lambda k: {"a": ["x"], "m": {"long": "y"}}, t.StructType(fields))
    assert values(stage, [1]) == [{"a": ["x"], "m": [("long", "y")]}]


# -- users' types ----------------------------------------------------------------------------------
@pytest.mark.spark
def test_objects_of_a_users_type_are_results(spark: SparkSession) -> None:
    async def point_of(k: int) -> Any:
        return Point(k, 0.5) if k else None

    async def several(k: int) -> Any:
        return [Point(k, 0.5)], (k, Point(k, 1))

    def rows(batch: pa.RecordBatch) -> Any:
        return [{"p": Point(k, 0.5)} for k in batch["id"].to_pylist()]

    ids, kind = spark.range(0, 3, 1, 1), PointType()
    expected = [None, Point(1, 0.5), Point(2, 0.5)]
    if spark_version() < (4, 1):
        with pytest.raises(RuntimeError, match=r"point_of: a user's type .* PySpark 4\.1 or later"):
            rs.lookup(point_of, kind)("id")
    else:
        found = ids.select(rs.lookup(point_of, kind)("id").alias("p"))
        assert [row.p for row in found.collect()] == expected
    pair = t.StructType([t.StructField("k", t.LongType()), t.StructField("p", kind)])
    output = t.StructType([t.StructField("a", t.ArrayType(kind)), t.StructField("s", pair)])
    enriched = ids.transform(rs.enrich(several, on="id", output=output)).collect()
    assert [(row.a, row.s.p) for row in enriched] == [
        ([Point(k, 0.5)], Point(k, 1)) for k in range(3)
    ]
    mapped = ids.transform(rs.map_batches(rows, t.StructType([t.StructField("p", kind)])))
    assert [row.p for row in mapped.collect()] == [Point(k, 0.5) for k in range(3)]


@pytest.mark.slow
@pytest.mark.spark
def test_a_key_of_a_users_type_is_what_it_is_stored_as(spark: SparkSession) -> None:
    async def product(point: Any) -> float:
        return float(point["x"] * point["y"])

    schema = t.StructType([t.StructField("p", PointType())])
    frame = spark.createDataFrame([(Point(2.0, 3.0),), (None,)], schema).coalesce(1)
    if spark_version() >= (4, 1):  # before, its keys come through pandas
        look = rs.lookup(product, "double", dedupe=True)
        assert [row[0] for row in frame.select(look("p")).collect()] == [6.0, None]
    enriched = frame.transform(
        rs.enrich(rs.Policy(cache=rs.Cache())(product), on="p", output="v double")
    )
    assert [tuple(row) for row in enriched.collect()] == [(Point(2, 3), 6.0), (None, None)]
    for handed_on in through_batches(frame):
        assert [row.p for row in handed_on.collect()] == [Point(2, 3), None]


# -- intervals -------------------------------------------------------------------------------------
@pytest.mark.spark
def test_intervals_of_days_go_through_every_stage(spark: SparkSession) -> None:
    async def hours(interval: dt.timedelta) -> float:
        return interval.total_seconds() / 3600

    frame = spark.sql("select id, id * interval '1 02:00:00' day to second as i from range(3)")
    expected = [dt.timedelta(hours=26 * k) for k in range(3)]
    enriched = frame.transform(rs.enrich(hours, on="i", output="h double"))
    assert sorted(tuple(row) for row in enriched.collect()) == [
        (k, expected[k], 26.0 * k) for k in range(3)
    ]
    found = frame.select("id", rs.lookup(hours, "double")("i").alias("h")).collect()
    assert sorted(tuple(row) for row in found) == [(k, 26.0 * k) for k in range(3)]
    for handed_on in through_batches(frame):
        assert sorted(row.i for row in handed_on.collect()) == expected


@pytest.mark.spark
def test_enrich_carries_intervals_of_months_along(spark: SparkSession) -> None:
    frame = spark.sql(
        "select id, if(id = 1, null, id * interval '1-2' year to month) as `a.b`, "
        "interval '3' year as y, interval '5' month as y from range(3)"
    )
    enriched = frame.transform(rs.enrich(doubled, on="id", output="v long"))
    assert enriched.schema.fields[:4] == frame.schema.fields
    # Python has no value for them, so Spark says what they are.
    texts = [f"cast(c{place} as string)" for place in range(5)]
    before = frame.toDF(*[f"c{place}" for place in range(4)]).selectExpr(*texts[:4], "'x'")
    after = enriched.toDF(*[f"c{place}" for place in range(5)]).selectExpr(*texts)
    expected = [(*row[:4], str(2 * int(row[0]))) for row in before.collect()]
    assert sorted(map(tuple, after.collect())) == sorted(expected)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("column", "named"),
    [
        ("named_struct('m', interval '2' month)", "YearMonthInterval"),
        ("array(interval '2' month)", "YearMonthInterval"),
        pytest.param(
            "make_interval(1, 2, 3)",
            "CalendarInterval",
            marks=pytest.mark.skipif(
                spark_version() < (4, 0), reason="of such a frame 3.5 cannot tell the schema"
            ),
        ),
    ],
)
def test_what_arrow_does_not_carry_is_a_sentence_that_names_the_column(
    spark: SparkSession, column: str, named: str
) -> None:
    look, frame = same, spark.sql(f"select 1L as id, {column} as i")
    sentence = f"the frame's column 'i' has a type that Spark does not share with Arrow: .*{named}"
    with pytest.raises(TypeError, match=sentence):
        frame.transform(rs.enrich(look, on="id", output="v long"))
    with pytest.raises(TypeError, match=sentence):
        frame.transform(rs.map_batches(the_same, "id long", on_failure="column"))
    for make in (
        lambda: rs.map_batches(the_same, frame.schema),
        lambda: rs.stage(lambda batches: batches, frame.schema),
    ):
        with pytest.raises(TypeError, match=f"schema: the column 'i' has a type .*{named}"):
            frame.transform(make())


@pytest.mark.spark
def test_a_key_of_months_is_a_sentence(spark: SparkSession) -> None:
    from pyspark.errors import PythonException

    look = same
    frame = spark.sql("select interval '2' month as i, named_struct('m', interval '2' month) as s")
    with pytest.raises(TypeError, match="on: 'i' is an interval of months, which Python has no"):
        frame.select("i").transform(rs.enrich(look, on="i", output="v string"))
    if spark_version() >= (4, 1):
        with pytest.raises(PythonException, match="has a part that Python has no value for"):
            frame.select(rs.lookup(look, "string")("s")).collect()


# -- strings with lengths, variants ----------------------------------------------------------------
@pytest.mark.spark
def test_strings_with_lengths_are_declared_in_ddl(spark: SparkSession) -> None:
    async def name(k: int) -> str:
        return f"name {k}"

    ids = spark.range(0, 2, 1, 1)
    assert ids.select(rs.lookup(name, "varchar(9)")("id")).collect()[1][0] == "name 1"
    enriched = ids.transform(rs.enrich(name, on="id", output="c char(9)"))
    assert enriched.schema["c"].dataType == t.StringType()
    assert [row.c for row in enriched.collect()] == ["name 0", "name 1"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(spark_version() < (4, 0), reason="Spark has variants from 4.0 on")
def test_variants_are_keys_results_and_carried_along(spark: SparkSession) -> None:
    async def keys_of(value: Any) -> str:
        return str(sorted(value))

    def parsed(k: int) -> Any:
        return t.VariantVal.parseJson(f'{{"k": {k}}}')

    frame = spark.sql("select id, parse_json('{\"a\": ' || id || '}') as v from range(3)")
    enriched = frame.transform(rs.enrich(keys_of, on="v", output="keys string"))
    assert {row["keys"] for row in enriched.collect()} == {"['metadata', 'value']"}
    assert sorted(row.v.toPython()["a"] for row in enriched.collect()) == [0, 1, 2]
    for handed_on in through_batches(frame):
        assert sorted(row.v.toPython()["a"] for row in handed_on.collect()) == [0, 1, 2]
    if spark_version() >= (4, 1):
        found = spark.range(0, 3, 1, 1).select(rs.lookup(parsed, "variant")("id").alias("v"))
        assert [row.v.toPython() for row in found.collect()] == [{"k": k} for k in range(3)]
