"""The main job from end to end, in a thread of its own, so that it can be watched and stopped."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rstreams_fast.spark as rs
from examples.flights import answers, data, job, proof
from examples.flights.background import Background
from examples.flights.errors import DemoError
from examples.flights.service import Behaviour
from examples.flights.service_process import ServiceProcess
from examples.flights.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MainJob", "Options", "Outcome"]

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
    stages: dict[str, rs.StageMetrics]
    service: dict[str, Any]
    """The look-up service's own counts."""
    proof: proof.Proof
    answers: answers.Answers
    output: Path


class MainJob(Background[Outcome]):
    """One run. ``phases``, ``rows`` and ``metrics`` may be looked at meanwhile.

    When it was cancelled, its processes have ended and its files are removed. ``close`` it after
    the end.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.phases: list[tuple[str, float]] = []
        """What was begun, and when (``time.monotonic``), so far."""
        self.rows = 0
        """How many flights there are; 0 until it is known."""
        self._directory = Path(tempfile.mkdtemp(prefix="rstreams-demo-"))
        self.metrics = rs.Metrics(self._directory / "metrics")

    def close(self) -> None:
        """Remove the files of the run that are no result."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _phase(self, name: str) -> None:
        self.check()
        self.phases.append((name, time.monotonic()))

    def work(self) -> Outcome:
        """Run the job from end to end."""
        options, directory = self.options, self._directory
        log = directory / LOG_NAME
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
            with self.attached(spark), self._explained(log):
                return self._enrich(spark, service, files)

    def _enrich(
        self, spark: SparkSession, service: ServiceProcess, files: dict[str, Path]
    ) -> Outcome:
        options = self.options
        target = options.output / OUTPUT_NAME
        with job.appearing(target) as partial:
            self._phase(ENRICHING)
            begin = time.monotonic()
            flights = job.read_flights(spark, self._directory / FLIGHTS_NAME)
            enriched = job.enrich(flights, service.url, options.bounds, self.metrics)
            enriched.write.parquet(str(partial))
            seconds = time.monotonic() - begin
            counted = service.stats()
            service.close()

            self._phase("Comparing with a plain SQL join")
            found = spark.read.parquet(_no_pattern(partial))
            expected = proof.joined(spark, flights, files)
            proven = proof.prove(found, expected, partial, self.rows)

            self._phase("Computing the answers")
            answered = answers.answer(found)
            self.check()
        return Outcome(
            rows=self.rows,
            tasks=min(spark.sparkContext.defaultParallelism, flights.rdd.getNumPartitions()),
            seconds=seconds,
            stages={stage: self.metrics.totals(stage) for stage in job.STAGES},
            service=counted,
            proof=proven,
            answers=answered,
            output=target,
        )

    @contextlib.contextmanager
    def _explained(self, log: Path) -> Iterator[None]:
        """Put a failure in words while Spark, which has some of them, still runs; keep the log."""
        try:
            yield
        except Exception as failed:
            self.check()  # what Spark says of a job that was cancelled is of no interest
            kept = self.options.output / LOG_NAME
            text = str(failed).strip() or type(failed).__name__
            shutil.copy(log, kept)
            raise DemoError(f"the job failed: {text}\nSpark's log: {kept}") from failed


def _no_pattern(path: Path) -> str:
    # Spark reads a path as a pattern, and writes it as it is.
    return re.sub(r"[\\*?{}\[\]]", r"\\\g<0>", str(path))


ENRICHING: Final = "Enriching"


@contextlib.contextmanager
def _made(directory: Path) -> Iterator[None]:
    """Make a directory, and remove it again if nothing came into it."""
    existed = directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass  # it can be written to: better known now than at the end of the job
    except OSError as failed:
        raise DemoError(f"--output {directory}: {failed.strerror}") from None
    try:
        yield
    finally:
        if not existed:
            with contextlib.suppress(OSError):
                directory.rmdir()
