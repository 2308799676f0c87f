"""``docs/getting-there.md``, command by command: a wheel, an environment, a cluster, Connect."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.helpers import run_python
from tests.spark.cluster import Cluster
from tests.spark.conftest import ROOT, worker_environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs" / "getting-there.md").read_text(encoding="utf-8")
PACK, SUBMIT = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
(CONNECT,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

CONNECTED = """
import asyncio
import sys
from pyspark.sql import SparkSession
import rstreams_fast.spark as rs
from tests.spark.conftest import bring_connect_server

bring_connect_server()
spark = SparkSession.builder.remote("local[2]").getOrCreate()
{page}
async def look_up(key):
    return f"{{key}} {{sys.prefix}}"

answers = rs.lookup(look_up, "string")("id").alias("answer")
for row in spark.range(0, 100, 1, 2).select(answers).collect():
    print(row.answer)
spark.stop()
"""


def run(commands: str, folder: Path, **more: str) -> None:
    """Run ``commands`` in ``folder``, as one would who has the test's Python and Spark at hand."""
    paths = [Path(sys.executable).parent, Path(pyspark.__file__).parent / "bin"]
    left_out = ("PYTHONPATH", "PYSPARK_PYTHON", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["PATH"] = os.pathsep.join([*map(str, paths), environment["PATH"]])
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=folder,
        env={**environment, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the environment was packed, of a copy: a build writes into the tree that it is of."""
    made = tmp_path_factory.mktemp("getting_there")
    copied = shutil.ignore_patterns(".*", "build", "*.so", "__pycache__")
    checkout = shutil.copytree(ROOT, made / "checkout", ignore=copied)
    run(PACK, made, CHECKOUT=str(checkout))
    assert list(made.glob("wheels/*manylinux*.whl"))
    return made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, workers=1)
    try:
        yield made
    finally:
        made.close()


def assert_answered_in_the_environment(answers: list[str], rows: int) -> None:
    keys, prefixes = zip(*(answer.split(" ", 1) for answer in answers), strict=True)
    assert sorted(map(int, keys)) == list(range(rows))
    assert {Path(prefix).name for prefix in prefixes} == {"environment"}
    assert sys.prefix not in prefixes


def test_a_job_is_submitted_with_its_environment(
    folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    words = {"CHECKOUT": str(ROOT), "MASTER": cluster.master, "OUTPUT": str(output)}
    own = {name: cluster.environment[name] for name in ("RSTREAMS_CLUSTER", "SPARK_LOCAL_IP")}
    run(SUBMIT, folder, **words, **own)
    answers = pq.read_table(output)["answer"].to_pylist()
    assert_answered_in_the_environment(answers, 1000)


def test_a_session_of_connect_brings_its_environment(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CONNECTED.format(page=CONNECT), encoding="utf-8")
    own = {**worker_environment(), "PYSPARK_PYTHON": None}
    done = run_python(str(script), cwd=folder, env=own, timeout=300)
    answers = [line for line in done.stdout.splitlines() if line[:1].isdigit()]  # not Ivy's
    assert_answered_in_the_environment(answers, 100)
