"""The main job from end to end, in a thread of its own, so that it can be watched and stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rstreams_fast.spark as rs
from rstreams_fast.demo import answers, data, job, proof
from rstreams_fast.demo.errors import DemoError
from rstreams_fast.demo.service import Behaviour
from rstreams_fast.demo.service_process import ServiceProcess
from rstreams_fast.demo.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Interrupted", "MainJob", "Options", "Outcome"]

OUTPUT_NAME: Final = "flights.parquet"
FLIGHTS_NAME: Final = "flights.csv"
DATABASE_NAME: Final = "lookups.sqlite"
LOG_NAME: Final = "spark.log"

#: So small that even a sample of the flights is split among all cores.
SMALLEST_SPLIT_BYTES: Final = 64 << 10


@dataclass(frozen=True)
class Options:
    """What the command line may change."""

    output: Path
    rows: int | None = None
    """How many flights, from the first on; all by default."""
    master: str = "local[*]"
    batch_rows: int = 10_000
    """Rows in an Arrow batch: Spark's own default."""
    bounds: job.Bounds = field(default_factory=job.Bounds)
    behaviour: Behaviour = field(default_factory=Behaviour)


@dataclass(frozen=True)
class Outcome:
    """What is known at the end."""

    rows: int
    tasks: int
    """How many tasks ran at once, at most: what bounds per task add up to is so many times more."""
    seconds: float
    """For reading, enriching and writing."""
    stages: dict[str, rs.StageFigures]
    service: dict[str, Any]
    """The look-up service's own counts."""
    proof: proof.Proof
    answers: answers.Answers
    output: Path


class Interrupted(Exception):
    """The job was told to stop."""


class MainJob:
    """One run. ``start`` it, look at ``phase`` and ``figures``, then ask for the ``result``.

    ``cancel`` stops it; ``result`` then raises :class:`Interrupted`, when its processes have ended
    and its files are removed. Any thread may call any method.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.phases: list[tuple[str, float]] = []
        """What was begun, and when (``time.monotonic``), so far."""
        self.rows = 0
        """How many flights there are; 0 until it is known."""
        self._directory = Path(tempfile.mkdtemp(prefix="rstreams-demo-"))
        self.figures = rs.Figures(self._directory / "figures")
        self._thread = threading.Thread(target=self._run, name="rstreams-demo", daemon=True)
        self._cancelled = threading.Event()
        self._spark: SparkSession | None = None
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait for the end, up to ``timeout`` seconds; return whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Stop soon; does not wait. To be repeated: Spark only stops what runs at the moment."""
        self._cancelled.set()
        spark = self._spark
        if spark is not None:
            with contextlib.suppress(Exception):  # it may be on its way out already
                spark.sparkContext.cancelAllJobs()

    @property
    def failed(self) -> bool:
        """Whether :meth:`result` would raise."""
        return self._error is not None

    def result(self) -> Outcome:
        """Return what came out, or raise what went wrong. Only after :meth:`wait` was true."""
        if self._error is not None:
            raise self._error
        assert self._outcome is not None  # noqa: S101 - a thread that has ended left one of the two
        return self._outcome

    def close(self) -> None:
        """Remove the files of the run that are no result."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self) -> None:
        try:
            self._outcome = self._work(self._directory / LOG_NAME)
        except BaseException as error:
            self._error = Interrupted() if self._cancelled.is_set() else error

    def _phase(self, name: str) -> None:
        if self._cancelled.is_set():
            raise Interrupted
        self.phases.append((name, time.monotonic()))

    def _work(self, log: Path) -> Outcome:
        options, directory = self.options, self._directory
        self._phase("Unpacking the flights, filling the service's database")
        files = data.find_files()
        self.rows = data.write_flights(files, directory / FLIGHTS_NAME, options.rows)
        data.write_database(files, directory / DATABASE_NAME)
        with _made(options.output), contextlib.ExitStack() as stack:
            service = stack.enter_context(
                ServiceProcess(directory / DATABASE_NAME, options.behaviour, log)
            )
            self._phase("Starting Spark")
            settings = {
                "spark.sql.execution.arrow.maxRecordsPerBatch": str(options.batch_rows),
                "spark.sql.files.openCostInBytes": str(SMALLEST_SPLIT_BYTES),
                "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            }
            spark = stack.enter_context(spark_session(options.master, directory, log, settings))
            self._spark = spark
            stack.callback(setattr, self, "_spark", None)

            with self._explained(log):
                return self._enrich(spark, service, files)

    def _enrich(
        self, spark: SparkSession, service: ServiceProcess, files: dict[str, Path]
    ) -> Outcome:
        options = self.options
        target = options.output / OUTPUT_NAME
        self._phase(ENRICHING)
        begin = time.monotonic()
        flights = job.read_flights(spark, self._directory / FLIGHTS_NAME)
        job.write(job.enrich(flights, service.url, options.bounds, self.figures), target)
        seconds = time.monotonic() - begin
        counted = service.stats()
        service.close()

        self._phase("Comparing with a plain SQL join")
        found = spark.read.parquet(str(target))
        expected = proof.joined(spark, flights, files)
        proven = proof.prove(found, expected, target, self.rows)

        self._phase("Computing the answers")
        return Outcome(
            rows=self.rows,
            tasks=min(spark.sparkContext.defaultParallelism, flights.rdd.getNumPartitions()),
            seconds=seconds,
            stages={stage: self.figures.totals(stage) for stage in job.STAGES},
            service=counted,
            proof=proven,
            answers=answers.answer(found),
            output=target,
        )

    @contextlib.contextmanager
    def _explained(self, log: Path) -> Iterator[None]:
        """Put a failure in words while Spark, which has some of them, still runs; keep the log."""
        try:
            yield
        except Exception as failed:
            if self._cancelled.is_set():
                raise Interrupted from None
            kept = self.options.output / LOG_NAME
            text = str(failed).strip() or type(failed).__name__
            shutil.copy(log, kept)
            raise DemoError(f"the job failed: {text}\nSpark's log: {kept}") from failed


ENRICHING: Final = "Enriching"


@contextlib.contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Make a directory, and remove it again if nothing came into it."""
    existed = directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as failed:
        raise DemoError(f"--output {directory}: {failed.strerror}") from None
    try:
        yield
    finally:
        if not existed:
            with contextlib.suppress(OSError):
                directory.rmdir()
