"""``python -m tests.spark.stream_kills``: kill streams that call a function, and write their rows.

Each job reads files or a Kafka topic, enriches the rows and writes them to PostgreSQL, on a
``local-cluster``. SIGKILLs hit its Python workers, executors and driver at random times; a killed
driver is started again, on the same checkpoint. The table must have each row of the source once.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from tests.spark.drivers import Driver, executors_among, workers_among
from tests.spark.kafka_server import KafkaServer
from tests.spark.postgres_server import PostgresServer

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = 3000
FILES: Final = 30
SOURCES: Final = ("files", "kafka")
KILLS_OF_A_JOB: Final = 5
KILLED: Final = ("worker", "worker", "executor", "driver")
PAUSE_SECONDS: Final = 5.0
"""The longest time between the first work of workers after a kill and the next kill."""

SECONDS: Final = 600.0
"""How long the table may have no new row after a kill."""

JOB: Final = f"""
import asyncio, os, sys
from pathlib import Path
import rstreams_fast.spark as rs
from tests.spark.conftest import session
from tests.spark.kafka_server import connector

directory, source, dsn, table, servers = Path(sys.argv[1]), *sys.argv[2:]
spark = session("local-cluster[2,1,1024]", {{
    **(connector() if source == "kafka" else {{}}),
    "spark.executor.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
    "spark.deploy.maxExecutorRetries": "-1",
}})

async def asked(k):
    await asyncio.sleep(0.02)
    return f"answer {{k}}"

policy = rs.Policy(
    timeout=30.0,
    retry=rs.Retry(3),
    cache=rs.Cache(),
    limit=rs.Limit(f"kills {{table}}", concurrency=4),
    journal=rs.Journal(directory / "journal", version="1"),
)
if source == "files":
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2)
    rows = stream.json(str(directory / "source"))
else:
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    stream = stream.option("subscribe", table).option("startingOffsets", "earliest")
    stream = stream.option("maxOffsetsPerTrigger", {2 * ROWS // FILES})
    rows = stream.load().selectExpr("cast(cast(value as string) as long) id")
answered = rows.transform(rs.enrich(policy(asked), on="id", output="text string"))
query = answered.writeStream.foreachBatch(rs.writer(rs.sinks.postgres(dsn, table)))
query = query.option("checkpointLocation", str(directory / "checkpoint"))
query.trigger(availableNow=True).start().awaitTermination()
os._exit(0)
"""


class Job:
    """One stream, from its first start to its end."""

    def __init__(
        self, folder: Path, source: str, table: str, servers: str, server: PostgresServer
    ) -> None:
        self._table, self._server = table, server
        self.kills = Counter[str]()
        self.driver = Driver(JOB, folder, folder, source, server.dsn, table, servers)

    def run(self, kills: int, chance: random.Random) -> None:
        """Run the job to its end, with at most so many ``kills``; check its table."""
        rows, since = 0, time.monotonic()
        due: float | None = None
        while self.driver.runs:
            time.sleep(0.1)
            now = time.monotonic()
            ((found,),) = self._server.ask(f"select count(*) from {self._table}")
            if found > rows:
                rows, since = found, now
            assert now < since + SECONDS, f"no new row: {self.driver.errors()}"
            if self.kills.total() == kills:
                continue
            if due is None:
                # A driver may take minutes to start. Kills that did not wait for its workers
                # would all hit a driver that has not written a row yet.
                if workers_among(self.driver.processes()):
                    due = now + chance.uniform(0, PAUSE_SECONDS)
            elif now >= due and self._kill(chance):
                since, due = now, None
        self.driver.check()
        found_rows = self._server.ask(f"select id, text from {self._table} order by id")
        assert found_rows == [(k, f"answer {k}") for k in range(ROWS)], f"{len(found_rows)} rows"

    def _kill(self, chance: random.Random) -> bool:
        """Kill a process of the job; ``False`` while no Python worker is at work."""
        processes = self.driver.processes()
        if not (found := workers_among(processes)):
            return False
        what = chance.choice(KILLED)
        if what == "driver":
            self.driver.kill()
        else:
            if what == "executor":
                found = executors_among(processes)
            with suppress(psutil.NoSuchProcess):
                chance.choice(found).send_signal(signal.SIGKILL)
        self.kills[what] += 1
        return True


def soak(kills: int, seed: str) -> dict[str, Any]:
    """Run jobs over both sources until there were so many kills; return what was seen."""
    chance, told = random.Random(seed), dict.fromkeys(SOURCES, 0)
    total = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="rstreams-streams-") as made:
        folder = Path(made)
        (folder / "kafka").mkdir()
        with PostgresServer() as server, KafkaServer(folder / "kafka") as kafka:
            while total.total() < kills:
                source = SOURCES[sum(told.values()) % len(SOURCES)]
                table = f"{source}{told[source]}"
                place = folder / table
                fill(place / "source")
                if source == "kafka":
                    kafka.send(table, map(str, range(ROWS)))
                server.ask(f"create table {table} (id bigint, text text)")
                job = Job(place, source, table, kafka.servers, server)
                try:
                    job.run(min(KILLS_OF_A_JOB, kills - total.total()), chance)
                finally:
                    job.driver.end()
                total += job.kills
                told[source] += 1
                print(table, dict(job.kills), f"of {total.total()} kills", flush=True)
                assert job.kills, "a job ended before it was killed"
    return {"jobs": told, "kills": dict(total)}


def fill(folder: Path) -> None:
    """Write the rows of a source as files."""
    folder.mkdir(parents=True)
    for file in range(FILES):
        lines = [json.dumps({"id": k}) for k in range(file, ROWS, FILES)]
        (folder / f"{file}.json").write_text("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.spark.stream_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    words = parser.parse_args()
    print(f"seed {words.seed}", flush=True)
    print(json.dumps(soak(words.kills, words.seed)))
