"""``python -m tests.spark.stream_soak``: thousands of tiny micro-batches, and nothing may grow.

A stream calls a function with every word of a policy that has a state, before ``foreachBatch``, in
it with a policy made anew for each batch, and in a sink. Memory, threads, file descriptors and
files of the driver and the workers are sampled; the last third must not be above the second. A
control runs first: a stream with a plain function. The JVM must have no more threads and file
descriptors than the control's.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa

import rstreams_fast.spark as rs

SAMPLE_SECONDS: Final = 2.0
ROWS: Final = 8
"""Rows of a micro-batch."""

FOLDERS: Final = ("metrics", "journal", "checkpoint", "tmp")

KEYS: Final = 5000
"""Different keys: the caches and the journal are full at last."""

GROWS: Final = {"MB": (1.05, 4.0), "threads": (1.0, 1.0), "fds": (1.0, 2.0), "files": (1.1, 10.0)}
"""By which factor, and how much more, a figure may be above that of the second third."""

SAWTOOTH: Final = {"journal files": 1500}
"""What grows until it is merged, and its bound."""

FEWEST_SAMPLES: Final = 10
"""Of a third of the run."""

OF_SPARK: Final = {"JVM threads": 20.0, "JVM fds": 20.0}
"""How much a figure may be above the largest of the control."""

CONTROL_SAMPLES: Final = 10
"""The control ends after so many samples without a new largest figure."""

FILLS: Final = "block-manager-"
"""The threads of Spark's block managers are not counted: Spark starts 200 of them, but as fast as
the machine is."""


async def asked(k: int) -> str:
    if k % 5 == 0:
        await asyncio.sleep(0.002)
    if k % 97 == 0:
        raise OSError("down")
    return f"answer {k}"


async def asked_in_lists(keys: list[int]) -> list[str]:
    await asyncio.sleep(0.002)
    if 0 in keys:
        raise OSError("down")
    return [f"answer {k}" for k in keys]


async def sent(rows: list[dict[str, Any]]) -> None:
    await asyncio.sleep(0.002)


def policy(name: str, scope: Any, **words: Any) -> rs.Policy:
    """Return a policy with every word that has a state."""
    return rs.Policy(
        timeout=5.0,
        retry=rs.Retry(1, backoff=0.001, budget=0.5),
        circuit=rs.Circuit(failures=0.9, reset=0.1),
        limit=rs.Limit(f"soak {name}", concurrency=8, rate=100_000, scope=scope),
        cache=rs.Cache(entries=500, failure_ttl=1.0),
        **words,
    )


class Stages:
    """The stages of the stream; the one in ``foreachBatch`` is made anew for each micro-batch."""

    def __init__(self, folder: Path, scope: Any) -> None:
        self._scope = scope
        self.metrics = rs.Metrics(folder / "metrics")
        self._folder = folder
        budget = rs.Budget("soak", calls=10**9, scope="job" if scope == "job" else "process")
        shared = policy("stages", scope, journal=self.journal(), budget=budget)
        self.before = self._enriched(shared, "text", metrics=self.metrics)

    def journal(self) -> rs.Journal:
        return rs.Journal(self._folder / "journal", version="1", max_bytes=1 << 20)

    def inside(self) -> Any:
        around = policy("inside", self._scope, journal=self.journal())
        return self._enriched(around, "again", batch=4)

    def _enriched(self, around: rs.Policy, name: str, **words: Any) -> Any:
        output = pa.schema([(name, pa.string())])
        fn = asked_in_lists if "batch" in words else asked
        return rs.enrich(around(fn), on="k", output=output, on_failure="null", **words)


def plain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do what the stages do, as a plain function that keeps nothing."""
    for batch in batches:
        time.sleep(0.002)
        yield batch


def in_spark(seconds: float, folder: Path) -> Iterator[dict[str, float]]:
    """Run the control, then a stream for so many seconds; yield samples."""
    from tests.spark.conftest import session

    spark = session(
        conf={
            "spark.sql.streaming.minBatchesToRetain": "2",
            "spark.sql.streaming.numRecentProgressUpdates": "10",
            "spark.sql.shuffle.partitions": "1",
            "spark.ui.showConsoleProgress": "false",
            "spark.ui.retainedJobs": "10",
            "spark.ui.retainedStages": "10",
            "spark.ui.retainedTasks": "100",
            "spark.sql.ui.retainedExecutions": "1",
        }
    )
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    rows = source.option("numPartitions", 1).load().selectExpr(f"value * 7919 % {KEYS} k")

    stages = Stages(folder, "job")
    around = rs.Policy(retry=rs.Retry(1), journal=stages.journal())
    writer = rs.writer(around(sent), metrics=stages.metrics)

    def write(frame: Any, number: int) -> None:
        writer(frame.transform(stages.inside()), number)

    try:
        control = control_of(rows, folder)
        query = rows.transform(stages.before).writeStream.foreachBatch(write)
        end = time.monotonic() + seconds
        with closing(samples_of(query, folder)) as samples:
            for sample in samples:
                yield {**sample, **control}
                if time.monotonic() > end:
                    break
        assert stages.metrics.totals().state in ("done", "running")
    finally:
        stages.metrics.cleanup()
        spark.stop()


