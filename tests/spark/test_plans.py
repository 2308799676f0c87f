"""What Spark does with a call: the table of docs/spark.md, query by query, and calls in SQL."""

from __future__ import annotations

import io
import re
from typing import Any

import pyspark.sql.functions as f
import pytest
from rich.console import Console

import rstreams_fast.spark as rs
from rstreams_fast.spark import report
from rstreams_fast.spark.versions import spark_version
from tests.spark.conftest import ROOT

ROW = re.compile(r"^\| `(.*look\(.*)` \| (at most )?(\d+) \| (?:at most )?(\d+) \|$", re.MULTILINE)
TABLE = ROW.findall((ROOT / "docs" / "spark.md").read_text(encoding="utf-8"))


def add_one(key: int) -> int:
    return key + 1


def joined_with_itself(frame: Any) -> Any:
    return frame.join(frame, "id")


def test_the_table_is_read() -> None:
    assert len(TABLE) == 11


@pytest.mark.slow  # a job for each
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_a_query_makes_as_many_calls_as_the_table_says(
    spark: Any, row: tuple[str, str, str, str], deterministic: bool
) -> None:
    query, at_most, calls, calls_if_deterministic = row
    with rs.Metrics() as metrics:
        look = rs.lookup(add_one, "long", metrics=metrics, deterministic=deterministic)
        frame = spark.range(0, 100, 1, 4).withColumn("n", f.expr("nullif(id, 7)"))
        names = {"frame": frame, "look": look, "f": f, "twice": joined_with_itself}
        assert eval(query, names).collect()
        made = sum(partition.calls for partition in metrics.read())
        spark.catalog.clearCache()
    expected = int(calls_if_deterministic if deterministic else calls)
    assert made <= expected if at_most else made == expected, made


def test_a_stage_whose_column_nothing_reads_says_that_it_never_ran(spark: Any) -> None:
    async def unread(key: int) -> int:
        return key

    with rs.Metrics() as metrics:
        look = rs.lookup(add_one, "long", metrics=metrics)
        unused = rs.lookup(unread, "long", metrics=metrics)
        frame = spark.range(5).withColumn("a", look("id")).withColumn("b", unused("id"))
        assert metrics.totals().state == "never ran"
        assert sorted(row.a for row in frame.select("a").collect()) == [1, 2, 3, 4, 5]
        name = unread.__name__
        assert list(metrics.by_stage()) == metrics.stages() == [name, "add_one"]
        states = {name: total.state for name, total in metrics.by_stage().items()}
        assert states == {name: "never ran", "add_one": "done"}
        assert (metrics.totals().state, metrics.totals(name).state) == ("done", "never ran")
        console = Console(file=io.StringIO(), width=160, record=True)
        console.print(report.work_table(metrics.by_stage()))
        assert re.search(r"rows +│ +never ran +│ +5 ", console.export_text())


def test_a_registered_lookup_is_called_in_sql(spark: Any) -> None:
    async def total(*keys: int) -> int:
        return sum(keys)

    look = rs.lookup(total, "long")
    if spark_version() < (4, 1):
        with pytest.raises(RuntimeError, match=r"total: to register .* PySpark 4\.1"):
            spark.udf.register("total", look)
        return
    called = spark.udf.register("total", look)
    spark.range(5).createOrReplaceTempView("numbers")
    rows = spark.sql("SELECT total(id) AS a, total(id, id * 10) AS b FROM numbers").collect()
    assert sorted((row.a, row.b) for row in rows) == [(i, 11 * i) for i in range(5)]
    assert [row[0] for row in spark.range(3).select(called("id")).collect()] == [0, 1, 2]
