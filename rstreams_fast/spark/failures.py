"""``split_failures``, and the type of the column that reports the failures of calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rstreams_fast.spark.frames import check_frame, folding_of
from rstreams_fast.spark.worker.outcomes import INPUT, OUTCOME, USAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["outcome_struct", "split_failures"]


def split_failures(frame: DataFrame, column: str = OUTCOME) -> tuple[DataFrame, DataFrame]:
    """Return the good rows of ``frame``, and the rows whose call failed: the dead letters.

    In the good rows of a ``lookup``, its column has the plain values instead of the outcome
    structs. In the good rows of ``enrich`` and ``map_batches``, the column ``outcome`` is dropped.
    The dead letters keep all columns; after ``map_batches`` their input row is in
    ``outcome.input``.

    Spark makes all calls again for each action on either returned frame. To avoid this, pass
    ``frame.localCheckpoint()``, or write ``frame`` first. ``persist()`` is not enough: if an
    executor is lost, Spark repeats the calls for its rows. If a repeated call succeeds after the
    first failed (or the reverse), its row may be in both frames, or in neither.

    Args:
        frame: A frame of ``lookup``, ``enrich`` or ``map_batches`` with ``on_failure="column"``.
        column: The column of outcomes; for a ``lookup`` the column of its results.

    Returns:
        The frame of good rows, and the frame of dead letters.

    Raises:
        TypeError: ``column`` is not a column of outcomes.
    """
    check_frame(frame, "split_failures")
    from pyspark.sql.types import StructType

    if column not in frame.columns:
        fold = folding_of(frame)
        column = next((name for name in frame.columns if fold(name) == fold(column)), column)
    kind = frame.schema[column].dataType if column in frame.columns else None
    if not isinstance(kind, StructType) or not {"error", "attempts"}.issubset(kind.names):
        raise TypeError(
            f"column: {column!r} is no column of outcomes, which lookup, enrich and map_batches "
            f"give with on_failure='column'; there are {', '.join(frame.columns)}"
        )
    quoted = "`" + column.replace("`", "``") + "`"
    failed = f"{quoted}.error is not null"
    good = frame.where(f"not ({failed})")
    if "value" in kind.names:
        good = good.withColumn(column, good[f"{quoted}.value"])
    else:
        good = good.drop(column)
    return good, frame.where(failed)


def outcome_struct(
    units: Iterable[str], *, value: DataType | None = None, inputs: DataType | None = None
) -> StructType:
    """Return the Spark type of the column ``outcome``, which reports the outcome of each call.

    The policy's ``units`` add a field ``usage``. ``value`` is the type of an additional first field
    (for ``lookup``), ``inputs`` of an additional last field (for ``map_batches``).
    """
    from pyspark.sql import types as t

    error = t.StructType([t.StructField(name, t.StringType()) for name in ("type", "message")])
    fields = [
        t.StructField("error", error),
        t.StructField("attempts", t.IntegerType()),
        t.StructField("seconds", t.DoubleType()),
    ]
    if usage := [t.StructField(unit, t.DoubleType()) for unit in units]:
        fields.append(t.StructField(USAGE, t.StructType(usage)))
    first = [] if value is None else [t.StructField("value", value)]
    last = [] if inputs is None else [t.StructField(INPUT, inputs)]
    return t.StructType([*first, *fields, *last])
