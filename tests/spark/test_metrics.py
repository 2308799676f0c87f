"""The directory of metrics, and what its files add up to. Needs no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.worker.counters import Counters, MetricsWriter
from tests.helpers import DEADLINE


def write(metrics: rs.Metrics, partition: int, state: str) -> MetricsWriter:
    counters = Counters("look", "key")
    counters.spark_stage, counters.partition, counters.attempt = 1, partition, 0
    counters.state, counters.rows_out = state, 10
    writer = MetricsWriter(metrics, counters)
    writer.write()
    return writer


@pytest.mark.parametrize("state", ["done", "running"])
def test_several_runs_in_one_task_add_up(tmp_path: Path, state: str) -> None:
    """As where ``coalesce`` gives it several partitions, or a plan has the same stage twice."""
    metrics = rs.Metrics(tmp_path)
    for task, last in ((7, "running"), (9, state)):  # the second attempt, and its number of retries
        for run in range(3):
            counters = Counters("look", "key")
            counters.spark_stage, counters.partition, counters.attempt = 1, 0, task - 7
            counters.task, counters.rows_out = task, 10
            counters.state = last if run == 2 else "done"
            MetricsWriter(metrics, counters).write()
    assert len(metrics.read()) == 6
    total = metrics.totals()
    assert (total.state, total.rows_out, total.partitions) == (state, 30, 3)


def test_a_directory_that_was_there_keeps_what_is_not_ours(tmp_path: Path) -> None:
    own = [tmp_path / name for name in ("thesis.txt", "metrics.json", "other.tmp")]
    for file in own:
        file.write_text("precious")
    with rs.Metrics(tmp_path) as metrics:
        write(metrics, 0, "done")
        (tmp_path / "key-1-1-0.metrics.99.tmp").touch()  # of a writer that was killed
        assert len(list(tmp_path.iterdir())) == 5
    assert sorted(tmp_path.iterdir()) == sorted(own)


def test_a_directory_that_was_there_stays_when_it_is_empty(tmp_path: Path) -> None:
    with rs.Metrics(tmp_path) as metrics:
        write(metrics, 0, "done")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [True, False])
def test_a_directory_made_here_goes_unless_something_else_is_in_it(
    tmp_path: Path, given: bool
) -> None:
    with rs.Metrics(tmp_path / "a" / "b" if given else None) as metrics:
        write(metrics, 0, "done")
        thesis = Path(metrics.path) / "thesis.txt"
        thesis.write_text("precious")
    assert list(Path(metrics.path).iterdir()) == [thesis]
    thesis.unlink()
    metrics.cleanup()
    assert not Path(metrics.path).exists()
    metrics.cleanup()  # again, of a directory that is gone


def test_an_empty_path_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="path is empty"):
        rs.Metrics("")
    with rs.Metrics("."):
        pass
    assert tmp_path.exists()


@pytest.mark.parametrize("path", [5, True, b"metrics"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(TypeError, match=f"path must be .*, got {type(path).__name__}"):
        rs.Metrics(path)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileExistsError, match="file"):
        rs.Metrics(os.fspath(file))


def test_nothing_seen_is_not_done(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    for total in (metrics.totals(), metrics.totals("look")):
        assert (total.state, total.partitions, total.rows_out) == ("unknown", 0, 0)
    writer = write(metrics, 0, "running")
    assert metrics.totals("look").state == "running"
    writer.counters.state = "done"
    writer.write()
    total = metrics.totals("look")
    assert (total.state, total.partitions, total.rows_out) == ("done", 1, 10)
    assert metrics.totals("lokk").state == "unknown"


def test_runs_that_ended_share_the_file_of_their_process(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    writers = [write(metrics, partition, "running") for partition in range(50)]
    assert len(list(tmp_path.iterdir())) == 50
    for writer in writers[1:]:
        writer.counters.state = "done"
        writer.end()
    assert len(list(tmp_path.iterdir())) == 2
    assert [(run.partition, run.state) for run in metrics.read()] == [
        (partition, "done" if partition else "running") for partition in range(50)
    ]
    metrics.cleanup()
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_was_cut_takes_none_of_the_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk is full for a while: the run keeps its own file then."""
    metrics = rs.Metrics(tmp_path)
    writers = [write(metrics, partition, "done") for partition in range(3)]
    writers[0].end()
    (ended,) = tmp_path.glob("*.metrics.jsonl")
    with ended.open("ab") as file:
        file.write(b'{"stage": "look", "par')
    writers[2].end()
    assert sorted(run.partition for run in metrics.read()) == [0, 1, 2]
    monkeypatch.setattr(Path, "open", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    writers[1].end()
    monkeypatch.undo()
    assert sorted(run.partition for run in metrics.read()) == [0, 1, 2]


def test_a_run_whose_worker_was_killed_is_lost_and_its_calls_are_repeated_ones(
    tmp_path: Path,
) -> None:
    metrics = rs.Metrics(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for attempt, state, pid in ((0, "running", child.pid), (1, "done", os.getpid())):
        counters = Counters("look", "key")
        counters.spark_stage, counters.partition, counters.attempt = 1, 0, attempt
        counters.state, counters.calls, counters.pid = state, 100 + attempt, pid
        MetricsWriter(metrics, counters).write()
        if state == "running":
            assert metrics.totals().state == "running"
            child.kill()
            child.wait(DEADLINE)
            assert metrics.totals().state == "lost"
    total = metrics.totals()
    assert (total.state, total.calls, total.repeated_calls) == ("done", 101, 100)
    assert [run.state for run in metrics.read()] == ["lost", "done"]
