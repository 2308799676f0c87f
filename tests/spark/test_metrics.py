"""The directory of metrics, and what its files add up to. Needs no Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.metrics import process_of
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
        counters.process = process_of(pid)
        MetricsWriter(metrics, counters).write()
        if state == "running":
            assert metrics.totals().state == "running"
            child.kill()
            child.wait(DEADLINE)
            assert metrics.totals().state == "lost"
    total = metrics.totals()
    assert (total.state, total.calls, total.repeated_calls) == ("done", 101, 100)
    assert [run.state for run in metrics.read()] == ["lost", "done"]


def test_files_of_other_versions_and_other_things_take_no_figures_with_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = rs.Metrics(tmp_path)
    writer = write(metrics, 0, "done")
    (file,) = tmp_path.iterdir()
    content = json.loads(file.read_text())
    others = [
        {**content, "run": "newer", "invented": [1], "calls": 3},
        {**content, "run": "retyped", "calls": {"made": 3}, "started": 1, "partition": 2},
        {"run": "older"},
    ]
    for other in others:
        (tmp_path / f"{other['run']}.metrics.json").write_text(json.dumps(other))
    (tmp_path / "list.metrics.json").write_text("[1]\n5\nnull")
    (tmp_path / "bytes.metrics.json").write_bytes(b"\xff\xfe")
    (tmp_path / "folder.metrics.json").mkdir()
    found = {run.run: run for run in metrics.read()}
    assert found.keys() == {"newer", "retyped", "older", writer.counters.run}
    assert [found[run].calls for run in ("newer", "retyped", "older")] == [3, 0, 0]
    assert found["retyped"].started == 1
    assert metrics.totals("look").rows_out == 30
    (record,) = caplog.records  # though it was read twice
    assert "folder.metrics.json is left out" in record.getMessage()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "running"),
        ({"start": "1"}, "lost"),  # the number is another process's now
        ({"namespace": "pid:[1]", "pid": "dead"}, "running"),  # a container's: nobody knows
        ({"pid": "dead"}, "lost"),
        ({"boot": "other", "updated": 1.0}, "lost"),  # before this machine was started
        ({"boot": "other", "pid": "dead"}, "running"),  # another machine of this name
    ],
)
def test_a_process_is_lost_if_it_is_known_to_be_gone(
    change: dict[str, Any], state: str, tmp_path: Path
) -> None:
    metrics = rs.Metrics(tmp_path)
    write(metrics, 0, "running")
    (file,) = tmp_path.iterdir()
    content = json.loads(file.read_text())
    boot, namespace, start = content["process"].split(" ")
    places = {"boot": boot, "namespace": namespace, "start": start}
    content["process"] = " ".join(change.get(place, value) for place, value in places.items())
    content["updated"] = change.get("updated", content["updated"])
    if "pid" in change:
        with subprocess.Popen([sys.executable, "-c", ""]) as gone:
            gone.wait(DEADLINE)
        content["pid"] = gone.pid
    file.write_text(json.dumps(content))
    assert metrics.totals().state == state


def test_processes_of_one_number_in_two_containers_have_files_of_their_own(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    for namespace in ("pid:[1]", "pid:[2]"):
        writer = write(metrics, 0, "done")
        writer.counters.process = f"boot {namespace} 7"
        writer.end()
    assert len(list(tmp_path.iterdir())) == 2
