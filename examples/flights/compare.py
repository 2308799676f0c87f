"""``make demo ARGS=--compare``: the same look-ups, overlapped in five ways, on one core.

Ways take turns within a round, so that the machine's moods hit all of them; a ratio is taken within
a round, and the median over the rounds is what counts. Every result is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.table import Table

import rstreams_fast.spark as rs
from examples.flights import cpu
from examples.flights.background import Background, Interrupted, run_until_done
from examples.flights.errors import (
    EXIT_DIFFERENT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    DemoError,
    complain,
)
from examples.flights.rivals import (
    Delay,
    LookUp,
    LookUpSync,
    bare_asyncio,
    expected,
    gathered_column,
    plain_column,
)
from examples.flights.session import spark_session
from rstreams_fast.spark.report import make_console

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

__all__ = ["CompareOptions", "Measured", "run_compare"]

JSON_NAME: Final = "compare.json"

DEFAULT_BATCH_ROWS: Final = 10_000
SMALL_BATCH_ROWS: Final = 100
BATCHES: Final = {DEFAULT_BATCH_ROWS: "Spark's default batches", SMALL_BATCH_ROWS: "small batches"}

BATCH_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
CONCURRENCY_SETTING: Final = "spark.sql.execution.pythonUDF.arrow.concurrency.level"

OURS: Final = "rstreams_fast"
BARE: Final = "bare asyncio, no Spark"
OWN: Final = "Spark's own concurrency.level"
GATHER: Final = "asyncio.gather per batch"
SEQUENTIAL: Final = "sequential UDF"

#: Ways that are so much slower that they get only a part of the rows: a rate needs no more.
SHARE_OF_ROWS: Final = {
    (SEQUENTIAL, DEFAULT_BATCH_ROWS): 1 / 64,
    (SEQUENTIAL, SMALL_BATCH_ROWS): 1 / 64,
    (OWN, SMALL_BATCH_ROWS): 1 / 8,
    (GATHER, SMALL_BATCH_ROWS): 1 / 8,
}

CPU_BATCH_ROWS: Final = DEFAULT_BATCH_ROWS
CPU_OURS_C: Final = "rstreams_fast, backend c"
CPU_OURS_PYTHON: Final = "rstreams_fast, backend python"
CPU_GATHER: Final = "asyncio.gather per batch"
CPU_LOOP: Final = "plain loop, no async at all"


@dataclass(frozen=True)
class CompareOptions:
    """How much is measured, and of what."""

    output: Path
    rows: int = 60_000
    """Rows for the fast ways; slow ones get a part of it."""
    rounds: int = 5
    concurrency: int = 64
    delay: Delay = field(default_factory=Delay)


@dataclass(frozen=True)
class Measured:
    """One figure per round for each way, and which way the others are held against."""

    title: str
    unit: str
    ours: str
    values: dict[str, list[float]]
    rows: dict[str, int]
    more_is_better: bool

    def ratios(self, way: str) -> list[float]:
        """How many times better ours was than ``way``, round by round."""
        pairs = zip(self.values[self.ours], self.values[way], strict=True)
        return [ours / other if self.more_is_better else other / ours for ours, other in pairs]


class WrongResultError(Exception):
    """A way gave other values than it should."""


def run_compare(options: CompareOptions) -> int:
    """Measure, print the tables and write ``compare.json``; return the exit status.

    For the main thread.
    """
    console = make_console()
    begin = time.monotonic()
    comparison = Comparison(options, console)
    try:
        with console.status("Starting Spark") as status:
            run_until_done(
                comparison,
                lambda: status.update(comparison.doing),
                lambda: console.print("Stopping ..."),
            )
        measured = comparison.result()
        options.output.mkdir(parents=True, exist_ok=True)
        path = options.output / JSON_NAME
        everything = {"options": asdict(options), "measured": [asdict(one) for one in measured]}
        path.write_text(json.dumps(everything, indent=1, default=str), encoding="utf-8")
    except Interrupted:
        console.print("Stopped: nothing is left running, and no file was left.")
        return EXIT_INTERRUPTED
    except WrongResultError as wrong:
        complain(str(wrong))
        return EXIT_DIFFERENT
    except (DemoError, OSError) as error:
        complain(str(error))
        return EXIT_FAILED
    except Exception:  # a bug here: not to be taken for a wrong result, which is status 1
        traceback.print_exc()
        return EXIT_FAILED
    limit = options.concurrency / options.delay.mean
    console.print(
        f"\nEvery result was checked. No way can pass {limit:,.0f} rows/s: {options.concurrency} "
        f"in flight over the mean latency.\nTook {time.monotonic() - begin:.0f} s. "
        f"All metrics: {path}",
        highlight=False,
        soft_wrap=True,
    )
    return EXIT_OK


class Comparison(Background[list[Measured]]):
    """All measurements; each table is printed when it is known."""

    def __init__(self, options: CompareOptions, console: Console) -> None:
        super().__init__()
        self._options = options
        self._console = console
        self.doing = "Starting Spark"
        """What is being done at the moment, for people."""

    def work(self) -> list[Measured]:
        """Measure."""
        options, console = self._options, self._console
        measured = []
        with _on_one_core() as core, tempfile.TemporaryDirectory(prefix="rstreams-demo-") as work:
            where = "not pinned to a core" if core is None else f"on core {core} alone"
            console.print(
                f"Each way runs {options.rounds} times, in turns, {where}: driver, JVM and "
                f"Python worker.\nA look-up takes {options.delay.mean * 1000:.2f} ms on average "
                f"({options.delay.slow_share:.0%} take {options.delay.slow * 1000:g} ms); "
                f"{options.concurrency} in flight.",
                highlight=False,
            )
            directory = Path(work)
            with (
                spark_session("local[1]", directory, directory / "spark.log", {}) as spark,
                self.attached(spark),
            ):
                for batch_rows, name in BATCHES.items():
                    measured.append(self._waiting(spark, batch_rows, name))
                    self._print_table(measured[-1])
            measured.append(self._at_once())
            self._print_table(measured[-1])
        return measured

    def _print_table(self, measured: Measured) -> None:
        self._console.print()
        self._console.print(measured.title, style="bold", highlight=False)
        self._console.print(_table(measured))

    def _rounds(self, name: str, ways: Sequence[str]) -> Iterator[str]:
        """Give the ways in turns; every round begins with another one."""
        for number in range(self._options.rounds):
            first = number % len(ways)
            for way in (*ways[first:], *ways[:first]):
                self.check()
                self.doing = f"{name}: round {number + 1} of {self._options.rounds}, {way}"
                yield way

    def _waiting(self, spark: SparkSession, batch_rows: int, name: str) -> Measured:
        options = self._options
        ways = _ways(options, spark)
        rows = {
            way: max(1, int(options.rows * SHARE_OF_ROWS.get((way, batch_rows), 1))) for way in ways
        }
        values: dict[str, list[float]] = {way: [] for way in ways}
        for run in ways.values():
            self.check()
            run(min(options.rows, 2 * options.concurrency), batch_rows)  # imports, caches
        for way in self._rounds(name, list(ways)):
            begin = time.perf_counter()
            ways[way](rows[way], batch_rows)
            values[way].append(rows[way] / (time.perf_counter() - begin))
        title = f"Look-ups that wait: {name} of {batch_rows:,} rows"
        return Measured(title, "rows/s", OURS, values, rows, more_is_better=True)

    def _at_once(self) -> Measured:
        rows = 2 * self._options.rows
        with _Meter("c") as c, _Meter("python") as python:
            ways: dict[str, Callable[[], float]] = {
                CPU_OURS_C: lambda: c.measure(cpu.OURS, rows),
                CPU_OURS_PYTHON: lambda: python.measure(cpu.OURS, rows),
                CPU_GATHER: lambda: c.measure(cpu.GATHER, rows),
                CPU_LOOP: lambda: c.measure(cpu.LOOP, rows),
            }
            values: dict[str, list[float]] = {way: [] for way in ways}
            for run in ways.values():
                run()  # imports, caches
            for way in self._rounds("processor time", list(ways)):
                values[way].append(ways[way]())
        title = "Look-ups that answer at once: processor time in the Python worker"
        every = dict.fromkeys(ways, rows)
        return Measured(title, "µs/row", CPU_OURS_C, values, every, more_is_better=False)


# -- look-ups that wait ----------------------------------------------------------------------------

Way = Callable[[int, int], None]  # rows, rows in a batch


def _ways(options: CompareOptions, spark: SparkSession) -> dict[str, Way]:
    look_up, look_up_sync = LookUp(options.delay), LookUpSync(options.delay)
    concurrency = options.concurrency

    def through_spark(way: str, column: Callable[[str], Column], level: int | None = None) -> Way:
        def run(rows: int, batch_rows: int) -> None:
            spark.conf.set(BATCH_SETTING, str(batch_rows))
            if level is None:
                spark.conf.unset(CONCURRENCY_SETTING)
            else:
                spark.conf.set(CONCURRENCY_SETTING, str(level))
            _run_query(spark, way, column, rows)

        return run

    def bare(rows: int, _batch_rows: int) -> None:
        values = asyncio.run(bare_asyncio(look_up, range(rows), concurrency))
        if values != [expected(key) for key in range(rows)]:
            raise WrongResultError(f"{BARE} gave wrong results")

    ours = rs.lookup(look_up, "long", concurrency=concurrency)
    return {
        OURS: through_spark(OURS, ours),
        BARE: bare,
        OWN: through_spark(OWN, plain_column(look_up_sync), concurrency),
        GATHER: through_spark(GATHER, gathered_column(look_up, concurrency)),
        SEQUENTIAL: through_spark(SEQUENTIAL, plain_column(look_up_sync)),
    }


def _run_query(spark: SparkSession, way: str, column: Callable[[str], Column], rows: int) -> None:
    from pyspark.sql import functions as f

    looked_up = spark.range(0, rows, 1, 1).withColumn("value", column("id"))
    right = f.count_if(f.col("value").eqNullSafe(f.col("id") * 3 + 1))
    counted: Any = looked_up.agg(f.count("*"), right).first()
    if tuple(counted) != (rows, rows):
        raise WrongResultError(f"{way}: of {rows} rows came {counted[0]}, right are {counted[1]}")


@contextlib.contextmanager
def _on_one_core() -> Iterator[int | None]:
    """Keep this thread and all processes it starts on one core, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield None
        return
    before = os.sched_getaffinity(0)
    core = max(before)
    os.sched_setaffinity(0, {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


# -- look-ups that answer at once ------------------------------------------------------------------


class _Meter:
    """A process that measures processor time, with one backend."""

    def __init__(self, backend: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.flights.cpu"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C reaches the parent alone
            env={**os.environ, "RSTREAMS_FAST_BACKEND": backend},
        )

    def measure(self, way: str, rows: int) -> float:
        """Return microseconds of processor time per row."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(way, rows, CPU_BATCH_ROWS, file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            raise DemoError(f"measuring {way} failed: see above")
        return float(answer) * 1e6

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._process as process:  # closes the pipes, which ends it, and waits
            if exc[0] is not None:
                process.kill()


# -- tables ----------------------------------------------------------------------------------------


def _table(measured: Measured) -> Table:
    table = Table()
    table.add_column("", no_wrap=True)
    for heading in (
        measured.unit,
        "(lowest - highest)",
        "ours/other",
        "(lowest - highest)",
        "rows",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for way, values in measured.values.items():
        ratios = measured.ratios(way)
        own = way == measured.ours
        table.add_row(
            way,
            _figure(statistics.median(values)),
            _spread(values, _figure),
            "" if own else f"{statistics.median(ratios):.2f}x",
            "" if own else _spread(ratios, "{:.2f}".format),
            f"{measured.rows[way]:,}",
        )
    return table


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    return f"{form(min(values))} - {form(max(values))}"
