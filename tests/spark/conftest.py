"""One Spark for all tests of this folder: local[2] on loopback, workers on this interpreter."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from tests.fresh import patient
from tests.helpers import run_python
from tests.spark.backends import backend

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["backend", "patient"]

ROOT = Path(__file__).parents[2]

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.python.worker.reuse": "true",
    # a job of these tests fails at its first failure
    "spark.task.maxFailures": "1",
}

S3_KEYS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"}
"""What the tests' server of S3 takes, as any other; workers have it from the environment."""


@dataclass(frozen=True)
class Frozen(Exception):
    """Refuses to set attributes."""

    code: int


def bring_connect_server() -> None:
    """Have a local server of Connect found by PySpark 3.5, which comes without."""
    from rstreams_fast.spark.versions import spark_version

    if spark_version() < (4, 0):
        server = "org.apache.spark:spark-connect_2.12:3.5.7"
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--packages {server} pyspark-shell"


def worker_environment() -> dict[str, str]:
    """The environment in which Spark's workers find the package and the tests."""
    found = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{found}" if found else str(ROOT)}


def session(
    master: str = "local[2]",
    conf: Mapping[str, str] = MappingProxyType({}),
    *,
    usual: Mapping[str, str] = MappingProxyType(CONF),
    remote: bool = False,
) -> SparkSession:
    """Start a session of a ``master``, or of a server of Connect; ``conf``: besides the usual."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    builder = builder.remote(master) if remote else builder.master(master)
    if options := os.environ.get("SPARK_SUBMIT_OPTS"):
        builder = builder.config("spark.executor.extraJavaOptions", options)
    for name, value in {**usual, **conf}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    if not remote:
        made.sparkContext.setLogLevel("OFF")
    return made


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    before = dict(os.environ)
    os.environ.update(worker_environment() | S3_KEYS)
    made = session(conf={"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))})
    yield made
    made.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def name() -> str:
    """A name that no other limit has."""
    return uuid.uuid4().hex


@contextmanager
def temporary_in(place: Path) -> Iterator[Path]:
    """Have the host's temporary directory there: that of limits, and of logs of journals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        yield place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The host's temporary directory, which is one of the test's."""
    with temporary_in(tmp_path):
        yield tmp_path


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Where a test has its journal."""
    return str(tmp_path / "journal")


@pytest.fixture
def conf(spark: SparkSession) -> Callable[..., AbstractContextManager[None]]:
    """Set SQL configurations for a ``with`` block."""

    @contextmanager
    def setting(**words: Any) -> Iterator[None]:
        names = {name.replace("__", "."): str(value) for name, value in words.items()}
        before = {name: spark.conf.get(name, None) for name in names}
        for name, value in names.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)

    return setting


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., str]:
    """Run a script in a process, and so a Spark, of its own; return what it printed."""

    def run(script: str, timeout: float = 110) -> str:
        file = tmp_path / "script.py"
        file.write_text(script, encoding="utf-8")
        return run_python(str(file), cwd=tmp_path, env=worker_environment(), timeout=timeout).stdout

    return run
