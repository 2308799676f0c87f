"""``python -m tests.spark.postgres_kills``: kill what writes to PostgreSQL; each row is there once.

A driver on a standalone cluster writes one table after the other: with ``write`` (``batch``), with
``writer`` in ``foreachBatch`` over files (``stream``), and with ``write`` under
``spark.speculation`` (``race``). SIGKILLs hit Python workers, executors and the driver at random
times; a killed driver is started again, and goes on with the same job and checkpoint. Each write is
repeated after its end. Each table must have exactly the rows of its source, and nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from tests.spark.cluster import Cluster, marked
from tests.spark.drivers import Driver, executors_among, workers_among
from tests.spark.postgres_server import PostgresServer

ROWS: Final = 1200
FILES: Final = 4
KINDS: Final = ("batch", "stream", "race")
KILLED: Final = ("worker", "worker", "executor", "driver")
KILLS_OF_A_RUN: Final = 2
SECONDS: Final = 600
"""How long a run may take, kills included."""

JOB: Final = f"""
import json, os, random, shutil, sys, time
from pathlib import Path
from pyspark import TaskContext
import rstreams_fast.spark as rs
from tests.spark.conftest import session

directory, kind, runs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dsn, master = sys.argv[4:]
spark = session(master, {{
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "1000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    "spark.speculation": str(kind == "race").lower(),
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
}})

def slow(batches):
    context = TaskContext.get()
    part, attempt = context.partitionId(), context.attemptNumber()
    aside = directory / f"attempt-{{kind}}-{{part}}-{{attempt}}"
    aside.touch()
    held = random.choice([0.1, 0.4, 30]) if kind == "race" and part == 0 and attempt == 0 else 0
    for number, batch in enumerate(batches):
        time.sleep(0.03 + held * (number == 2))
        yield batch

def written(run):
    rows = "id long, text string"
    mode = {{}} if run % 4 else {{"mode": "upsert", "key": "id"}}
    sink = rs.sinks.postgres(dsn, f"{{kind}}.t{{run}}", **mode)
    if kind != "stream":
        frame = spark.range(0, {ROWS}, 1, 4).selectExpr("id", "concat('row ', id) text")
        return [rs.write(frame.mapInArrow(slow, rows), sink, job=f"{{kind}} {{run}}")]
    reports, writer = [], rs.writer(sink)
    def told(frame, number):
        writer(frame.mapInArrow(slow, rows), number)
        reports.append(writer.report)
    checkpoint = directory / f"checkpoint{{run}}"
    if checkpoint.exists() and not list(checkpoint.glob("offsets/[0-9]*")):
        shutil.rmtree(checkpoint)  # Spark refuses it: the driver was killed at the first offset
    source = spark.readStream.schema(rows).option("maxFilesPerTrigger", 2)
    query = source.json(str(directory / "source")).writeStream.foreachBatch(told)
    query.option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    return reports

for run in range(runs):
    done = directory / f"done-{{kind}}-{{run}}"
    if done.exists():
        continue
    while run and not (directory / f"checked-{{kind}}-{{run - 1}}").exists():
        time.sleep(0.01)  # the check would find the staging table of this run
    (directory / f"at-{{kind}}-{{run}}").touch()
    reports = written(run)
    if commits := list((directory / f"checkpoint{{run}}" / "commits").glob("[0-9]*")):
        latest = max(commits, key=lambda commit: int(commit.name))
        latest.with_name(f".{{latest.name}}.crc").unlink(missing_ok=True)
        latest.unlink()  # so the latest batch is repeated
    again = written(run)
    assert [report.repeated for report in again] == [True], again
    done.with_suffix(".new").write_text(str(sum(report.repeated for report in reports)))
    done.with_suffix(".new").rename(done)
