"""Session time zones by all the names that Spark takes."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

NOON = dt.datetime(2024, 6, 1, 12, tzinfo=dt.UTC)

HOURS_OF: dict[str, float] = {
    "+8": 8,
    "-8": -8,
    "+08": 8,
    "-8:00": -8,
    "+08:00": 8,
    "-0830": -8.5,
    "+18:00": 18,
    "+1:2": 1 + 2 / 60,
    "+08:00:30": 8 + 30 / 3600,
    "-080030": -8 - 30 / 3600,
    "GMT+8": 8,
    "GMT+0": 0,
    "UTC-08:30": -8.5,
    "UTC+1:30:15": 1.5 + 15 / 3600,
    "UT+01": 1,
    "UT": 0,
    "Z": 0,
    "GMT": 0,
    "PST": -7,
    "EST": -5,
    "ACT": 9.5,
    "IST": 5.5,
    "Etc/GMT+8": -8,
    "Asia/Saigon": 7,
}
"""What Spark's clocks show at ``NOON``, as tried on 3.5 and 4.3."""


async def told(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond:06} {moment.timestamp():.6f}"


@pytest.mark.parametrize(("zone", "hours"), HOURS_OF.items())
def test_a_key_is_in_the_zone_that_spark_calls_so(zone: str, hours: float) -> None:
    """By itself, and in a list of a struct, beside a time without a zone."""
    local = NOON.replace(tzinfo=None) + dt.timedelta(seconds=round(hours * 3600))

    async def row(moment: Any, nested: Any) -> Any:
        return await told(moment), await told(nested["a"][0]), nested["n"]

    def in_zone(utc: pa.Array) -> pa.Array:
        kind = pa.timestamp("us", zone)
        return utc.cast(pa.list_(kind) if pa.types.is_list(utc.type) else kind)

    utc = pa.timestamp("us", "UTC")
    moments = in_zone(pa.array([None, NOON], utc))
    lists = in_zone(pa.array([[], [NOON]], pa.list_(utc)))
    nested = pa.StructArray.from_arrays([lists, pa.array([local] * 2)], names=["a", "n"])
    batch = pa.RecordBatch.from_arrays([moments, nested], names=["t", "s"])
    output = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.timestamp("us"))])
    (found,) = rs.enrich(row, on=["t", "s"], output=output).as_map_fn()([batch.slice(1)])
    expected = f"{local}.000000 {NOON.timestamp():.6f}"
    assert list(found.select(["a", "b", "n"]).to_pylist()[0].values()) == [
        expected,
        expected,
        local,
    ]


def test_a_zone_that_only_java_has_is_named() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0]).cast(pa.timestamp("us", "SystemV/YST9"))], names=["t"]
    )
    stage = rs.enrich(told, on="t", output=pa.schema([("v", pa.string())])).as_map_fn()
    with pytest.raises(ValueError, match=r"'t' .*Python has no time zone .*SystemV/YST9"):
        list(stage([batch]))


@pytest.mark.spark
@pytest.mark.parametrize(
    "zone",
    [
        "America/New_York",
        *(pytest.param(it, marks=pytest.mark.slow) for it in ("PST", "+08:00:30")),
    ],
)
def test_the_clocks_of_spark_and_of_keys_agree(
    spark: SparkSession, conf: Callable[..., Any], zone: str
) -> None:
    """Also in the hour that a clock shows twice, and beside a null."""
    look, output = rs.lookup(told, "string"), "found string"

    def moment(k: int) -> dt.datetime:
        return NOON + dt.timedelta(days=k)

    with conf(spark__sql__session__timeZone=zone):
        frame = spark.sql(
            "select id, if(id = 3, null, timestamp_micros(1730608200123456 + id * 3600000000)) as t"
            " from range(0, 6, 1, 1)"
        )
        text = "date_format(t, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
        unix = "format_string('%.6f', unix_micros(t) / 1000000d)"
        back = rs.lookup(moment, "timestamp")("id")
        rows = (
            frame.transform(rs.enrich(told, on="t", output=output))
            .withColumn("looked", look("t"))
            .selectExpr("*", f"concat({text}, ' ', {unix}) as expected")
            .withColumn("back", back)
            .selectExpr("*", "unix_seconds(back) as seconds")
            .collect()
        )
    for row in rows:
        assert row.found == row.looked == row.expected
        assert row.seconds == NOON.timestamp() + 86400 * row.id


@pytest.mark.spark
@pytest.mark.parametrize("stage", ["enrich", "lookup", "map_batches", "as_map_fn"])
def test_a_text_without_an_offset_is_in_the_zone_of_the_session(
    spark: SparkSession, conf: Callable[..., Any], stage: str
) -> None:
    """As in Spark's ``cast``; a ``datetime`` is in the process's zone, as in Spark's own UDFs."""
    local = "2026-03-04T05:06:07"
    names = "text timestamp, nested array<timestamp>, bare timestamp, clock timestamp_ntz"

    def bare(_: int = 0) -> dt.datetime:
        return dt.datetime.fromisoformat(local)

    def answer(k: int) -> dict[str, Any]:
        return {"text": local, "nested": [f"{local}Z", local], "bare": bare(k), "clock": local}

    made = rs.enrich(answer, on="id", output=rs.lenient(names))
    column = rs.lookup(answer, rs.lenient(f"struct<{names}>"))
    batches = rs.map_batches(lambda _: [answer(0)], rs.lenient(names))
    with conf(spark__sql__session__timeZone="Asia/Kolkata"):
        frame = spark.range(1)
        stages: dict[str, Callable[[], Any]] = {
            "enrich": lambda: frame.transform(made),
            "lookup": lambda: frame.select(column("id").alias("v")).select("v.*"),
            "map_batches": lambda: frame.transform(batches),
            "as_map_fn": lambda: frame.mapInArrow(made.as_map_fn(), f"id long, {names}"),
        }
        found = stages[stage]().selectExpr(
            "string(text)", "string(nested)", "string(bare)", "string(clock)"
        )
        spark.udf.register("bare_of", bare, "timestamp")
        utc, session = f"timestamp('{local}Z')", f"timestamp('{local}')"
        expected = spark.sql(
            f"select string({session}), string(array({utc}, {session})), string(bare_of(0)),"
            f" string(cast('{local}' as timestamp_ntz))"
        )
        assert list(map(tuple, found.collect())) == list(map(tuple, expected.collect()))
