"""The directory of metrics, and what its files add up to. Needs no Spark."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.runs import process_of
from tests.helpers import DEADLINE, start_thread, wait_until
from tests.spark.stages import K, parts, values


def write(metrics: rs.Metrics, partition: int, state: str, **more: Any) -> Path:
    """Write the file of a run, as a worker does."""
    run = uuid.uuid4().hex
    found = rs.StageMetrics(
        stage="look",
        key="key",
        spark_stage=1,
        partition=partition,
        attempt=0,
        run=run,
        host=socket.gethostname(),
        pid=os.getpid(),
        process=process_of(os.getpid()),
        state=state,
        rows_out=10,
        started=time.time(),
        updated=time.time(),
    )
    file = Path(metrics.path) / f"key-{run}.metrics.json"
    file.write_text(json.dumps({**asdict(found), **more}))
    return file


def stage_of(metrics: rs.Metrics) -> Iterator[Any]:
    """Return what one run of a stage gives, which has not begun."""
    return rs.map_batches(lambda batch: batch, K, metrics=metrics).as_map_fn()(iter(parts(4, 2)))


def test_a_call_that_is_not_answered_shows_while_it_runs(tmp_path: Path) -> None:
    metrics, go_on = rs.Metrics(tmp_path), threading.Event()

    def look(k: int) -> int:
        assert k < 3000 or go_on.wait(DEADLINE)
        return k

    look_up = rs.lookup(look, pa.int64(), concurrency=2, metrics=metrics)
    running = start_thread(lambda: values(look_up, range(3001)))
    wait_until(lambda: metrics.totals().rows_out >= 2000, "the first rows")
    wait_until(lambda: metrics.totals().running == 1, "the stalled call")
    assert metrics.totals().state == "running"
    go_on.set()
    assert running.result() == list(range(3001))
    assert metrics.totals().state == "done"


@pytest.mark.parametrize("state", ["done", "running"])
def test_several_runs_in_one_task_add_up(tmp_path: Path, state: str) -> None:
    """As where ``coalesce`` gives it several partitions, or a plan has the same stage twice."""
    metrics = rs.Metrics(tmp_path)
    for task, last in ((7, "running"), (9, state)):  # the second attempt, and its number of retries
        for run in range(3):
            write(metrics, 0, last if run == 2 else "done", attempt=task - 7, task=task)
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


def test_the_current_directory_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with rs.Metrics("."):
        pass
    assert tmp_path.exists()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileExistsError, match="file"):
        rs.Metrics(os.fspath(file))


def test_nothing_seen_is_not_done(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    for total in (metrics.totals(), metrics.totals("look")):
        assert (total.state, total.partitions, total.rows_out) == ("unknown", 0, 0)
    file = write(metrics, 0, "running")
    assert metrics.totals("look").state == "running"
    file.unlink()
    write(metrics, 0, "done")
    total = metrics.totals("look")
    assert (total.state, total.partitions, total.rows_out) == ("done", 1, 10)
    assert metrics.totals("lokk").state == "unknown"


def test_runs_that_ended_share_the_file_of_their_process(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    running = stage_of(metrics)
    next(running)
    for _ in range(30):
        assert len(list(stage_of(metrics))) == 2
    assert len(list(tmp_path.iterdir())) == 2
    assert [run.state for run in metrics.read()] == ["running"] + ["done"] * 30
    assert len(list(running)) == 1
    assert [run.rows_out for run in metrics.read()] == [4] * 31
    metrics.cleanup()
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_was_cut_takes_none_of_the_others_with_it(tmp_path: Path) -> None:
    """As when the disk is full for a while: the run keeps its own file then."""
    metrics = rs.Metrics(tmp_path)
    list(stage_of(metrics))
    (ended,) = tmp_path.iterdir()
    with ended.open("ab") as file:
        file.write(b'{"stage": "look", "par')
    list(stage_of(metrics))
    assert len(metrics.read()) == 2
    aside = ended.rename(tmp_path / "aside")
    ended.mkdir()
    list(stage_of(metrics))
    ended.rmdir()
    aside.rename(ended)
    assert [run.state for run in metrics.read()] == ["done"] * 3


def test_a_run_whose_worker_was_killed_is_lost_and_its_calls_are_repeated_ones(
    tmp_path: Path,
) -> None:
    metrics = rs.Metrics(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for attempt, state, pid in ((0, "running", child.pid), (1, "done", os.getpid())):
        words = {"attempt": attempt, "attempts": 100 + attempt, "pid": pid}
        write(metrics, 0, state, process=process_of(pid), **words)
        if state == "running":
            assert metrics.totals().state == "running"
            child.kill()
            child.wait(DEADLINE)
            assert metrics.totals().state == "lost"
    total = metrics.totals()
    assert (total.state, total.attempts, total.repeated_attempts) == ("done", 101, 100)
    assert [run.state for run in metrics.read()] == ["lost", "done"]


def test_files_of_other_versions_and_other_things_take_no_figures_with_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = rs.Metrics(tmp_path)
    content = json.loads(write(metrics, 0, "done").read_text())
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
    assert found.keys() == {"newer", "retyped", "older", content["run"]}
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
    file = write(metrics, 0, "running")
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


def test_of_a_speculative_copy_and_its_original_the_one_that_is_done_counts(tmp_path: Path) -> None:
    """The loser is killed, and its last word stays "running"."""
    metrics = rs.Metrics(tmp_path)
    for attempt, state, rows in ((0, "done", 100), (1, "running", 30)):
        write(metrics, 0, state, attempt=attempt, rows_out=rows)
    assert len(metrics.read()) == 2
    total = metrics.totals()
    assert (total.state, total.rows_out) == ("done", 100)
