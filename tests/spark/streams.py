"""Streaming queries of tests: sources, stages, places of a stage, and the rows that must come out.

A source has the columns ``id``, from 0 on, and ``t``, a second for each id. A stage adds ``v``, the
double of ``id``. ``python -m tests.spark.streams SERVERS FOLDER`` runs all of them on Kafka, in a
session that has Spark's connector, and prints what they gave.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql.streaming import DataStreamWriter

import rstreams_fast.spark as rs
from tests.spark.conftest import session
from tests.spark.kafka_server import connector

ROWS: Final = 60
FILES: Final = 3
TOPIC: Final = "rows"
EXPECTED: Final = [(k, 2 * k) for k in range(ROWS)]
ADDED: Final = "id long, t timestamp, v long"
REAL_TIME: Final = "real time"
HAS_REAL_TIME: Final = "realTime" in inspect.signature(DataStreamWriter.trigger).parameters


async def doubled(k: int) -> int:
    await asyncio.sleep(0.001)
    return 2 * k


async def doubled_list(keys: list[int]) -> list[int]:
    return [2 * k for k in keys]


def doubled_batch(batch: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [*batch.columns, pc.multiply(batch.column("id"), 2)]
    return pa.RecordBatch.from_arrays(columns, [*batch.schema.names, "v"])


policy = rs.Policy(
    timeout=10.0,
    retry=rs.Retry(2),
    limit=rs.Limit("tests of streams", concurrency=8),
    cache=rs.Cache(entries=10),
)

#: Each of them is a function from frame to frame, which adds ``v``.
STAGES: Final[dict[str, Callable[[Any], Any]]] = {
    "lookup": lambda frame: frame.withColumn("v", rs.lookup(policy(doubled), "long")("id")),
    "enrich": rs.enrich(doubled_list, on="id", output="v long", batch=64),
    "map_batches": rs.map_batches(doubled_batch, ADDED, concurrency=2),
    "stage": rs.stage(lambda batches: batches.map(doubled_batch).publish_on(), ADDED),
}


def once(frame: Any) -> Any:
    """Drop rows of the same id, with a state that a watermark bounds."""
    return frame.withWatermark("t", "1 hour").dropDuplicatesWithinWatermark(["id"])


def counted(frame: Any) -> Any:
    """Count the rows of each id and hour, with a state that a watermark bounds."""
    from pyspark.sql import functions as F

    groups = frame.withWatermark("t", "1 hour").groupBy(F.window("t", "1 hour"), "id")
    return groups.agg(F.max("t").alias("t")).select("id", "t")


def appended(folder: str) -> Callable[[Any, int], None]:
    return lambda frame, batch: frame.write.mode("append").parquet(folder)


#: How a query has a stage; each returns a ``DataStreamWriter``.
PLACES: Final[dict[str, Callable[[Any, Callable[[Any], Any], str], Any]]] = {
    "before a sink": lambda frame, stage, folder: (
        stage(frame).writeStream.format("parquet").option("path", folder)
    ),
    "in foreachBatch": lambda frame, stage, folder: frame.writeStream.foreachBatch(
        lambda batch, number: appended(folder)(stage(batch), number)
    ),
    "before a state": lambda frame, stage, folder: (
        once(stage(frame)).writeStream.format("parquet").option("path", folder)
    ),
    "after a state": lambda frame, stage, folder: (
        stage(once(frame)).writeStream.format("parquet").option("path", folder)
    ),
    "after groups": lambda frame, stage, folder: (
        stage(counted(frame)).writeStream.outputMode("update").foreachBatch(appended(folder))
    ),
}

#: Each stage and each place once: over files all stages are in all places.
ON_KAFKA: Final = list(zip(itertools.cycle(STAGES), PLACES, strict=False))


def files(spark: Any, folder: Path) -> Any:
    """Return a stream of files, one in each batch."""
    rows = spark.range(0, ROWS, 1, FILES).selectExpr("id", "timestamp_seconds(3600 + id) t")
    rows.write.mode("ignore").parquet(str(folder / "source"))
    stream = spark.readStream.schema("id long, t timestamp").option("maxFilesPerTrigger", 1)
    return stream.parquet(str(folder / "source"))


def kafka(spark: Any, servers: str, most: int) -> Any:
    """Return a stream of the topic's numbers, ``most`` in each batch."""
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    stream = stream.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    return (
        stream.option("maxOffsetsPerTrigger", most)
        .load()
        .selectExpr("cast(cast(value as string) as long) id")
        .selectExpr("id", "timestamp_seconds(3600 + id) t")
    )


def run(frame: Any, stage: str, place: str, folder: Path) -> list[Any]:
    """Run a query on all that there is; return its rows."""
    out = str(folder / "out")
    writer = PLACES[place](frame, STAGES[stage], out)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300), "the query did not end"
    finally:
        query.stop()
    rows = frame.sparkSession.read.parquet(out).select("id", "v").orderBy("id").collect()
    return list(map(tuple, rows))


def refused_in_real_time(frame: Any, stage: str, servers: str, folder: Path) -> str:
    """Return the error with which Spark refuses a stage in real-time mode."""
    out = STAGES[stage](frame).selectExpr("cast(v as string) value").writeStream.format("kafka")
    out = out.option("kafka.bootstrap.servers", servers).option("topic", "out")
    out = out.outputMode("update").option("checkpointLocation", str(folder))
    query = out.trigger(realTime="5 minutes").start()
    try:
        query.awaitTermination(60)
    except Exception as refused:
        return str(refused)
    finally:
        query.stop()
    raise AssertionError("the query went on")


def main(servers: str, folder: str) -> None:
    spark = session(conf=connector())
    for stage, place in ON_KAFKA:
        place_of = Path(folder, f"{stage} {place}")
        found = run(kafka(spark, servers, ROWS // FILES), stage, place, place_of)
        print(json.dumps([stage, place, found]), flush=True)
    for stage in STAGES:
        if HAS_REAL_TIME:
            frame = kafka(spark, servers, ROWS)
            told = refused_in_real_time(frame, stage, servers, Path(folder, f"{stage} at once"))
            print(json.dumps([stage, REAL_TIME, told]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
