"""Commands that take long, most of it a Spark's start, and that no test watches or interrupts.

They are under way two at a time, from the first test on that asks for one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tests.examples.flights.command import launch

__all__ = ["ROWS", "Finished", "Together"]

ROWS: Final = 3_000
SIDE_BY_SIDE: Final = 2

_WRONG_LOOK_UP = """
import sys
from examples.flights import __main__ as demo
from examples.flights import compare

right = compare.plain_column

def wrong(look_up):
    column = right(look_up)
    return lambda key: column(key) + 1

compare.plain_column = wrong
sys.exit(demo.main())
"""
_TAMPERED = """
import sqlite3, sys
from examples.flights import __main__ as demo
from examples.flights import data

right = data.write_database

def wrong(files, target):
    right(files, target)
    with sqlite3.connect(target) as database:
        database.execute("UPDATE plane SET seats = seats + 1 WHERE tailnum = 'N14228'")

data.write_database = wrong
sys.exit(demo.main())
"""
_NO_DATABASE = """
import sys
from examples.flights import __main__ as demo
from examples.flights import data

data.write_database = lambda files, target: target.write_bytes(b'no database')
sys.exit(demo.main())
"""
_PROOF = """
from pathlib import Path
from tests.examples.flights import proof_cases

proof_cases.main(Path.cwd())
"""

#: The arguments, and the script that takes them, if it is not the demo.
COMMANDS: Final[dict[str, tuple[tuple[str, ...], str | None]]] = {
    "tiny comparison": (("--compare", "--rows=256", "--rounds=1", "--output=out"), None),
    "wrong comparison": (("--compare", "--rows=64", "--rounds=1"), _WRONG_LOOK_UP),
    "drop-in": (("--drop-in", f"--rows={ROWS}"), None),
    "one wrong plane": ((f"--rows={ROWS}", "--output=out"), _TAMPERED),
    "no database": (("--rows=100", "--output=out"), _NO_DATABASE),
    "proof": ((), _PROOF),
}


class Finished(NamedTuple):
    """What became of a command."""

    status: int
    out: str
    err: str
    folder: Path  #: it ran there
    files: list[Path]  #: what is left of its temporary files
    family: list[psutil.Process]  #: and of its processes


class Together:
    """All of them, in folders of their own in ``base``."""

    def __init__(self, base: Path) -> None:
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        self._runs = {
            name: self._pool.submit(_run, base / name, *how) for name, how in COMMANDS.items()
        }

    def __getitem__(self, name: str) -> Finished:
        return self._runs[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _run(folder: Path, arguments: tuple[str, ...], script: str | None) -> Finished:
    folder.mkdir()
    command = launch(folder, *arguments, script=script)
    status, out, err = command.finish()
    return Finished(status, out, err, folder, command.files(), command.family())
