"""A PostgreSQL server of its own for tests, which is started on loopback and ended with them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, Self

from tests.spark.processes import free_port

INSTALLED: Final = Path("/usr/lib/postgresql")
WORDS: Final = (
    "-c fsync=off -c max_connections=200 -c unix_socket_directories= -c listen_addresses=127.0.0.1"
)


def binary(name: str) -> str:
    """Return the path of one of the server's programs: Debian keeps them out of the way."""
    found = max(map(str, INSTALLED.glob(f"*/bin/{name}")), default=shutil.which(name))
    if found is None:
        raise RuntimeError("there is no PostgreSQL server: apt-get install postgresql")
    return found


class PostgresServer:
    """A server with a temporary directory of its own.

    The directory is not below pytest's: each start of pytest closes that to other users.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rstreams-server-")
        folder = Path(self._folder.name)
        self._data = folder / "data"
        self.port = free_port()
        self.dsn = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        if os.getuid() == 0:  # the server refuses to run as root
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
        self._run("initdb", "-A", "trust", "-U", "postgres", "-N", "--locale=C", "-E", "UTF8")
        options = f"{WORDS} -p {self.port}"
        self._words = ("-w", "-t", "60", "-l", str(folder / "log"), "-o", options)
        self._run("pg_ctl", *self._words, "start")

    def crash(self) -> None:
        """End the server as a crash does, and start it again."""
        self._run("pg_ctl", *self._words, "-m", "immediate", "restart")

    def _run(self, name: str, *words: str) -> None:
        subprocess.run(
            [binary(name), "-D", str(self._data), *words],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            user="postgres" if os.getuid() == 0 else None,
            cwd="/",
        )

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement; return its rows."""
        import psycopg

        with psycopg.connect(self.dsn) as db:
            done = db.execute(statement)
            return done.fetchall() if done.description else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._folder:
            self._run("pg_ctl", "-m", "immediate", "-w", "stop")
