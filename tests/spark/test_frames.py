"""map_batches, stage and metrics on real Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.versions import spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def scored(batch: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    score = pc.multiply(batch["id"].cast("double"), 0.5)
    # another order and another type than declared
    return pa.RecordBatch.from_arrays([score, batch["id"].cast("int32")], names=["score", "id"])


async def scored_async(batch: Any) -> Any:
    await asyncio.sleep(0.001)
    return scored(batch)


def in_pieces(batch: Any) -> Any:
    whole = scored(batch)
    for start in range(0, whole.num_rows, 300):
        yield whole.slice(start, 300)


def test_a_stage_that_takes_ends_its_partition(spark: SparkSession) -> None:
    """The stream has ended while Spark still writes to the worker."""
    stage = rs.stage(lambda batches: batches.take(1), "id long")
    rows = spark.range(0, 100_000, 1, 2).transform(stage).collect()
    assert [r.id for r in rows] == [*range(1000), *range(50_000, 51_000)]


def test_values_and_figures_of_every_kind_of_stage(spark: SparkSession) -> None:
    async def look(k: int) -> int:
        await asyncio.sleep(0.001)
        return k

    ids, schema = spark.range(0, 4000, 1, 2), "id long, score double"
    with rs.Metrics() as metrics:
        words: Any = {"schema": schema, "metrics": metrics}
        rows = ids.select("id", rs.lookup(look, "long", metrics=metrics)("id")).collect()
        assert [tuple(row) for row in rows] == [(k, k) for k in range(4000)]
        stages: list[Any] = [
            rs.map_batches(fn, **words) for fn in (scored, scored_async, in_pieces)
        ]
        stages.append(rs.stage(lambda b: b.map(scored).publish_on(prefetch=4), **words))
        for stage in stages:
            frame = ids.transform(stage)
            assert frame.schema.simpleString() == "struct<id:bigint,score:double>"
            assert [tuple(row) for row in frame.collect()] == [(k, k / 2) for k in range(4000)]
        found = metrics.read()
        assert Counter((f.partition, f.attempt, f.state) for f in found) == {
            (partition, 0, "done"): 5 for partition in (0, 1)
        }
        assert len(metrics.stages()) == 5
        for name in metrics.stages():
            total = metrics.totals(name)
            assert (total.rows_in, total.rows_out) == (4000, 4000)
            assert (total.partitions, total.state, total.batches_in) == (2, "done", 4)
            assert total.buffered_batches == total.buffered_bytes == total.buffered_rows == 0
            assert total.running == 0
            waited = total.waiting_upstream + total.waiting_function + total.waiting_downstream
            assert 0 < waited <= total.seconds * 1.1
        calls = metrics.totals(metrics.stages()[0])
        assert calls.calls == 4000
        assert 1 < calls.max_running <= 64
        assert metrics.totals().rows_out == 20_000


@pytest.mark.slow
def test_spark_connect(run_script: Any) -> None:
    """The same functions on the frames of a local Connect server, in a process of its own.

    Spark's pipelining is on there, which reads ahead on a thread, too.
    """
    output = run_script(
        """
import asyncio, socket
import rstreams_fast.spark as rs
from rstreams_fast.spark.versions import spark_version
from tests.spark.conftest import bring_connect_server, session
from tests.spark.service import ServiceProcess, asking
from tests.spark.stages import made

bring_connect_server()
spark = session("local[4]", {"spark.python.udf.pipelined.enabled": "true"}, remote=True)

def make():
    async def look(k):
        await asyncio.sleep(0.001)
        return None if k == 5 else k * 2

    async def several(k, s):
        return {"d": k * 2, "t": s + "!"}

    def boom(k):
        raise ValueError("boom")

    def pipelined(k):
        import os
        return os.environ.get("SPARK_PIPELINED_UDF")

    return look, several, boom, lambda b: b, pipelined

look, several, boom, same, pipelined = make()
if spark_version() >= (4, 3):
    assert spark.range(1).select(rs.lookup(pipelined, "string")("id")).collect()[0][0] == "1"
ids = spark.range(0, 3000, 1, 2)
assert "connect" in type(ids).__module__
rows = ids.withColumn("v", rs.lookup(look, "long")("id")).collect()
assert [(r.id, r.v) for r in rows] == [(k, None if k == 5 else 2 * k) for k in range(3000)]
enrich = rs.enrich(several, on=["id", "s"], output="d long, t string")
frame = ids.selectExpr("id", "cast(id as string) as s").transform(enrich)
assert [tuple(r) for r in frame.collect()] == [(k, f"{k}", 2 * k, f"{k}!") for k in range(3000)]
assert ids.transform(rs.map_batches(same, "id long")).count() == 3000
stage = rs.stage(lambda batches: batches.map(same).publish_on(), "id long")
assert ids.transform(stage).count() == 3000
endless = spark.range(0, 10_000_000, 1, 1).withColumn("v", rs.lookup(look, "long")("id"))
assert [r.v for r in endless.limit(3).collect()] == [0, 2, 4]
try:
    ids.select(rs.lookup(boom, "long", concurrency=2)("id")).collect()
except Exception as error:
    assert "boom" in str(error), error
else:
    raise AssertionError("no error")
print("connect works")

if spark_version() >= (4, 0):
    # The client serves the limits of a job.
    service = ServiceProcess()
    call = asking(service.port)
    limit = rs.Limit("registry", concurrency=7, scope="job")
    look = rs.lookup(rs.Policy(limit=limit)(call), "long")
    rows = spark.range(0, 1000, 1, 4).withColumn("v", look("id"))
    assert sorted(row.v for row in rows.collect()) == list(range(0, 2000, 2))
    told = service.tell()
    assert (told["calls"], told["most"]) == (1000, 7), told
    service.close()
    # A client that executors cannot reach: one sentence, which names the way out.
    gone = rs.Limit("registry", concurrency=7, scope="job")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    gone.__setstate__({**gone.__getstate__(), "address": limit.served_at._replace(port=port)})
    try:
        spark.range(3).select(rs.lookup(rs.Policy(limit=gone)(call), "long")("id")).collect()
    except Exception as error:
        assert "the client of Spark Connect" in str(error), error
        assert "Limit(scope='executor') needs nobody" in str(error), error
        print("and its limits")
spark.stop()
"""
    )
    assert "connect works" in output
    assert spark_version() < (4, 0) or "and its limits" in output
