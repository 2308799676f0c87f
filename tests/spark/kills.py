"""``python -m tests.spark.kills``: kill the driver, executors and workers of jobs with a journal.

Each job enriches the same rows on a ``local-cluster``, is hit by SIGKILLs at random times, and is
started again when it was the driver. Its output must be what an undisturbed one gives, and it may
make no more calls again than were in flight at the kills.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import psutil

from tests.spark.drivers import Driver

ROWS: Final = 6000
CONCURRENCY: Final = 16
SECONDS_OF_A_CALL: Final = 0.02
EXECUTORS: Final = 2
KILLS_OF_A_JOB: Final = 8

JOB: Final = f"""
import asyncio, json, os, sys
from pathlib import Path
import rstreams_fast.spark as rs
from tests.spark.conftest import session

directory = Path(sys.argv[1])

def made(log):
    async def fetch(k):
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"%d %d\\n" % (os.getpid(), k))
        os.close(file)
        await asyncio.sleep({SECONDS_OF_A_CALL})
        return None if k % 97 == 0 else (k / 3, f"answer {{k}}")

    return fetch

spark = session("local-cluster[{EXECUTORS},1,1024]", {{
    "spark.executor.memory": "1g",
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
    "spark.deploy.maxExecutorRetries": "-1",
}})
journal = rs.Journal(directory / "journal", version="1")
words = dict(output="third double, text string", concurrency={CONCURRENCY})
stage = rs.enrich(rs.Policy(journal=journal)(made(str(directory / "calls"))), on="id", **words)
partitions = int(sys.argv[2])
rows = sorted(map(tuple, spark.range(0, {ROWS}, 1, partitions).transform(stage).collect()))
aside = directory / "aside"
aside.write_text(json.dumps(rows))
aside.rename(directory / "output")
os._exit(0)
"""

EXPECTED: Final = [
    [k, None, None] if k % 97 == 0 else [k, k / 3, f"answer {k}"] for k in range(ROWS)
]


class Job:
    """One job, from its first start to its output."""

    def __init__(self, directory: Path, kills: int, chance: random.Random) -> None:
        self._directory = directory
        self._log = directory / "calls"
        self._log.touch()
        self._chance = chance
        self._left = kills
        self._driver = Driver(JOB, directory, directory, self._partitions())
        self.kills = Counter[str]()
        self.most_repeated = 0

    def _partitions(self) -> int:
        return self._chance.choice([3, 4, 7])  # another layout each time

    def run(self, seconds: float) -> int:
        """Run it to its end; return how many calls were made more than once.

        For so many ``seconds`` nothing may happen.
        """
        deadline = time.monotonic() + seconds
        begin = seen = len(self._calls())
        pause = self._chance.randint(50, 800)  # calls to the next kill
        while self._driver.runs:
            if time.monotonic() > deadline:
                raise AssertionError(f"no call and no end for {seconds} s: {self._driver.errors()}")
            time.sleep(0.02)
            if len(calls := self._calls()) > seen:
                seen, deadline = len(calls), time.monotonic() + seconds
            if self._left and len(calls) >= begin + pause:
                self._kill(int(calls[-1].split()[0]))
                begin, pause = len(calls), self._chance.randint(50, 800)
        self._driver.check()
        if json.loads((self._directory / "output").read_text()) != EXPECTED:
            raise AssertionError("the output is another")
        repeated = len(self._calls()) - ROWS
        if not 0 <= repeated <= self.most_repeated:
            raise AssertionError(f"{repeated} calls again, after {dict(self.kills)}")
        return repeated

    def _kill(self, worker: int) -> None:
        what = self._chance.choice(["worker", "worker", "executor", "driver"])
        try:
            process = psutil.Process(worker)
            if what == "executor":
                process = next(p for p in process.parents() if p.name() == "java")
            elif what == "driver":
                process = psutil.Process(self._driver.pid)
        except (psutil.NoSuchProcess, StopIteration):  # its task has ended
            return
        self._left -= 1
        self.kills[what] += 1
        tasks = EXECUTORS if what == "driver" else 1
        self.most_repeated += tasks * CONCURRENCY
        if what == "driver":
            self._driver.kill(self._directory, self._partitions())
        else:
            process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill the driver's processes, and all they started, if they run."""
        self._driver.end()

    def _calls(self) -> list[str]:
        return self._log.read_text().splitlines()


def soak(kills: int, seed: str, seconds: float = 240.0) -> str:
    """Run jobs until there were so many kills; return what was seen."""
    chance = random.Random(seed)
    total, repeated, jobs = Counter[str](), 0, 0
    while total.total() < kills:
        directory = Path(tempfile.mkdtemp(prefix="rstreams-kills-"))
        job = Job(directory, min(KILLS_OF_A_JOB, kills - total.total()), chance)
        try:
            repeated += job.run(seconds)
        except AssertionError as failed:
            raise AssertionError(f"seed {seed}, job {jobs}: {failed}") from failed
        finally:
            job.end()
            shutil.rmtree(directory, ignore_errors=True)
        jobs += 1
        if not job.kills:
            raise AssertionError("a job ended before it was killed")
        total += job.kills
        print(f"{jobs} jobs, kills: {dict(total)}, calls again: {repeated}", flush=True)
    return f"{jobs} jobs, {total.total()} kills, {repeated} calls again, the same output"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    words = parser.parse_args()
    print(f"seed {words.seed}")
    print(soak(words.kills, words.seed))
