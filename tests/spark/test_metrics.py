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
from rstreams_fast.spark.runs import declare, process_of
from rstreams_fast.spark.worker.counters import Counters, MetricsWriter
from tests.helpers import DEADLINE, run_python, start_thread, wait_until
from tests.spark.processes import OtherProcess
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


def test_partitions_that_have_ended_hold_nothing(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    held = dict.fromkeys(("running", "pending", "buffered_rows", "buffered_bytes"), 7)
    for partition, state in enumerate(("stopped", "failed", "running")):
        write(metrics, partition, state, **held)
    total = metrics.totals()
    assert {name: getattr(total, name) for name in held} == held
    assert total.rows_out == 30


def test_a_declared_stage_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    declare(tmp_path, "len")
    (tmp_path / "0.metrics.stage").touch()  # as on a full disk
    (tmp_path / "1.metrics.stage").write_bytes("é".encode()[:1])
    (tmp_path / "2.metrics.stage").symlink_to(tmp_path / "removed")
    assert metrics.stages() == ["len"]
    assert metrics.totals().state == "never ran"


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


# -- what has ended is added up --------------------------------------------------------------------
def end(metrics: rs.Metrics, state: str = "done", **words: Any) -> Counters:
    """Have a run end, as a worker does."""
    counters = Counters("look", "key")
    vars(counters).update({"attempts": 10, "rows_out": 7, "state": state, "seconds": 0.0, **words})
    counters.count_latency(0.001, 10)
    writer = MetricsWriter(metrics, counters)
    writer.write()
    if state != "running":
        writer.end()
    return counters


def test_what_has_ended_is_added_up_by_the_same_rules(tmp_path: Path) -> None:
    """Micro-batches of four partitions: one fails at first, a copy is killed, a task has two."""
    metrics, batches = rs.Metrics(tmp_path), 500
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        lost = {"pid": gone.pid, "process": process_of(gone.pid)}
        gone.wait(DEADLINE)
    task = 0
    for batch in range(batches):
        for partition in range(4):
            task += 3
            place = {"spark_stage": 3 * batch, "partition": partition}
            if partition == 1 and batch % 20 == 0:
                end(metrics, "failed", **place, task=task, max_running=9)
            if partition == 2 and batch % 20 == 0:
                end(metrics, "running", **place, task=task + 2, attempt=1, **lost)
            if partition == 3:  # as with coalesce
                end(metrics, **place, task=task + 1)
            end(metrics, **place, task=task + 1, max_running=3)
    running = end(metrics, "running", spark_stage=3 * batches, task=task + 9)
    total, by_stage = metrics.totals(), metrics.by_stage()["look"]
    assert total == by_stage
    assert (total.partitions, total.rows_out) == (5 * batches + 1, 7 * (5 * batches + 1))
    assert (total.attempts, total.repeated_attempts) == (10 * (5 * batches + 1), 10 * batches // 10)
    assert (total.state, total.max_running) == ("running", 3)
    assert sum(total.latencies.values()) == total.attempts
    assert len(metrics.read()) < 100
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 200_000
    late = end(metrics, "failed", spark_stage=3 * batches - 3, partition=0, task=task + 8)
    assert metrics.totals().repeated_attempts == total.repeated_attempts + late.attempts
    assert metrics.totals().partitions == total.partitions
    MetricsWriter(metrics, running).end()
    metrics.cleanup()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", ["done", "stopped"])
def test_all_runs_of_a_task_with_many_partitions_count(tmp_path: Path, state: str) -> None:
    """As with ``coalesce``, or with a limit before it: a task has more runs than are kept."""
    metrics, runs = rs.Metrics(tmp_path), 400
    place = {"spark_stage": 1, "partition": 0, "task": 7}
    for _ in range(runs):
        end(metrics, state, **place)
    total = metrics.totals()
    assert (total.state, total.partitions, total.rows_out) == (state, runs, 7 * runs)
    for task in range(8, 8 + 64):  # later tasks, so that the first one's runs are added up
        end(metrics, state, spark_stage=1, partition=task, task=task)
    total = metrics.totals()
    assert (total.partitions, total.rows_out) == (runs + 64, 7 * (runs + 64))
    assert (total.attempts, total.repeated_attempts) == (10 * (runs + 64), 0)


ENDING = """
import sys
import rstreams_fast.spark as rs
from tests.spark.test_metrics import end

metrics = rs.Metrics(sys.argv[1])
for line in sys.stdin:
    for _ in range(int(line)):
        end(metrics, spark_stage=1, partition=0, task=7)
    print("ended", flush=True)
"""


def test_a_task_of_another_process_goes_on_after_its_runs_are_added_up(tmp_path: Path) -> None:
    """While this process adds up, the task of the other one is between two of its partitions."""
    metrics = rs.Metrics(tmp_path)

    def check(runs: int) -> None:
        total = metrics.totals()
        assert (total.partitions, total.rows_out) == (runs, 7 * runs)
        assert total.repeated_attempts == 0

    with OtherProcess(ENDING, str(tmp_path)) as other:
        assert other.tell(40) == "ended"
        for _ in range(40):
            end(metrics, spark_stage=1, partition=1, task=8)
        check(80)
        assert other.tell(40) == "ended"
        check(120)
    for _ in range(40):
        end(metrics, spark_stage=1, partition=1, task=8)
    check(160)


@pytest.mark.slow
def test_files_of_processes_that_are_gone_are_added_up(tmp_path: Path) -> None:
    """As where each task has its own process; one that dies while it does so harms nothing."""
    script = (
        "import sys; from tests.spark.test_metrics import end; import rstreams_fast.spark as rs;"
        "end(rs.Metrics(sys.argv[1]), spark_stage=1, partition=int(sys.argv[2]), task=7)"
    )
    metrics = rs.Metrics(tmp_path)
    for partition in range(3):
        run_python("-c", script, str(tmp_path), str(partition))
    ended = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(ended) == 3
    for copy in range(1, 6):  # as of more processes
        for name, content in ended.items():
            text = content.decode().replace('"run": "', f'"run": "{copy}')
            text = text.replace('"spark_stage": 1', f'"spark_stage": {copy + 1}')
            (tmp_path / f"{socket.gethostname()}-{copy}{name}").write_text(text)
    assert len(metrics.read()) == 18
    end(metrics, spark_stage=9, task=8)
    assert len(list(tmp_path.iterdir())) == 2  # the sums, and their lock
    assert (metrics.totals().partitions, metrics.totals().rows_out) == (19, 7 * 19)
    for name, content in ended.items():  # it was killed before it removed them
        (tmp_path / name).write_bytes(content)
    assert (metrics.totals().partitions, metrics.totals().repeated_attempts) == (19, 0)
