"""Stages in Structured Streaming: each source, each place of a stage, each row once."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import run_python, wait_until
from tests.spark import streams
from tests.spark.conftest import worker_environment
from tests.spark.kafka_server import KafkaServer
from tests.spark.streams import EXPECTED, PLACES, ROWS, STAGES

pytestmark = pytest.mark.spark

FAST = {("lookup", "before a sink"), ("enrich", "after a state"), ("stage", "in foreachBatch")}


@pytest.mark.parametrize(
    ("stage", "place"),
    [
        pytest.param(stage, place, marks=() if (stage, place) in FAST else pytest.mark.slow)
        for stage in STAGES
        for place in PLACES
    ],
)
def test_a_stage_gives_each_row_of_a_stream_once(
    spark: Any, stage: str, place: str, tmp_path: Path
) -> None:
    source = streams.files(spark, tmp_path)
    assert streams.run(source, stage, place, tmp_path) == EXPECTED
    assert streams.run(source, stage, place, tmp_path) == EXPECTED, "of the checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_over_the_rate_source_gives_each_row_once(
    spark: Any, stage: str, tmp_path: Path
) -> None:
    """The query is stopped in between, and goes on from its checkpoint."""
    source = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    frame = source.selectExpr("value id", "timestamp t")
    out = str(tmp_path / "out")
    for _ in range(2):
        writer = PLACES["before a sink"](frame, STAGES[stage], out)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            wait_until(partial(_has, query, 30), "the rows")
        finally:
            query.stop()
        assert query.exception() is None
    rows = sorted(map(tuple, spark.read.parquet(out).select("id", "v").collect()))
    assert rows == [(k, 2 * k) for k in range(len(rows))]


def _has(query: Any, rows: int) -> bool:
    return sum(each["numInputRows"] for each in query.recentProgress) >= rows


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stages_give_each_row_of_a_kafka_topic_once(tmp_path: Path) -> None:
    with KafkaServer(tmp_path) as kafka:
        kafka.send(streams.TOPIC, map(str, range(ROWS)))
        told = run_python(
            *("-m", "tests.spark.streams", kafka.servers, str(tmp_path)),
            cwd=Path(__file__).parents[2],
            env=worker_environment(),
            timeout=380,
        ).stdout
    found = {(line[0], line[1]): line[2] for line in map(json.loads, told.splitlines())}
    expected = [list(row) for row in EXPECTED]
    assert found == {(stage, place): expected for stage in STAGES for place in PLACES}
