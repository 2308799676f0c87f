"""A standalone cluster of processes on loopback, from the jars of the installed PySpark."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pyspark

from tests.helpers import wait_until
from tests.spark import jvm
from tests.spark.conftest import worker_environment
from tests.spark.drivers import workers_among

MARK: Final = "RSTREAMS_CLUSTER"
"""What the environment of every process of a cluster has, and of all that they start."""

JAVA: Final = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"


class Cluster:
    """A master and ``workers`` workers of ``cores`` cores; all that they write is in ``folder``."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 2) -> None:
        self.mark = str(folder)
        self.folder = folder
        self.local, self.temporary = folder / "local", folder / "tmp"
        for made in (self.local, self.temporary):
            made.mkdir(exist_ok=True)
        home = Path(pyspark.__file__).parent
        jvm.use_options()
        self.environment = {
            **os.environ,
            **worker_environment(),
            MARK: self.mark,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",  # asked for, and used only without jars
            "TMPDIR": str(self.temporary),
            "SPARK_LOCAL_DIRS": str(self.local),
        }
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            log = self._start("master.Master", "--host", "127.0.0.1", "--port", "0")
            self.master = self._found(log, r"Starting Spark master at (spark://\S+)")
            words = ["--cores", str(cores), "--memory", "4g", "--work-dir", str(folder / "work")]
            hosts = [f"127.0.0.{number + 1}" for number in range(workers)]  # or none speculates
            logs = [
                self._start("worker.Worker", "--host", host, *words, self.master) for host in hosts
            ]
            for log in logs:
                self._found(log, r"(Successfully registered with master)")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, *words: str) -> Path:
        log = self.folder / f"{len(self._started)}.log"
        home = self.environment["SPARK_HOME"]
        with log.open("wb") as file:
            started = subprocess.Popen(
                [
                    str(JAVA),
                    *self.environment["SPARK_SUBMIT_OPTS"].split(),
                    "-Xmx256m",
                    f"-Djava.io.tmpdir={self.temporary}",
                    "-cp",
                    f"{home}/conf/:{home}/jars/*",  # as Spark's own script, for the archive
                    f"org.apache.spark.deploy.{name}",
                    "--webui-port",
                    "0",
                    *words,
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._started.append(started)
        return log

    def _found(self, log: Path, pattern: str) -> str:
        found: list[str] = []

        def look() -> bool:
            found[:] = re.findall(pattern, log.read_text())
            return bool(found)

        wait_until(look, f"'{pattern}' in {log.name}", timeout=60)
        return found[0]

    def processes(self) -> list[psutil.Process]:
        """All that runs with the cluster's mark, but master and workers, and the caller."""
        own = {process.pid for process in self._started} | {os.getpid()}
        return [found for found in marked(self.mark) if found.pid not in own]

    def close(self) -> None:
        """End it, and all that it has started."""
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            process.wait(20)
        for left in marked(self.mark):
            if left.pid != os.getpid():
                left.kill()


def marked(mark: str) -> list[psutil.Process]:
    """The processes that have the mark, zombies left out."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def python_workers(mark: str) -> list[psutil.Process]:
    """The Python workers of the executors."""
    return workers_among(marked(mark))
