"""The drop-in and functions that bear no calls at once: named ones, and the comparison."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rstreams_fast.spark.daemon.compare import compared_rows
from tests.spark.conftest import worker_environment


def told_of(
    capsys: pytest.CaptureFixture[str], names: list[str], one_by_one: list[object], rows: object
) -> str:
    assert list(compared_rows(names, one_by_one, rows, 8)) == list(rows)  # type: ignore[call-overload]
    return capsys.readouterr().err


def test_the_first_row_that_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    told = told_of(capsys, ["seeded"], [1, 2, 3], [1, 5, 6, 7])
    assert "comparison of seeded: 2 of the first 3 rows differ" in told
    assert "row 1: one by one 2, with 8 calls at once 5" in told
    assert "made twice" in told


def test_each_of_several_functions_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    nan = float("nan")
    told = told_of(capsys, ["f", "g"], [(1, nan), (2, "x")], [(1, nan), (3, "x")]).splitlines()
    assert "comparison of f: 1 of the first 2 rows differ" in told[0]
    assert "comparison of g: the first 2 rows are the same" in told[1]


def test_a_failure_that_only_calls_at_once_have_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = compared_rows(["f"], [1, 2], (10 // x for x in (10, 0)), 8)
    with pytest.raises(ZeroDivisionError):
        list(rows)
    told = capsys.readouterr().err
    assert "one by one the first rows did not fail, with 8 calls at once: ZeroDivision" in told


SCRIPT = """
import asyncio, json, sqlite3, threading, time
import pyspark.sql.functions as F
from pyspark.sql import SparkSession

build = SparkSession.builder.master("local[1]")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "40",
    "spark.python.daemon.module": "rstreams_fast.spark.daemon",
    "spark.executorEnv.RSTREAMS_FAST_UDF_CONCURRENCY": "8",
    "spark.executorEnv.RSTREAMS_FAST_UDF_BATCHES": "4",
    "spark.executorEnv.RSTREAMS_FAST_UDF_ONE_AT_A_TIME": "connected, single,whole",
    "spark.executorEnv.RSTREAMS_FAST_UDF_COMPARE": "20",
}.items():
    build = build.config(name, value)
spark = build.getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def functions():  # pickled by value
    def connected(x):  # its connection refuses other threads than the one that made it
        if not hasattr(json, "connection"):
            json.connection = sqlite3.connect(":memory:")
        return json.connection.execute("select 2 * ?", (x,)).fetchone()[0]

    async def single(x):
        json.single = getattr(json, "single", 0) + 1
        most = json.single
        await asyncio.sleep(0.001)
        json.single -= 1
        return most

    def whole(column):
        assert threading.current_thread() is threading.main_thread()
        return column

    def plus(x):
        return x + 1

    return connected, single, whole, plus

connected, single, whole, plus = functions()
numbers = spark.range(0, 100, 1, 1)
for arrow in (False, True):
    made = [F.udf(fn, "long", useArrow=arrow) for fn in (connected, single, plus)]
    rows = numbers.select(*(column("id") for column in made)).collect()
    assert [tuple(row) for row in rows] == [(2 * x, 1, x + 1) for x in range(100)], rows[:3]
    rows = numbers.select(made[0]("id")).collect()
    assert [x for (x,) in rows] == [2 * x for x in range(100)]
rows = numbers.select(F.pandas_udf(whole, "long")("id")).collect()
assert [x for (x,) in rows] == list(range(100))
spark.stop()
print("as stock")
"""

DIFFERS = (
    SCRIPT[: SCRIPT.index("def functions")]
    + """
def functions():
    def disturbed(x):  # returns whether another call runs; the first row waits for one
        state = json.__dict__.setdefault("state", {"running": 0, "turns": 0})
        state["running"] += 1
        state["turns"] += x == 0
        if x == 0:
            until = time.monotonic() + (0.2 if state["turns"] == 1 else 30)
            while state["running"] < 2 and time.monotonic() < until:
                time.sleep(0.001)
        elif state["turns"] == 2:
            time.sleep(0.05)
        met = state["running"] > 1
        state["running"] -= 1
        return met
    def plus(x):
        return x + 1
    return disturbed, plus

disturbed, plus = functions()
numbers = spark.range(0, 100, 1, 1)
for arrow in (False, True):
    columns = [F.udf(fn, kind, useArrow=arrow)("id") for fn, kind in
               ((disturbed, "boolean"), (plus, "long"))]
    rows = numbers.select(*columns).collect()
    assert rows[0][0] and [x for (_, x) in rows] == list(range(1, 101))
    forgets = F.udf(lambda _: bool(json.__dict__.pop("state", 0)), "boolean")
    spark.range(1).select(forgets("id")).collect()
spark.stop()
print("as stock")
"""
)


def run(script: str, tmp_path: Path) -> str:
    """Run it; return what its processes wrote on stderr."""
    file = tmp_path / "script.py"
    file.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={**os.environ, **worker_environment()},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.stdout.endswith("as stock\n"), done.stderr[-6000:]
    return done.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_functions_that_are_named_are_called_one_at_a_time(tmp_path: Path) -> None:
    run(SCRIPT, tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_log_says_which_functions_bear_no_calls_at_once(tmp_path: Path) -> None:
    told = run(DIFFERS, tmp_path)
    for line in ("of disturbed: ", "of plus: the first 20 rows are the same one by one"):
        assert told.count(f"comparison {line}") == 2, told[-6000:]
    assert told.count("The first is row 0: one by one False, with 8 calls at once True") == 2


BYPASSED = (
    SCRIPT[: SCRIPT.index("def functions")].replace(
        "}.items()", '    "spark.python.use.daemon": "false",\n}.items()'
    )
    + """
import rstreams_fast.spark as rs

plus = F.udf(rs.bounded(retry=rs.Retry(1))(lambda x: x + 1), "long", useArrow=False)
numbers = spark.range(0, 100, 1, 1)
assert [x for (x,) in numbers.select(plus(plus("id"))).collect()] == list(range(2, 102))
spark.stop()
print("as stock")
"""
)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_worker_without_the_daemon_says_so_once(tmp_path: Path) -> None:
    assert run(BYPASSED, tmp_path).count("(spark.python.use.daemon=false)") == 1