def control_of(rows: Any, folder: Path) -> dict[str, float]:
    """Run the control until its figures are the largest; return these."""

    def write(frame: Any, _: int) -> None:
        frame.mapInArrow(plain, frame.schema).collect()

    query = rows.mapInArrow(plain, rows.schema).writeStream.foreachBatch(write)
    most, since = dict.fromkeys(OF_SPARK, 0.0), 0
    with closing(samples_of(query, folder)) as samples:
        while since < CONTROL_SAMPLES:
            sample, since = next(samples), since + 1
            for name in most:
                if sample[name] > most[name]:
                    most[name], since = sample[name], 0
    return {f"{name}, control": figure for name, figure in most.items()}


def samples_of(query: Any, folder: Path) -> Generator[dict[str, float], None, None]:
    """Run a query until the generator is closed; yield samples."""
    checkpoint = tempfile.mkdtemp(dir=folder / "checkpoint")
    running = query.option("checkpointLocation", checkpoint).start()
    try:
        while True:
            time.sleep(SAMPLE_SECONDS)
            if (failed := running.exception()) is not None:
                raise failed
            if (progress := running.lastProgress) is not None:
                yield {"batches": progress["batchId"], **measured(folder)}
    finally:
        running.stop()


def in_a_worker(seconds: float, folder: Path) -> Iterator[dict[str, float]]:
    """Run the partitions of micro-batches in this process, as a worker does; yield samples."""
    stages = Stages(folder, "executor")
    begin = sampled = time.monotonic()
    for number in itertools.count():
        if (now := time.monotonic()) > begin + seconds:
            break
        if now > sampled + seconds / 60:
            sampled = now
            yield {"batches": number, **measured(folder)}
        keys = [k * 7919 % KEYS for k in range(number * ROWS, (number + 1) * ROWS)]
        batches = iter([pa.RecordBatch.from_pydict({"k": keys})])
        outputs = list(stages.inside().as_map_fn()(stages.before.as_map_fn()(batches)))
        assert [k for output in outputs for k in output.column(0).to_pylist()] == keys
    assert stages.metrics.totals().partitions == number
    stages.metrics.cleanup()


def measured(folder: Path) -> dict[str, float]:
    """Measure the driver's Python, the JVM, the largest of the workers, and all files."""
    found: dict[str, float] = defaultdict(float)
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            figures: dict[str, float] = {"threads": threads_of(process), "fds": process.num_fds()}
            if process.name() == "java":
                kind = "JVM"
            elif process.name().startswith("python"):
                kind = "driver" if process.pid == os.getpid() else "worker"
                figures["MB"] = process.memory_full_info().uss / 1e6
            else:  # what the JVM starts for a moment has the JVM's file descriptors
                continue
            for name, figure in figures.items():
                found[f"{kind} {name}"] = max(found[f"{kind} {name}"], figure)
    for name in FOLDERS:
        places = os.walk(folder / name)
        found[f"{name} files"] = sum(len(folders) + len(files) for _, folders, files in places)
    return dict(found)


def threads_of(process: psutil.Process) -> int:
    """Count the threads of a process, without those that Spark's block managers start."""
    found = 0
    for path in Path(f"/proc/{process.pid}/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended
            found += not path.read_text().startswith(FILLS)
    return found


def judge(samples: list[dict[str, float]]) -> None:
    """Print each figure, by its least in the second and in the last third; fail if it grows.

    A sample may be taken while a task runs, or between two tasks. The least figure is the same
    however busy the machine is, and it rises if something is left behind.
    """
    third = len(samples) // 3
    assert third >= FEWEST_SAMPLES, f"only {len(samples)} samples"
    names = [name for name in samples[-1] if name not in ("seconds", "batches")]
    told, grown = {}, []
    for name in names:
        parts = (samples[third : 2 * third], samples[2 * third :])
        second, last = (min(one.get(name, 0) for one in part) for part in parts)
        told[name] = round(second, 1), round(last, 1)
        factor, more = GROWS.get(name.split()[-1], (1.0, 2.0))
        if name in OF_SPARK:
            if last > samples[-1][f"{name}, control"] + OF_SPARK[name]:
                grown.append(name)
        elif name in SAWTOOTH:
            if max(one.get(name, 0) for one in samples) > SAWTOOTH[name]:
                grown.append(name)
        elif last > factor * second + more:
            grown.append(name)
    print(f"{samples[-1]['batches']:.0f} micro-batches in {samples[-1]['seconds']:.0f} s")
    print("\n".join(f"{name}: {second} -> {last}" for name, (second, last) in told.items()))
    assert not grown, f"these grow: {grown}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.stream_soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--worker", action="store_true", help="the worker alone, without Spark")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rstreams-soak-") as made:
        for name in FOLDERS:
            (Path(made) / name).mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(Path(made) / "tmp")
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        begin, samples = time.monotonic(), []
        for sample in (in_a_worker if words.worker else in_spark)(words.seconds, Path(made)):
            samples.append({"seconds": time.monotonic() - begin, **sample})
            print(json.dumps(samples[-1]), file=sys.stderr, flush=True)
        judge(samples)


if __name__ == "__main__":
    main()
