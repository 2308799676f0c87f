"""The job proves itself: a plain SQL join gives the same rows, and the order is the input's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights import data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Proof", "joined", "order_is_kept", "prove"]


@dataclass(frozen=True)
class Proof:
    """What the comparison with the plain join found. All counts are rows."""

    expected: int
    found: int
    missing: int
    """In the join and not in the output, each as often as it is not."""
    surplus: int
    """In the output and not in the join, each as often."""
    in_order: bool

    @property
    def agree(self) -> int:
        """Rows in both, with their multiplicity."""
        return self.found - self.surplus

    @property
    def holds(self) -> bool:
        """Whether output and join are the same rows, and the output has the order of the input."""
        return not self.missing and not self.surplus and self.in_order


def joined(spark: SparkSession, flights: DataFrame, files: dict[str, Path]) -> DataFrame:
    """Return the enrichment as a plain SQL left join of the files; this package takes no part."""
    flights.createOrReplaceTempView("flights")
    for table in (data.WEATHER, data.PLANE):
        spark.read.csv(
            str(files[table.file]), header=True, nullValue=data.MISSING_VALUE, mode="FAILFAST"
        ).createOrReplaceTempView(table.name)
    weather = ", ".join(
        f"cast(w.{name} AS {kind}) AS {data.WEATHER.answer_name(name)}"
        for name, kind in data.WEATHER.values.items()
    )
    plane = ", ".join(
        f"'{data.PLANE.answer_name(name)}', cast(p.{name} AS {kind})"
        for name, kind in data.PLANE.values.items()
    )
    return spark.sql(
        f"SELECT f.*, {weather}, "
        f"CASE WHEN p.tailnum IS NOT NULL THEN named_struct({plane}) END AS plane "
        "FROM flights f "
        "LEFT JOIN weather w "
        "ON f.origin = w.origin AND f.time_hour = cast(w.time_hour AS timestamp) "
        "LEFT JOIN plane p ON f.tailnum = p.tailnum"
    )


def prove(found: DataFrame, expected: DataFrame, output: Path, rows: int) -> Proof:
    """Compare two frames row by row: null-safe, with multiplicity, in both directions at once.

    Every distinct row is counted up each time it was found and down each time it was expected;
    for ``GROUP BY`` nulls are equal. The order is looked at by itself, in the files.
    """
    from pyspark.sql import functions as f

    sides = found.withColumn("side", f.lit(1)).unionByName(expected.withColumn("side", f.lit(-1)))
    balance = sides.groupBy(*found.columns).agg(
        f.sum("side").alias("balance"),
        f.count_if(f.col("side") > 0).alias("found"),
        f.count_if(f.col("side") < 0).alias("expected"),
    )
    counts = balance.agg(
        f.sum("expected"),
        f.sum("found"),
        f.sum(f.greatest(-f.col("balance"), f.lit(0))),
        f.sum(f.greatest(f.col("balance"), f.lit(0))),
    ).collect()[0]
    wanted, got, missing, surplus = (count or 0 for count in counts)
    return Proof(wanted, got, missing, surplus, order_is_kept(output, rows))


def order_is_kept(output: Path, rows: int) -> bool:
    """Whether the files, one after the other, hold the lines of the input as they were numbered."""
    from pyarrow import parquet

    expected = 0
    for file in sorted(output.glob("part-*.parquet")):
        numbers = parquet.read_table(file, columns=["row"])["row"].to_pylist()
        if numbers != list(range(expected, expected + len(numbers))):
            return False
        expected += len(numbers)
    return expected == rows
