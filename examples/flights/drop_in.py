"""``make demo ARGS=--drop-in``: an unchanged UDF, with Spark's daemon and the drop-in.

The function is as people write it: a blocking HTTP request for a row, on a connection that its
thread keeps. Each daemon has a Spark and a service of its own, and each result is proved.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from rich.console import Console
from rich.table import Table

from examples.flights import data, job
from examples.flights.background import Background
from examples.flights.client import HTTP_NOT_FOUND, HTTP_OK
from examples.flights.errors import EXIT_DIFFERENT, EXIT_OK, DemoError
from examples.flights.proof import Proof, joined, prove
from examples.flights.run import SMALLEST_SPLIT_BYTES, Options
from examples.flights.service_process import ServiceProcess
from examples.flights.session import spark_session

__all__ = ["DropIn", "Side", "report"]

ROWS: Final = 20_000
"""How many flights, unless it is said: one call after the other takes a while."""

STOCK: Final = "Spark's daemon"
OURS: Final = "the drop-in"

_threads = threading.local()


class Side(NamedTuple):
    """What one daemon did."""

    daemon: str
    seconds: float
    most_held: int
    """Requests that the service held at once, at most."""
    proof: Proof


def fetch_plane(url: str, tailnum: str | None) -> dict[str, Any] | None:
    """Look up a plane by its tail number: the user's function."""
    if tailnum is None:
        return None
    if getattr(_threads, "url", None) != url:
        _threads.url = url
        _threads.connection = http.client.HTTPConnection(urlsplit(url).netloc)
    _threads.connection.request("GET", f"/plane/{quote(tailnum)}")
    with _threads.connection.getresponse() as response:
        body = response.read()
        if response.status == HTTP_OK:
            row: dict[str, Any] = json.loads(body)
            return row
        if response.status == HTTP_NOT_FOUND:
            return None
        raise DemoError(f"{url} answered {response.status} {response.reason}")


class DropIn(Background[list[Side]]):
    """Both sides, one after the other."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self.doing = ""
        """What is being done at the moment, for people."""

    def work(self) -> list[Side]:
        """Run the job with each daemon."""
        calls = str(self._options.bounds.concurrency)
        settings = {
            "spark.python.daemon.module": "rstreams_fast.spark.daemon",
            "spark.executorEnv.RSTREAMS_FAST_UDF_CONCURRENCY": calls,
        }
        with tempfile.TemporaryDirectory(prefix="rstreams-demo-") as work:
            stock = self._side(STOCK, Path(work), {})
            return [stock, self._side(OURS, Path(work), settings)]

    def _side(self, daemon: str, directory: Path, settings: dict[str, str]) -> Side:
        self.check()
        self.doing = f"Looking up planes with {daemon}"
        settings = {**settings, "spark.sql.files.openCostInBytes": str(SMALLEST_SPLIT_BYTES)}
        options, files, log = self._options, data.find_files(), directory / "spark.log"
        rows = data.write_flights(files, directory / "flights.csv", options.rows or ROWS)
        database = directory / f"{daemon}.sqlite"
        data.write_database(files, database)
        with (
            ServiceProcess(database, options.behaviour, log) as service,
            spark_session(options.master, directory, log, settings) as spark,
            self.attached(spark),
        ):
            from pyspark.sql import functions as f

            plane = f.udf(fetch_plane, f"struct<{data.PLANE.ddl}>")
            flights = job.read_flights(spark, directory / "flights.csv")
            output = directory / f"{daemon}.parquet"
            workers = spark.range(spark.sparkContext.defaultParallelism)
            workers.select(f.udf(str)("id")).collect()  # they are started once
            begin = time.monotonic()
            looked_up = flights.withColumn("plane", plane(f.lit(service.url), "tailnum"))
            looked_up.write.parquet(str(output))
            seconds = time.monotonic() - begin
            expected = joined(spark, flights, files).select(*flights.columns, "plane")
            proven = prove(spark.read.parquet(str(output)), expected, output, rows)
            return Side(daemon, seconds, service.stats()["max_held"], proven)


def report(console: Console, sides: Sequence[Side]) -> int:
    """Print the table and the ratio; return the exit status."""
    table = Table("", "seconds", "rows/s", "calls at once", "rows that agree with a SQL join")
    for side in sides:
        proof = side.proof
        table.add_row(
            side.daemon,
            f"{side.seconds:.1f}",
            f"{proof.expected / side.seconds:,.0f}",
            str(side.most_held),
            f"{proof.agree:,} of {proof.expected:,}{'' if proof.in_order else ', out of order'}",
        )
    console.print(table)
    stock, ours = sides
    console.print(f"The same @udf: {stock.seconds / ours.seconds:.1f}x as fast with the drop-in.")
    return EXIT_OK if all(side.proof.holds for side in sides) else EXIT_DIFFERENT
