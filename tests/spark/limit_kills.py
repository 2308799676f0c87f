"""``make limit-kills``: whether limits hold while Python workers are killed at random times.

Four executors of four workers each, more calls wanted than allowed all the time, and so many
SIGKILLs, ``--kills``, at random times, of workers and of the relay of their host. The service
judges: the most calls that it was ever in, how many it was in on average but for the two seconds
after each kill, and the most that began within one second. With a quota of tokens it judges by a
bucket of its own: which share of the quota was in use, and how many calls it had to refuse. The
quota has room for 400 long texts a minute, or for 16 000 short ones: only these show less than one
refusal in a thousand calls.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import rstreams_fast.spark as rs
from tests.helpers import run_threads, wait_until
from tests.spark import jvm
from tests.spark.cluster import MARK, marked, python_workers
from tests.spark.conftest import session, worker_environment
from tests.spark.faults import CONF, right
from tests.spark.permits import relays_among
from tests.spark.service import Service, ServiceProcess, asking, tokens_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCOPES: Final = ["executor", "job"]
LIMITS: Final = {"concurrency": 32, "rate": 500, "tokens": 200_000, "short": 200_000}
TOKENS: Final = {"tokens": 10.0, "short": 0.25}
"""What the shortest text costs; the longest costs a hundred times as much."""
LEAST_CALLS: Final = 5000
"""With short texts."""
LEAST_SHARE: Final = 0.95
"""The share of a quota that must be in use, although workers are killed."""
MOST_REFUSED: Final = 0.001
FIRST_CALLS: Final = 100
"""Calls before the first kill."""
RECOVERY_SECONDS: Final = 2.0
PARTITIONS: Final = 32
JOBS: Final = 2
"""At once: while the last tasks of one are few, those of the other are many."""

Event = tuple[float, int]


def main() -> int:
    """Run what was asked for, print figures; exit 1 if a limit did not hold or lay idle."""
    parser = argparse.ArgumentParser(prog="make limit-kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--gap", type=float, default=1.0, help="mean seconds between two kills")
    parser.add_argument("--seed", default=uuid.uuid4().hex[:8])
    parser.add_argument("--rate-kills", type=int, default=20, help="with a rate or a quota")
    parser.add_argument("--rows", type=int, default=4096, help="of each job")
    parser.add_argument(
        "--in-use", type=float, default=28.0, help="calls, on average, but for the time after kills"
    )
    parser.add_argument("--limits", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--scopes", nargs="+", choices=SCOPES, default=SCOPES)
    options = parser.parse_args()
    mark = os.environ[MARK] = uuid.uuid4().hex
    os.environ.update(worker_environment())
    jvm.use_options()
    service = ServiceProcess()
    spark = session("local-cluster[4,4,512]", {"spark.task.maxFailures": "1000"}, usual=CONF)
    held = True
    try:
        for what in options.limits:
            for scope in options.scopes:
                chance = random.Random(f"{options.seed} {what} {scope}")
                limit = rs.Limit(mark + what, scope=scope, **_words(what))
                kills = options.kills if what == "concurrency" else options.rate_kills
                quota, least = LIMITS[what] if what in TOKENS else 0, TOKENS.get(what, 1.0)
                service.tell(seconds=0.001 if what == "rate" else 0.1, quota=quota, least=least)
                service.tell(reset=True)
                gaps = [chance.expovariate(1 / options.gap) for _ in range(kills)]
                fn = rs.Policy(limit=limit)(_paying(service.port, least))
                enough = LEAST_CALLS if what == "short" else 0
                times = _work(spark, service, fn, gaps, chance, rows=options.rows, enough=enough)
                told = service.tell(events=True)
                found: dict[str, Any] = {"limit": what, "scope": scope, "seed": options.seed}
                found |= {"kills": len(times) - 2, "calls": told["calls"]}
                if what == "concurrency":
                    found |= {"most": told["most"], **_in_use(told["events"], times)}
                    held &= told["most"] <= LIMITS[what] and found["in use"] >= options.in_use
                elif what in TOKENS:
                    found |= _share(told["spent"], times) | {"refused": told["refused"]}
                    held &= found["share"] >= LEAST_SHARE
                    held &= told["refused"] <= MOST_REFUSED * told["calls"]
                else:
                    found |= _begun(told["events"], times)
                    held &= found["most in a second"] <= LIMITS[what] * 1.01
                print(json.dumps(found), flush=True)
    finally:
        spark.stop()
        service.close()
    return not held


def _words(what: str) -> dict[str, Any]:
    if what not in TOKENS:
        return {what: LIMITS[what]}
    quota, least = rs.per_minute(LIMITS[what]), TOKENS[what]

    def weigh(key: int) -> float:
        # The estimate is right on average, within half of what a call costs.
        return tokens_of(key, least) * (0.5 + key % 101 / 100)

    return {"units": {"tokens": quota}, "weigh": weigh}


def _paying(port: int, least: float) -> Callable[[int], Awaitable[int]]:
    ask = asking(port)

    async def call(key: int) -> int:
        try:
            answer = await ask(key)
        except ValueError:  # REFUSED
            raise rs.RetryAfter(0.5) from None
        rs.spent(tokens=tokens_of(key, least))
        return answer

    return call


def _work(
    spark: SparkSession,
    service: Service,
    fn: Callable[[int], Awaitable[int]],
    gaps: list[float],
    chance: random.Random,
    *,
    rows: int,
    enough: int,
) -> list[float]:
    """Keep the limit of ``fn`` busy until all kills and ``enough`` calls were made.

    Return the times of the kills, between those of the start and the end.
    """
    look = rs.lookup(fn, "long", concurrency=16)
    over = threading.Event()
    times: list[float] = []

    def work() -> None:
        while not over.is_set():
            frame = spark.range(0, rows, 1, PARTITIONS).select("id", look("id").alias("y"))
            right(frame.collect(), rows)

    def kill() -> None:
        try:
            wait_until(lambda: service.tell()["calls"] > FIRST_CALLS, "calls", timeout=300)
            times.append(time.monotonic())
            for gap in gaps:
                over.wait(gap)
                mark = os.environ[MARK]
                # Also the relay, through which the workers of the host reach the driver.
                worker = chance.choice(python_workers(mark) + relays_among(marked(mark)) or [None])
                with suppress(ProcessLookupError):
                    if worker is not None:
                        times.append(time.monotonic())
                        os.kill(worker.pid, signal.SIGKILL)
            over.wait(2 * RECOVERY_SECONDS)
            wait_until(lambda: service.tell()["calls"] >= enough, "calls", timeout=300)
            times.append(time.monotonic())
        finally:
            over.set()

    run_threads([kill, *[work] * JOBS], timeout=3600)
    return times


def _in_use(events: list[Event], times: list[float]) -> dict[str, float]:
    """Return how many calls there were on average, but for the seconds after a kill."""
    start, *kills, end = times
    recovering = [(at, 1) for at in kills] + [(at + RECOVERY_SECONDS, -1) for at in kills]
    steps = [(at, change, 0) for at, change in events] + [(at, 0, more) for at, more in recovering]
    used = seconds = 0.0
    inside, killed, last = 0, 0, -1.0
    for at, change, more in sorted(steps):
        if not killed and start <= last and at <= end:
            used += inside * (at - last)
            seconds += at - last
        inside, killed, last = inside + change, killed + more, at
    return {"in use": used / seconds, "seconds": seconds, "of seconds": times[-1] - times[0]}


def _share(spent: list[Event], times: list[float]) -> dict[str, float]:
    """Return which share of the quota was in use between the first time and the last."""
    used = sum(tokens for at, tokens in spent if times[0] <= at < times[-1])
    seconds = times[-1] - times[0]
    return {"share": used / (seconds * LIMITS["tokens"] / 60), "seconds": seconds}


def _begun(events: list[Event], times: list[float]) -> dict[str, float]:
    """Return how many calls began in the worst second, and in one on average."""
    begun = [at for at, change in events if change > 0]
    first, most = 0, 0
    for index, at in enumerate(begun):
        while begun[first] <= at - 1:
            first += 1
        most = max(most, index + 1 - first)
    within = sum(times[0] <= at < times[-1] for at in begun)
    return {"most in a second": most, "on average": within / (times[-1] - times[0])}


if __name__ == "__main__":
    sys.exit(main())
