"""The parent's side of the look-up service: start it, ask it, end it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from examples.flights.errors import DemoError

if TYPE_CHECKING:
    from examples.flights.service import Behaviour

__all__ = ["ServiceProcess"]

STOP_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0


class ServiceProcess:
    """A running service. Leaving the ``with`` block ends it; so does the death of this process."""

    def __init__(self, database: Path, behaviour: Behaviour, log: Path) -> None:
        options = [
            f"--{name.replace('_', '-')}={value}" for name, value in asdict(behaviour).items()
        ]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.flights.service", str(database), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # a terminal's Ctrl-C reaches the demo alone
            )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        if not ready:
            self.close()
            raise DemoError(f"the look-up service did not start: {log.read_text(errors='replace')}")
        self.url: str = json.loads(ready)["url"]

    @property
    def pid(self) -> int:
        """The service's process id."""
        return self._process.pid

    def stats(self) -> dict[str, Any]:
        """Return what the service has counted."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=ANSWER_SECONDS) as answer:
            counted: dict[str, Any] = json.load(answer)
            return counted

    def close(self) -> None:
        """End the service: politely, then not. Idempotent."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
