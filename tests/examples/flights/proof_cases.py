"""For ``test_proof``, in a process of its own: outputs that are wrong in one way each.

Prints one JSON object: for each case what the comparison found.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights import data, job
from examples.flights.proof import joined, prove
from examples.flights.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 300

#: A flight with a plane, and one whose plane is not known.
KNOWN, UNKNOWN = 0, 4


def cases() -> dict[str, Callable[[DataFrame], DataFrame]]:
    from pyspark.sql import functions as f

    def altered(column: str, value: object) -> Callable[[DataFrame], DataFrame]:
        chosen = f.col("row") == KNOWN
        return lambda right: right.withColumn(
            column, f.when(chosen, f.lit(value)).otherwise(f.col(column))
        )

    return {
        "right": lambda right: right,
        "a row is missing": lambda right: right.where(f"row <> {KNOWN}"),
        "a row is doubled": lambda right: right.unionAll(right.where(f"row = {KNOWN}")).orderBy(
            "row"
        ),
        "a value is wrong": altered("temp", 0.0),
        "a value is null": altered("temp", None),
        "a null is a value": altered("wind_gust", 0.0),
        "a plane is null": altered("plane", None),
        "one row in place of another": lambda right: right.withColumn(
            "row", f.when(f.col("row") == KNOWN, UNKNOWN).otherwise(f.col("row"))
        ),
        "the order is lost": lambda right: right.orderBy(f.desc("row")),
    }


def main(directory: Path) -> None:
    files = data.find_files()
    data.write_flights(files, directory / "flights.csv", ROWS)
    found = {}
    with spark_session("local[2]", directory, directory / "spark.log", {}) as spark:
        flights = job.read_flights(spark, directory / "flights.csv")
        expected = joined(spark, flights, files).cache()
        for number, (name, tamper) in enumerate(cases().items()):
            output = directory / f"case-{number}"
            tamper(expected.orderBy("row")).coalesce(1).write.parquet(str(output))
            proof = prove(spark.read.parquet(str(output)), expected, output, ROWS)
            found[name] = {**asdict(proof), "agree": proof.agree, "holds": proof.holds}
    print(json.dumps(found))
