"""Stages in Structured Streaming: each source, each place of a stage, each row once."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import FENCE, PROMISE, run_python, wait_until
from tests.spark import streams
from tests.spark.conftest import ROOT, worker_environment
from tests.spark.kafka_server import KafkaServer
from tests.spark.postgres_server import PostgresServer
from tests.spark.streams import EXPECTED, ON_KAFKA, PLACES, ROWS, STAGES

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
@pytest.mark.timeout(900)
def test_stages_give_each_row_of_a_kafka_topic_once(tmp_path: Path) -> None:
    with KafkaServer(tmp_path) as kafka:
        kafka.send(streams.TOPIC, map(str, range(ROWS)))
        told = run_python(
            *("-m", "tests.spark.streams", kafka.servers, str(tmp_path)),
            cwd=ROOT,
            env=worker_environment(),
            timeout=880,
        ).stdout
    found = {(line[0], line[1]): line[2] for line in map(json.loads, told.splitlines())}
    for stage in STAGES if streams.HAS_REAL_TIME else ():
        refused = found.pop((stage, streams.REAL_TIME))
        assert "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST" in refused
        assert ("ArrowEvalPythonExec" if stage == "lookup" else "MapInArrowExec") in refused
    expected = [list(row) for row in EXPECTED]
    assert found == dict.fromkeys(ON_KAFKA, expected)


GIVEN = """
import sys
from tests.spark.conftest import session
from tests.spark.kafka_server import connector

folder, servers, dsn = sys.argv[1:]
spark = session(conf=connector())
"""

FILES = {
    "planes": [{"tailnum": "N14228"}, {"tailnum": "N24211"}, {"tailnum": "N619AA"}],
    "events": [
        {"event": "a", "at": "2024-01-01 00:00:01"},
        {"event": "b", "at": "2024-01-01 00:00:02"},
        {"event": "a", "at": "2024-01-01 00:00:03"},
    ],
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_recipes_of_the_page_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    recipes = FENCE.findall(page)
    for name, rows in FILES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "kafka").mkdir()
    script = tmp_path / "page.py"
    script.write_text("\n".join([GIVEN, *recipes, "spark.stop()"]), encoding="utf-8")
    with PostgresServer() as postgres, KafkaServer(tmp_path / "kafka") as kafka:
        postgres.ask("create table planes (tailnum text, seats int)")
        kafka.send("planes", [row["tailnum"] for row in FILES["planes"]])
        words = (str(script), str(tmp_path), kafka.servers, postgres.dsn)
        printed = run_python(*words, cwd=tmp_path, env=worker_environment(), timeout=880).stdout
        assert postgres.ask("select count(*) from planes") == [(3,)]
    assert len(recipes) == 3
    assert printed.splitlines() == PROMISE.findall("\n".join(recipes))
