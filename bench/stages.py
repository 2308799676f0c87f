"""``python -m bench.stages calls|costs``: Spark stages beside the best one would write by hand.

``calls`` sleep 2 ms, one in fifty 50 ms, with so many in flight: `rs.lookup`, with a limit, with a
journal and with neither, on the loop of uvloop that is the default and on asyncio's; the bare loop
(as many workers that pull from one iterator: no task for a call), on both and on uvloop's within
`mapInArrow`; and Spark's own setting. Sleeps end together, in whole milliseconds, and each call
then pays for what is done for those before it: what a journal must not cost is told of the same
calls to a service on another core. ``batch=64`` has one of 20 ms and 0.1 ms a key. The loop is one
thread, so all of that runs on one core. ``costs`` holds what the stages themselves cost against
`mapInArrow`, on the cores that there are. Ways take turns; a ratio is taken within a round, and the
median over the rounds counts. Every result is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
import uuid
from asyncio import new_event_loop
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

import rstreams_fast.spark as rs
from bench.service import LookUpClient, client, service
from examples.flights.rivals import Delay, LookUp, LookUpSync, expected, plain_column
from examples.flights.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEVEL: Final = "spark.sql.execution.pythonUDF.arrow.concurrency.level"
DELAY: Final = Delay()
MOST: Final = 100_000
"""Rows a second that a core can do."""
ROWS: Final = 10_000
"""Of an output batch, as Spark makes them."""
BATCH, BATCHES = 64, 8
SECONDS_OF_A_BATCH: Final = 0.02 + 0.0001 * BATCH

#: in flight -> what must be reached, of the bare loop and of Spark's own setting
LOOKUPS: Final = {64: (0.9, None), 256: (0.95, 3.5), 1024: (0.8, None)}

Way = Callable[[float], float]
"""Runs for about so many seconds; returns rows a second."""
Ratio = tuple[str, str, str, float | None]
"""A name, the way above and the way below, and what must be reached."""


def _all_right(frame: DataFrame, rows: int) -> None:
    from pyspark.sql import functions as f

    right = f.count_if(f.col("value").eqNullSafe(f.col("id") * 3 + 1))
    counted: Any = frame.agg(f.count("*"), right).first()
    assert tuple(counted) == (rows, rows), counted


async def _loop(look_up: LookUp, rows: int, calls: int) -> None:
    answers = [0] * rows
    keys = iter(range(rows))

    async def work() -> None:
        for key in keys:
            answers[key] = await look_up(key)

    await asyncio.gather(*(work() for _ in range(calls)))
    assert answers == [expected(key) for key in range(rows)]


def _loop_in_spark(look_up: LookUp, calls: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The same loop in `mapInArrow`: it keeps all rows, and the first leaves when all are done."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        keys: list[int] = []
        answers: list[int] = []

        def places() -> Iterator[int]:
            for batch in batches:
                start = len(keys)
                keys.extend(batch.column(0).to_pylist())
                answers.extend([0] * batch.num_rows)
                yield from range(start, len(keys))

        async def work(left: Iterator[int]) -> None:
            for place in left:
                answers[place] = await look_up(keys[place])

        async def work_all(left: Iterator[int]) -> None:
            await asyncio.gather(*(work(left) for _ in range(calls)))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work_all(places()))
        for begin in range(0, len(keys), ROWS):
            end = begin + ROWS
            columns = {"id": keys[begin:end], "value": answers[begin:end]}
            yield pa.RecordBatch.from_pydict(columns)

    return run


def _lookups(spark: SparkSession, path: str, calls: int) -> tuple[dict[str, Way], list[Ratio]]:
    look_up = LookUp(DELAY)
    ask, using = LookUpClient.look_up, client(path)
    limit = rs.Limit(f"bench {os.getpid()} {calls}", calls)
    folder = tempfile.TemporaryDirectory()

    def through(
        answers: Callable[[DataFrame], DataFrame], per_second: float, level: int | None = None
    ) -> Way:
        def run(seconds: float) -> float:
            spark.conf.unset(LEVEL) if level is None else spark.conf.set(LEVEL, str(level))
            rows = int(seconds * min(per_second, calls / DELAY.mean))
            begun = time.perf_counter()
            _all_right(answers(spark.range(0, rows, 1, 1)), rows)
            return rows / (time.perf_counter() - begun)

        return run

    def by(column: Any) -> Callable[[DataFrame], DataFrame]:
        return lambda frame: frame.withColumn("value", column("id"))

    def by_loop(frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(_loop_in_spark(look_up, calls), "id long, value long")

    def with_journal(fn: Any, **words: Any) -> Callable[[DataFrame], DataFrame]:
        def answers(frame: DataFrame) -> DataFrame:
            journal = rs.Journal(folder.name, version=uuid.uuid4().hex)  # in which nothing is found
            return by(
                rs.lookup(rs.Policy(journal=journal)(fn), "long", concurrency=calls, **words)
            )(frame)

        return answers

    def loop(make: Callable[[], asyncio.AbstractEventLoop]) -> Way:
        def run(seconds: float) -> float:
            rows = int(seconds * min(MOST, calls / DELAY.mean))
            begun = time.perf_counter()
            with asyncio.Runner(loop_factory=make) as runner:
                runner.run(_loop(look_up, rows, calls))
            return rows / (time.perf_counter() - begun)

        return run

    name = f"{calls} in flight"
    ours, on_asyncio, limited, journaled, asked, asked_once, bare, on_uvloop, inside, own, most = (
        f"{way}, {name}"
        for way in (
            "lookup",
            "lookup on asyncio's loop",
            "with limit=",
            "with journal=",
            "lookup at the service",
            "with journal= at the service",
            "bare loop",
            "bare loop of uvloop",
            "bare loop in Spark",
            "Spark's own",
            "what calls can give",
        )
    )
    ways = {
        ours: through(by(rs.lookup(look_up, "long", concurrency=calls)), MOST),
        on_asyncio: through(
            by(rs.lookup(look_up, "long", concurrency=calls, loop_factory=new_event_loop)), MOST
        ),
        limited: through(
            by(rs.lookup(rs.Policy(limit=limit)(look_up), "long", concurrency=calls)), MOST
        ),
        journaled: through(with_journal(look_up), MOST),
        asked: through(by(rs.lookup(ask, "long", concurrency=calls, using=using)), MOST),
        asked_once: through(with_journal(ask, using=using), MOST),
        bare: loop(new_event_loop),
        on_uvloop: loop(uvloop.new_event_loop),
        inside: through(by_loop, MOST),
        own: through(by(plain_column(LookUpSync(DELAY))), MOST / 4, calls),
        most: lambda _: calls / DELAY.mean,
    }
    to_loop, to_own = LOOKUPS.get(calls, (None, None))
    return ways, [
        (f"{name}, to the bare loop", ours, bare, to_loop),
        (f"{name}, on asyncio's loop, to it", on_asyncio, bare, None),
        (f"{name}, to the bare loop of uvloop", ours, on_uvloop, None),
        (f"{name}, to that within Spark", ours, inside, None),
        (f"{name}, that to Spark's own", inside, own, None),
        (f"{name}, to Spark's own", ours, own, to_own),
        (f"{name}, to what calls can give", ours, most, None),
        (f"{name}, with limit= to without", limited, ours, 0.97),
        (f"{name}, with journal= to without", journaled, ours, None),
        (f"{name}, the same at the service", asked_once, asked, 0.95 if calls == 64 else None),
    ]


def _batched(spark: SparkSession) -> tuple[dict[str, Way], list[Ratio]]:
    async def fetch(keys: list[int]) -> list[int]:
        await asyncio.sleep(0.02 + 0.0001 * len(keys))
        return [key * 3 + 1 for key in keys]

    column = rs.lookup(fetch, "long", batch=BATCH, concurrency=BATCHES)
    optimum = BATCH * BATCHES / SECONDS_OF_A_BATCH

    def run(seconds: float) -> float:
        rows = int(optimum * seconds)
        begun = time.perf_counter()
        _all_right(spark.range(0, rows, 1, 1).withColumn("value", column("id")), rows)
        return rows / (time.perf_counter() - begun)

    ways: dict[str, Way] = {"batches": run, "optimum": lambda _: optimum}
    return ways, [("batch=64, to the arithmetic optimum", "batches", "optimum", 0.9)]


def _costs(spark: SparkSession) -> tuple[dict[str, Way], list[Ratio]]:
    def same(batch: Any) -> Any:
        return batch

    def batches_alone(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    stage = rs.map_batches(same, "id long, a long, b double, c string")
    small = rs.map_batches(same, "id long")

    async def answer(key: int) -> int:
        return key * 3 + 1

    look_up = rs.lookup(answer, "long")

    def wide(rows: int) -> DataFrame:
        return spark.range(0, rows, 1, 1).selectExpr(
            "id", "id * 2 as a", "id / 3 as b", "cast(id as string) as c"
        )

    def identity(of: Callable[[DataFrame], DataFrame]) -> Way:
        def run(seconds: float) -> float:
            rows = int(seconds * 1_000_000)
            begun = time.perf_counter()
            of(wide(rows)).write.format("noop").mode("overwrite").save()
            return rows / (time.perf_counter() - begun)

        return run

    def partitions(of: Callable[[DataFrame], DataFrame]) -> Way:
        def run(seconds: float) -> float:
            count = int(seconds * 15)
            begun = time.perf_counter()
            found = of(spark.range(0, count, 1, count)).count()
            assert found == count
            return count / (time.perf_counter() - begun)

        return run

    ways = {
        "identity, mapInArrow": identity(lambda d: d.mapInArrow(batches_alone, d.schema)),
        "identity, map_batches": identity(lambda d: d.transform(stage)),
        "partitions, mapInArrow": partitions(lambda d: d.mapInArrow(batches_alone, d.schema)),
        "partitions, map_batches": partitions(lambda d: d.transform(small)),
        "partitions, lookup": partitions(lambda d: d.select(look_up("id")).dropna()),
    }
    kinds = [("identity", "map_batches", 0.97)]
    kinds += [("partitions", way, 1 / 1.5) for way in ("map_batches", "lookup")]
    ratios: list[Ratio] = [
        (f"{kind}: {way}, to mapInArrow", f"{kind}, {way}", f"{kind}, mapInArrow", target)
        for kind, way, target in kinds
    ]
    return ways, ratios


def _measure(
    ways: dict[str, Way], ratios: Sequence[Ratio], rounds: int, seconds: float
) -> list[str]:
    """Print the ratios; return the names of those that do not reach their target."""
    values: dict[str, list[float]] = {way: [] for way in ways}
    for run in ways.values():
        run(0.5)  # imports, caches
    for number in range(rounds):
        first = number % len(ways)
        order = list(ways)
        for way in (*order[first:], *order[:first]):
            values[way].append(ways[way](seconds))
    missed = []
    for name, over, under, target in ratios:
        found = [a / b for a, b in zip(values[over], values[under], strict=True)]
        ratio = statistics.median(found)
        wanted = "" if target is None else f"wanted {target:.2f}"
        if target is not None and ratio < target:
            missed.append(name)
        print(
            f"{name:<42}{ratio:6.3f} ({min(found):.3f} - {max(found):.3f}) {wanted:<12} "
            f"{statistics.median(values[over]):,.4g} to {statistics.median(values[under]):,.4g}",
            flush=True,
        )
    return missed


def main() -> int:
    """Measure what was asked for; return 1 if a target is not reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__)
    parser.add_argument("what", choices=["calls", "costs"])
    parser.add_argument("--calls", type=int, nargs="*", default=list(LOOKUPS), help="in flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a run, about")
    options = parser.parse_args()
    if options.what == "calls" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    missed = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark = stack.enter_context(
            spark_session("local[1]", directory, directory / "spark.log", {})
        )
        if options.what == "costs":
            groups = [_costs(spark)]
        else:
            path = stack.enter_context(service(DELAY))
            groups = [*(_lookups(spark, path, calls) for calls in options.calls), _batched(spark)]
        for ways, ratios in groups:
            missed += _measure(ways, ratios, options.rounds, options.seconds)
    print("\n".join(f"not reached: {name}" for name in missed))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
