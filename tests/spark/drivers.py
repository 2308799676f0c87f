"""Drivers of Spark as processes of their own, which programs kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from tests.spark import jvm

__all__ = ["Driver", "executors_among", "workers_among"]

ROOT: Final = Path(__file__).parents[2]


class Driver:
    """Runs ``script`` in ``folder``. What it prints is in ``folder / "errors"``.

    ``environment`` is that of the process; default: this process's own, with the tests' modules.
    """

    def __init__(
        self,
        script: str,
        folder: Path,
        *words: object,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        jvm.use_options()
        self._script, self._folder = script, folder
        self._environment = environment or {**os.environ, "PYTHONPATH": str(ROOT)}
        self.start(*words)

    def start(self, *words: object) -> None:
        """Start the script with these arguments."""
        self._words = words
        with (self._folder / "errors").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", self._script, *map(str, words)],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raise an error if the driver has ended with another status than 0."""
        if status := self._process.poll():
            raise AssertionError(f"exit status {status}: {self.errors()}")

    def wait(self, timeout: float) -> None:
        self._process.wait(timeout)
        self.check()

    def errors(self) -> str:
        return (self._folder / "errors").read_text(errors="replace")[-4000:]

    def processes(self) -> list[psutil.Process]:
        """All processes that the driver has started."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def end(self) -> None:
        """Kill the driver, and all that it has started, if it runs."""
        if self.runs:
            for pid in [self.pid, *(process.pid for process in self.processes())]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def kill(self, *words: object) -> None:
        """End the driver, and start it again: with ``words``, or the same arguments."""
        self.end()
        self.start(*(words or self._words))


def workers_among(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the Python workers: what daemons have forked."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            parent = process.parent()
            if "pyspark.daemon" in process.cmdline() and (
                parent is not None and "pyspark.daemon" in parent.cmdline()
            ):
                found.append(process)
    return found


def executors_among(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the JVMs of executors."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process)
    return found
