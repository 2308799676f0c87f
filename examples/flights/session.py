"""A Spark session that leaves nothing behind: no process, no file outside its directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.flights.errors import DemoError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]

JVM_STOP_SECONDS: Final = 20.0

_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@contextlib.contextmanager
def spark_session(
    master: str, directory: Path, log: Path, settings: dict[str, str]
) -> Iterator[SparkSession]:
    """Start Spark on loopback; stop it and wait for its processes to end.

    Spark's own files go to ``directory``; what it and its workers write to standard error goes to
    ``log``.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as missing:
        raise DemoError(
            f"PySpark is not installed ({missing}); install it with: pip install -e '.[demo]'"
        ) from None
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise DemoError(
            "Spark needs a Java 17 or 21 runtime, and there is none; on Debian or Ubuntu "
            "install one with: apt-get install default-jre-headless (or set JAVA_HOME)"
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING, encoding="utf-8")
    everything = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={logging.as_uri()} "
            f"{_quoted(f'-Djava.io.tmpdir={directory}')} -XX:-UsePerfData -Duser.timezone=UTC"
        ),
        **settings,
    }
    builder: Any = SparkSession.builder
    builder = builder.master(master).appName("rstreams_fast demo")
    for name, value in everything.items():
        builder = builder.config(name, value)
    try:
        with _standard_error_to(log):
            spark: SparkSession = builder.getOrCreate()
    except Exception as failed:
        _end_jvm(pyspark.SparkContext)
        tail = log.read_text(errors="replace").splitlines()[-10:]
        raise DemoError("\n".join([f"Spark did not start: {failed}", *tail])) from failed
    try:
        yield spark
    finally:
        with contextlib.suppress(Exception):  # its JVM may be gone already
            spark.stop()
        _end_jvm(pyspark.SparkContext)


def _quoted(option: str) -> str:
    # Spark splits the options at spaces, as a shell would; a directory's name may have some.
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@contextlib.contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    # The JVM and, through it, the workers inherit the file descriptor for good.
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _end_jvm(context: Any) -> None:
    # spark.stop() leaves the JVM running for the next session of this process; there is none.
    gateway = context._gateway
    if gateway is None:
        return
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):
        gateway.shutdown()
    context._gateway = None
    context._jvm = None
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # which is what the JVM waits for
    try:
        process.wait(JVM_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
