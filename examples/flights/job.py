"""The job itself: read the flights, give each its weather and its plane, let Parquet appear."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rstreams_fast.spark as rs
from examples.flights import data
from examples.flights.client import OpenSession, fetch_plane, fetch_weather

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["STAGES", "Bounds", "appearing", "enrich", "read_flights"]

STAGES = (fetch_weather.__name__, fetch_plane.__name__)
"""The two stages, by the names their metrics go by, in the order a row passes them."""


@dataclass(frozen=True)
class Bounds:
    """What each of the two stages may hold in each task, and how long it may wait."""

    concurrency: int = 64
    max_buffer_bytes: int = 8 << 20
    timeout: float = 60.0
    """Seconds after which a look-up is given up, and its task fails."""


def read_flights(spark: SparkSession, file: Path) -> DataFrame:
    """Read the flights, typed; a value that does not fit its type is an error, not a null."""
    return spark.read.csv(
        str(file),
        schema=data.FLIGHTS_SCHEMA,
        header=True,
        nullValue=data.MISSING_VALUE,
        mode="FAILFAST",
    )


def enrich(flights: DataFrame, url: str, bounds: Bounds, metrics: rs.Metrics) -> DataFrame:
    """Give every flight its weather and its plane, by HTTP.

    An hour's flights share their weather: equal keys in flight share one call. Planes are asked for
    one by one, and only the tail number crosses to Python for them.
    """
    words: dict[str, Any] = {
        "using": OpenSession(url, bounds.concurrency),
        "concurrency": bounds.concurrency,
        "bounds": rs.Bounds(bytes=bounds.max_buffer_bytes),
        "metrics": metrics,
    }
    policy = rs.Policy(timeout=bounds.timeout)
    weather = rs.enrich(
        policy(fetch_weather),
        on=["origin", "time_hour"],
        output=data.WEATHER.ddl,
        dedupe=True,
        **words,
    )
    plane = rs.lookup(policy(fetch_plane), f"struct<{data.PLANE.ddl}>", **words)
    return flights.transform(weather).withColumn("plane", plane("tailnum"))


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Give a path to write to, which becomes ``target`` at the end of the block.

    An older ``target`` is replaced then; if the block fails, it stays, and what was written goes.
    """
    partial = target.with_name(f"{target.name}.partial")
    _remove(partial)
    try:
        yield partial
        _remove(target)
        partial.rename(target)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:  # a file, or a link, whose other end stays
        path.unlink(missing_ok=True)