os._exit(0)
"""


class Runs:
    """All runs of a kind, on one cluster and one server."""

    def __init__(
        self, kind: str, folder: Path, cluster: Cluster, server: PostgresServer, seed: str
    ) -> None:
        self._kind, self._folder, self._cluster, self._server = kind, folder, cluster, server
        self._chance = random.Random(f"{seed} {kind}")
        self.kills = Counter[str]()
        self.hit = 0
        self.found_committed = 0
        """Writes that were repeated since their driver was killed after the commit."""

    def run(self, runs: int) -> None:
        kind, chance = self._kind, self._chance
        self._server.ask(f"create schema {kind}")
        for run in range(runs):
            index = "primary key" if run % 4 == 0 else ""
            self._server.ask(f"create table {kind}.t{run} (id bigint {index}, text text)")
            self._server.ask(
                f"create trigger slow after insert on {kind}.t{run} execute function pause()"
            )
        words = (kind, runs, self._server.dsn, self._cluster.master)
        driver = Driver(
            JOB, self._folder, self._folder, *words, environment=self._cluster.environment
        )
        usual = 4.0  # seconds of a run, adapted to the runs that are seen
        try:
            for run in range(runs):
                at, done = (self._folder / f"{what}-{kind}-{run}" for what in ("at", "done"))
                deadline = time.monotonic() + SECONDS
                plan: list[float] | None = None
                begun, killed = 0.0, 0
                while not done.exists():
                    assert time.monotonic() < deadline, f"run {run} has no end: {driver.errors()}"
                    time.sleep(0.01)
                    driver.check()
                    if plan is None:
                        if not at.exists():
                            continue
                        begun = time.monotonic()
                        many = chance.randint(1, KILLS_OF_A_RUN)
                        plan = sorted(chance.uniform(0, usual) for _ in range(many))
                    if not plan or time.monotonic() < begun + plan[0]:
                        continue
                    del plan[0]
                    what = chance.choice(KILLED)
                    if what == "driver":
                        driver.kill()
                    elif not self._kill(what):
                        continue
                    self.kills[what] += 1
                    killed += 1
                if not killed:
                    usual = 0.7 * usual + 0.3 * (time.monotonic() - begun)
                self.hit += bool(killed)
                self.found_committed += int(done.read_text())
                self._check(run)
                (self._folder / f"checked-{kind}-{run}").touch()
            driver.wait(60)
        except BaseException:
            print(driver.errors(), file=sys.stderr)
            raise
        finally:
            driver.end()

    def _kill(self, what: str) -> bool:
        among = workers_among if what == "worker" else executors_among
        found = among(marked(self._cluster.mark))
        if not found:
            return False
        with suppress(psutil.NoSuchProcess):
            self._chance.choice(found).send_signal(signal.SIGKILL)
            return True
        return False

    def _check(self, run: int) -> None:
        """Check what is in the schema of this kind, after a run."""
        kind, ask = self._kind, self._server.ask
        rows = ask(f"select id, text from {kind}.t{run} order by id")
        assert rows == [(k, f"row {k}") for k in range(ROWS)], f"run {run}: {len(rows)} rows"
        left = ask(
            f"select tablename from pg_tables where schemaname = '{kind}' "
            "and tablename ~ '^rstreams_.*_'"
        )
        assert not left, f"run {run} has left {left}"
        if run == 0:  # the ledger is there now: from here on commits take their time
            ask(
                f"create constraint trigger slow after insert on {kind}.rstreams_ledger "
                "deferrable initially deferred for each row execute function pause()"
            )


def soak(runs: dict[str, int], seed: str) -> dict[str, Any]:
    """Run so many runs of each kind; return what was seen."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rstreams-postgres-") as made:
        folder = Path(made)
        for name in ("cluster", "source"):
            (folder / name).mkdir()
        size = ROWS // FILES
        for file in range(FILES):
            lines = [
                json.dumps({"id": k, "text": f"row {k}"})
                for k in range(size * file, size * file + size)
            ]
            (folder / "source" / f"{file}.json").write_text("\n".join(lines))
        with PostgresServer() as server:
            server.ask(
                "create function pause() returns trigger language plpgsql as "
                "$$ begin perform pg_sleep(0.3 * random()); return null; end $$"
            )
            cluster = Cluster(folder / "cluster")
            try:
                for kind, many in runs.items():
                    seen = Runs(kind, folder, cluster, server, seed)
                    begin = time.monotonic()
                    seen.run(many)
                    told[kind] = {
                        "runs": many,
                        "hit": seen.hit,
                        "kills": dict(seen.kills),
                        "found committed": seen.found_committed,
                        "seconds": round(time.monotonic() - begin),
                    }
                    print(kind, json.dumps(told[kind]), flush=True)
                if runs.get("race"):
                    assert (folder / "attempt-race-0-1").exists(), "no task had a second attempt"
            finally:
                cluster.close()
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.postgres_kills", description=__doc__
    )
    for kind, many in zip(KINDS, (50, 50, 10), strict=True):
        parser.add_argument(f"--{kind}", type=int, default=many, help="runs of this kind")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    words = parser.parse_args()
    print(f"seed {words.seed}, process {os.getpid()}", flush=True)
    soak({kind: getattr(words, kind) for kind in KINDS if getattr(words, kind)}, words.seed)
