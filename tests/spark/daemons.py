"""What scripts of tests need that run in a process, and so a Spark, with the drop-in daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from tests.helpers import run_python
from tests.spark import conftest
from tests.spark.conftest import worker_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAD: Final = """
import asyncio, datetime, gc, json, os, pathlib, signal, sqlite3, threading, time
import psutil
import pyspark.sql.functions as F
import rstreams_fast.spark as rs
from pyspark.sql.functions import col, udf
from tests.helpers import wait_until
from tests.spark.daemons import failure, session, workers

work = pathlib.Path.cwd()
"""


def session(
    master: str = "local[1]", *, concurrency: int | None = 8, conf: dict[str, str] | None = None
) -> SparkSession:
    """Start Spark with the daemon; ``conf``: further configurations."""
    usual = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.daemon.module": "rstreams_fast.spark.daemon",
    }
    if concurrency is not None:
        usual["spark.executorEnv.RSTREAMS_FAST_UDF_CONCURRENCY"] = str(concurrency)
    return conftest.session(master, conf or {}, usual=usual)


def failure(frame: DataFrame) -> str:
    """Return the error of a job, which shows nothing of the package."""
    try:
        frame.collect()
    except Exception as error:
        told = str(error)
    else:
        raise AssertionError("it did not fail")
    assert "rstreams_fast" not in told, told
    return told


def workers(threads: int = 1) -> list[Any]:
    """Return the Python workers that live, and have so many threads at least."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "python" in process.name() and process.status() != psutil.STATUS_ZOMBIE:
                found += [process] * (process.num_threads() >= threads)
        except psutil.Error:
            pass
    return found


@pytest.fixture
def run_job(tmp_path: Path) -> Callable[[str], str]:
    """Run a script that goes on to its last line; return what its processes wrote on stderr."""

    def run(script: str) -> str:
        file = tmp_path / "script.py"
        file.write_text(f"{script}\nspark.stop()\nprint('as stock')\n", encoding="utf-8")
        done = run_python(str(file), cwd=tmp_path, env=worker_environment(), timeout=280)
        assert done.stdout.endswith("as stock\n"), done.stderr[-6000:]
        return done.stderr

    return run
