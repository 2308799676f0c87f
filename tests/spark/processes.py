"""Another process, which runs a script, is told lines and tells lines; and is killed at the end."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Self

from tests.spark.conftest import ROOT, worker_environment


def free_port() -> int:
    """Return a port of loopback that nobody has, for a server that starts later, or again.

    It is below the ports that systems give to connections: such a connection could take the port
    while the server is down.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            return port


class OtherProcess:
    def __init__(self, script: str, *words: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, *words],
            cwd=ROOT,
            env={**os.environ, **worker_environment(), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid, self.kill = self._process.pid, self._process.kill
        self.send_signal = self._process.send_signal

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, *words: object) -> str:
        """Tell it a line; return the next one that it tells."""
        print(*words, file=self._process.stdin, flush=True)
        return self.line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.send_signal(signal.SIGCONT)  # it may be stopped
        self.kill()
        self._process.communicate()
