"""Starts the Spark session of ``rstreams-fast run``: by default on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.spark.shell.errors import CommandError, one_line_message
from rstreams_fast.spark.versions import spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_installed", "runs_locally", "session", "slots_of"]

_UNDER_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets this environment variable for the Python program that it starts."""


@contextlib.contextmanager
def session(
    master: str | None, remote: str | None, conf: Mapping[str, str], log: Path
) -> Iterator[SparkSession]:
    """Start a Spark session, and stop it at the end of the block. Use it on the main thread.

    Args:
        master: Spark's master. Default: ``local[*]``, or the master given to spark-submit.
        remote: The address of a Spark Connect server.
        conf: Further settings of Spark.
        log: The file for the standard error of Spark and its workers.
    """
    remote = _remote_address(master, remote)
    if _starts_java(remote):
        _prepare_workers()
    from pyspark.sql import SparkSession

    settings = {"spark.ui.showConsoleProgress": "false", **conf}
    builder: Any = SparkSession.builder
    if remote:
        builder = builder.remote(remote)
    elif master or _UNDER_SUBMIT not in os.environ:
        builder = builder.master(master or "local[*]")
        if (master or "local").startswith("local"):  # listen at loopback only
            loopback = ("spark.driver.host", "spark.driver.bindAddress")
            settings = {**dict.fromkeys(loopback, "127.0.0.1"), **settings}
    for name, value in settings.items():
        builder = builder.config(name, value)
    before = log.stat().st_size if log.exists() else 0
    try:
        with _standard_error_to(log):
            spark: SparkSession = builder.appName("rstreams-fast run").getOrCreate()
    except Exception as failed:
        raise CommandError(_start_error(failed, log, before)) from None
    try:
        yield spark
    except KeyboardInterrupt:
        # Ignore errors: before PySpark 4.0 a classic session has no interruptAll.
        with contextlib.suppress(Exception):
            spark.interruptAll()
        raise
    finally:
        # Ignore errors: the JVM of the session may have ended already.
        with contextlib.suppress(Exception):
            spark.stop()


def check_installed(packages: Sequence[str], master: str | None, remote: str | None) -> None:
    """Raise an error if Java or one of the ``packages`` is missing, or PySpark is not supported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise CommandError(
                f"this needs {package}, which is not installed: "
                "pip install 'rstreams_fast[pyspark,report]'"
            )
    try:
        spark_version()
    except RuntimeError as unsupported:
        raise CommandError(str(unsupported)) from None
    if _starts_java(_remote_address(master, remote)):
        _check_java()


def _starts_java(remote: str | None) -> bool:
    return _UNDER_SUBMIT not in os.environ and not (remote or "").startswith("sc:")


def runs_locally(master: str | None, remote: str | None) -> bool:
    """Whether Spark's workers will run on this machine, so that they can use its paths."""
    remote = _remote_address(master, remote)
    if remote or _UNDER_SUBMIT in os.environ:
        return (remote or master or "").startswith("local")
    return (master or "local").startswith("local")


def can_checkpoint(master: str | None, remote: str | None) -> bool:
    """Whether DataFrames have ``localCheckpoint``. Spark Connect has it since PySpark 4.0."""
    return not _remote_address(master, remote) or spark_version() >= (4, 0)


def _remote_address(master: str | None, remote: str | None) -> str | None:
    return remote or (None if master else os.environ.get("SPARK_REMOTE"))


def slots_of(spark: SparkSession) -> int | None:
    """Return how many tasks Spark runs at once; ``None`` if this is not known."""
    master = str(spark.conf.get("spark.master", "") or "")
    if master.startswith("local"):
        count = master.partition("[")[2].rstrip("]").partition(",")[0] or "1"
        return _processors_of(spark) if count == "*" else int(count)
    sizes = [spark.conf.get(f"spark.executor.{of}", "") for of in ("instances", "cores")]
    counts = [int(size) for size in sizes if size and size.isdigit()]
    return counts[0] * counts[1] if len(counts) == len(sizes) else None


def _processors_of(spark: SparkSession) -> int:
    """Return the number of processors that Java sees.

    It may be less than ``os.cpu_count()``, in a container with a quota, for example.
    """
    from pyspark.errors import PySparkException

    # Ignore PySparkException: Spark Connect has no SparkContext.
    with contextlib.suppress(PySparkException):
        if not spark.conf.get("spark.default.parallelism", ""):
            return int(spark.sparkContext.defaultParallelism)
    return os.cpu_count() or 1


def _check_java() -> None:
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise CommandError(
            "Spark needs Java 17 or 21, which is not installed: on Debian or Ubuntu "
            "'apt-get install default-jre-headless', on macOS 'brew install openjdk@21'; "
            "or set JAVA_HOME"
        )


def _prepare_workers() -> None:
    """Make Spark's workers use ``sys.executable``, and find modules in the working directory."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    parts = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(parts)


def _start_error(failed: Exception, log: Path, before: int) -> str:
    """Return a message that says why Spark did not start, with the last error in ``log``.

    The first ``before`` bytes of the log are ignored: they are from earlier commands.
    """
    said = b""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(before)
        said = file.read()
    errors = [line for line in said.decode(errors="replace").splitlines() if "rror" in line]
    why = f": {errors[-1].strip()}" if errors else ""
    text = f"Spark did not start: {one_line_message(str(failed))}{why}"
    if "gateway" in text.lower():
        text += "; it needs Java 17 or 21, and 'rstreams-fast info' tells which it finds"
    return text


@contextlib.contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    # Redirect standard error (descriptor 2) to the log while the JVM starts. The JVM and its
    # workers inherit this descriptor, and keep it.
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
