"""``python -m tests.spark.sink_kills``: kill the workers of a job that writes to a limited service.

The service takes so many rows a second, answers 429 beyond that, and fails one row of fifty at
first. Workers of the job are killed at random times. The service must have each row, under the id
that the undisturbed job gives it, and must be used to 0.95 outside of two seconds after a kill.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.spark.drivers import Driver, workers_among
from tests.spark.http_service import HttpService

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = 200_000
RATE: Final = 300
KILLS: Final = 20
PARTITIONS: Final = 8
FAILS: Final = 0.02
USED: Final = 0.95
AFTER_A_KILL: Final = 2.0

JOB: Final = """
import dataclasses, json, os, sys
from pathlib import Path
import rstreams_fast.spark as rs
from tests.spark.conftest import session

directory, url, rows, rate, partitions = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
spark = session("local[2,1000]")
frame = spark.range(0, rows, 1, partitions).selectExpr("id n", "concat('row ', id) text")
policy = rs.Policy(
    timeout=30.0,
    retry=rs.Retry(20, backoff=0.05),
    limit=rs.Limit(
        f"sink {directory.name}",
        units={"rows": rs.per_second(rate)},
        weigh=lambda *row: 1,
    ),
    journal=rs.Journal(directory / "journal", version="1"),
)

def results(answer, rows):
    return [None if status == 200 else rs.sinks.HttpError(status) for status in answer]

sink = rs.sinks.http(url, batch=20, body="ndjson", id_field="id", partial=results)
report = rs.write(frame, policy(sink), job="kills", concurrency=4)
(directory / "report").write_text(json.dumps(dataclasses.asdict(report)))
os._exit(0)
"""


def run(rows: int, rate: int, kills: int, chance: random.Random) -> dict[str, Any]:
    """Run the job to its end; return what was seen."""
    with (
        tempfile.TemporaryDirectory(prefix="rstreams-sinks-") as made,
        HttpService(rate=rate, fails=FAILS) as service,
    ):
        directory = Path(made)
        driver = Driver(JOB, directory, directory, service.url, rows, rate, PARTITIONS)
        killed: list[float] = []
        try:
            plan = sorted(chance.uniform(0.02, 0.95) * rows for _ in range(kills))
            deadline = time.monotonic() + 120 + 3 * rows / rate
            while driver.runs:
                assert time.monotonic() < deadline, driver.errors()
                time.sleep(0.05)
                due = len(killed) < len(plan) and service.progress() >= plan[len(killed)]
                if due and (workers := workers_among(driver.processes())):
                    chance.choice(workers).send_signal(signal.SIGKILL)
                    killed.append(time.time())
            driver.check()
            report = json.loads((directory / "report").read_text())
        finally:
            driver.end()
        seen = service.seen()
    assert len(killed) == kills
    assert report["rows"] == rows
    assert len(seen["ids"]) == rows, "the service's ids are others"
    assert len(set(seen["numbers"])) == rows, "a row has two ids"
    return {
        "used": used(seen["new"], killed, rate),
        "again": sum(seen["ids"].values()) - rows,
        "most in a second": max(seen["accepted"].values()),
        "statuses": seen["statuses"],
        **report,
    }


def used(new: dict[str, int], killed: list[float], rate: int) -> float:
    """Return which share of the service was used, but for the first and last seconds, and those
    that begin within two seconds after a kill, or hold it.
    """
    seconds = sorted(map(int, new))
    counted = [
        second
        for second in range(seconds[0] + 2, seconds[-1] - 1)
        if not any(second - AFTER_A_KILL <= kill <= second + 1 for kill in killed)
    ]
    return sum(new.get(str(second), 0) for second in counted) / (rate * len(counted))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.spark.sink_kills", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    words = parser.parse_args()
    print(f"seed {words.seed}", flush=True)
    found = run(words.rows, words.rate, words.kills, random.Random(words.seed))
    print(json.dumps(found))
    assert found["used"] >= USED, found
