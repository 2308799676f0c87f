"""``python -m bench.postgres``: the sink for PostgreSQL beside plain COPY and Spark's JDBC writer.

Each way writes the same rows from the same partitions into an empty table of the same server. The
plain COPY is one COPY per partition, straight into the table, committed by its task: it leaves rows
behind after a killed task, and so is the floor. The ways take turns; a ratio is taken within a
round. Each table is counted after each write. The driver's jar comes from Maven Central.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
from pyarrow import csv

import rstreams_fast.spark as rs
from tests.spark.conftest import session
from tests.spark.postgres_server import PostgresServer

JAR: Final = "org.postgresql:postgresql:42.7.4"
NAMES: Final = "id, name, weight, at"
TABLE: Final = "id bigint, name text, weight double precision, at timestamptz"
PARTITIONS: Final = 2
TARGETS: Final = {"copy": 0.8, "jdbc": None}


def copied(dsn: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function that copies the batches of a partition straight into the table."""

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        with (
            psycopg.connect(dsn) as db,
            db.cursor().copy(f"copy t ({NAMES}) from stdin (format csv)") as into,
        ):
            for batch in batches:
                out = io.BytesIO()
                csv.write_csv(batch, out, csv.WriteOptions(include_header=False))
                into.write(out.getvalue())
                yield batch.slice(0, 0)

    return copy


def main(rows: int, rounds: int) -> None:
    """Print the ratios."""
    with PostgresServer() as server:
        spark = session(
            conf={
                "spark.jars.packages": JAR,
                "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
            }
        )
        source = spark.range(0, rows, 1, PARTITIONS).selectExpr(
            "id", "concat('row ', id) name", "id / 7 weight", "timestamp_micros(id * 1000003) at"
        )
        url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?reWriteBatchedInserts=true"
        words = {"user": "postgres", "driver": "org.postgresql.Driver", "batchsize": "10000"}
        ways: dict[str, Callable[[], object]] = {
            "sink": lambda: rs.write(source, rs.sinks.postgres(server.dsn, "t"), job="bench"),
            "copy": lambda: source.mapInArrow(copied(server.dsn), source.schema).count(),
            "jdbc": lambda: source.write.jdbc(url, "t", "append", words),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):  # the first round starts JVM and workers, and is left out
            for name, way in ways.items():
                server.ask(f"drop table if exists t, rstreams_ledger; create table t ({TABLE})")
                begin = time.perf_counter()
                way()
                took = time.perf_counter() - begin
                assert server.ask("select count(*), sum(id) from t") == [
                    (rows, rows * (rows - 1) // 2)
                ]
                if number:
                    seconds[name].append(took)
        spark.stop()
    for name, taken in seconds.items():
        print(f"{name}: {rows / statistics.median(taken):,.0f} rows/s")
    for name, least in TARGETS.items():
        ratios = [each / own for own, each in zip(seconds["sink"], seconds[name], strict=True)]
        said = "" if least is None else f", target {least}"
        print(
            f"sink / {name}: {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f} in {rounds} rounds{said})"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    main(given.rows, given.rounds)
