"""The main job from end to end, as a process: proved, watched, stopped, failing as it should."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest

from examples.flights import data
from tests.examples.flights.conftest import Start
from tests.examples.flights.together import ROWS, Together

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PNG = b"\x89PNG\r\n"


OUTPUT = "out [1]{a,b}*"
"""A directory's name that Spark would take for a pattern, and a shell for several words."""


def planes_not_known(directory: Path) -> tuple[int, int]:
    """Count, without Spark, the flights without a tail number, and those with an unknown one."""
    files = data.find_files()
    data.write_flights(files, directory / "flights.csv", ROWS)
    with (directory / "flights.csv").open(encoding="utf-8", newline="") as lines:
        tails = [flight["tailnum"] for flight in csv.DictReader(lines)]
    with files[data.PLANE.file].open(encoding="utf-8", newline="") as lines:
        known = {plane["tailnum"] for plane in csv.DictReader(lines)}
    return tails.count("NA"), sum(tail != "NA" and tail not in known for tail in tails)


def test_a_sample_agrees_with_the_join_and_a_stall_is_reported(
    start: Start, tmp_path: Path
) -> None:
    old = tmp_path / OUTPUT / "flights.parquet"
    old.mkdir(parents=True)
    (old / "part-of-an-older-run.parquet").write_bytes(b"")
    command = start(
        f"--rows={ROWS}",
        f"--output={OUTPUT}",
        "--batch-rows=500",
        "--concurrency=16",
        "--stall-after=1000",
        "--stall-s=10",
    )
    status, out, err = command.finish()
    assert status == 0, out + err

    assert f"{ROWS:,} of {ROWS:,} rows agree" in out
    stalled, resumed = out.index("stalled: fetch_"), out.index("resumed: fetch_")
    assert stalled < resumed < out.index("✓ Enriching")

    output = tmp_path / OUTPUT
    assert sorted(path.name for path in output.iterdir()) == [
        "flights.parquet",
        "report.html",
        "report.json",
        "report.png",
    ]
    assert not (old / "part-of-an-older-run.parquet").exists()
    assert (output / "report.png").read_bytes().startswith(PNG)
    report = json.loads((output / "report.json").read_text())
    assert report["proof"] == {
        "expected": ROWS,
        "found": ROWS,
        "missing": 0,
        "surplus": 0,
        "in_order": True,
    }
    plane, weather = report["stages"]["fetch_plane"], report["stages"]["fetch_weather"]
    assert report["service"]["tables"] == {"plane": plane["calls"], "weather": weather["calls"]}
    assert plane["calls"] == ROWS - plane["skipped"]
    assert 0 < weather["calls"] < ROWS / 2, "equal keys in flight share a call"
    assert 16 < report["service"]["max_held"] <= 2 * report["tasks"] * 16
    assert plane["max_running"] == 16
    assert (plane["skipped"], plane["nulls"]) == planes_not_known(tmp_path)
    flights = sum(cell["flights"] for cell in report["answers"]["weather"])
    assert flights == sum(cell["flights"] for cell in report["answers"]["age"]) == ROWS
    assert command.files() == []
    assert command.family() == []


def test_one_wrong_plane_is_a_difference(together: Together) -> None:
    done = together["one wrong plane"]
    assert done.status == 1, done.out + done.err
    proof = json.loads((done.folder / "out" / "report.json").read_text())["proof"]
    assert proof["missing"] == proof["surplus"] > 0
    assert f"{ROWS - proof['missing']:,} of {ROWS:,} rows agree" in done.out
    assert done.files == []


@pytest.mark.parametrize("moment", ["Starting Spark", "calls are waiting"])
def test_ctrl_c_leaves_nothing(start: Start, tmp_path: Path, moment: str) -> None:
    command = start("--output=out", "--stall-after=500", "--stall-s=3600")
    output = command.process.stdout
    assert output is not None
    # "Starting Spark" itself is said when it is over: stop as soon as what is before it is.
    awaited = "Unpacking" if moment == "Starting Spark" else moment
    seen = ""
    for line in output:
        seen += line
        if awaited in line:
            break
    assert awaited in seen, seen
    os.killpg(command.process.pid, signal.SIGINT)
    status, out, err = command.finish()
    assert status == 130, seen + out + err
    assert "nothing is left running" in out
    assert command.files() == []
    assert command.family() == []
    assert not (tmp_path / "out").exists()


def test_a_job_that_fails_says_why_and_keeps_the_log(together: Together) -> None:
    done = together["no database"]
    assert done.status == 3
    assert "the job failed" in done.err
    assert "fetch_" in done.err, "the look-up that failed is named"
    assert [path.name for path in (done.folder / "out").iterdir()] == ["spark.log"]
    assert done.files == []
    assert done.family == []


def test_a_master_that_does_not_exist_is_refused(start: Start, tmp_path: Path) -> None:
    status, _, err = start("--rows=10", "--master=nowhere").finish()
    assert status == 3
    assert "Spark did not start" in err
    assert "Master must" in err
    assert not (tmp_path / "demo-output").exists()


def test_an_output_that_cannot_be_written_to_is_refused_at_once(start: Start) -> None:
    status, _, err = start("--rows=10", "--output=/proc").finish()
    assert status == 3
    assert "--output /proc: " in err
    assert "Spark" not in err
