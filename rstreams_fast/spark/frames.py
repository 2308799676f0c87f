"""The base class of the stages ``map_batches`` and ``stage``, and helpers for all stages.

A stage is a function from DataFrame to DataFrame: it runs the user's function in Spark's workers.
"""

from __future__ import annotations

import contextlib
import html
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rstreams_fast.spark.declared import resolve_schema, resolve_type, with_arrow_precision
from rstreams_fast.spark.lenient_types import Lenient
from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.versions import session_zone
from rstreams_fast.spark.worker.partition import Partition, first_of
from rstreams_fast.spark.worker.read_ahead import READ_AHEAD_BATCHES
from rstreams_fast.spark.worker.values.frame_columns import LENIENT, ZONE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = [
    "Description",
    "FrameMap",
    "MapFunction",
    "carry_months",
    "check_frame",
    "check_intervals",
    "describe_policy",
    "describe_read_ahead",
    "map_in_arrow",
]

MapFunction = Callable[[Iterable[Any]], Iterator[Any]]
"""A function for ``mapInArrow``: from the record batches of a partition to output batches."""


class FrameMap(ABC):
    """The base class of functions from DataFrame to DataFrame that use ``mapInArrow``. Immutable.

    Spark sends this object to its workers as a pickle, together with the user's function. The
    object has no state: each partition has its own state, in a generator.
    """

    def __init__(self, options: CallOptions, schema: Any) -> None:
        self.options = options
        self.key = uuid.uuid4().hex[:12]
        self._schema = schema

    @abstractmethod
    def work(self, schema: pa.Schema, partition: Partition, first: list[Any]) -> Iterator[Any]:
        """Return the output batches of a partition. ``first`` is a list with the first input batch.

        The method pops the batch, so that the list does not keep the batch in memory.
        """

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Return the DataFrame that this stage makes of ``frame``."""
        check_frame(frame, repr(self))
        self.options.declare()
        declared, _ = resolve_schema(self._schema, "schema")
        run = self._map_fn(session_zone(frame))
        return map_in_arrow(frame, run, self.output_of(frame, declared))

    def output_of(self, frame: DataFrame, declared: StructType) -> StructType:  # noqa: ARG002
        """Return the schema of the output for ``frame``. Default: ``declared`` itself."""
        return declared

    def as_map_fn(self) -> MapFunction:
        """Return this stage as a function for ``DataFrame.mapInArrow``: from batches to batches."""
        return self._map_fn(session_zone())

    def _map_fn(self, zone: str | None) -> MapFunction:
        _, schema = resolve_schema(self._schema, "schema")
        metadata = {} if zone is None else {ZONE: zone.encode()}
        if isinstance(self._schema, Lenient):
            metadata[LENIENT] = b"true"
        schema = schema.with_metadata(metadata or None)
        spec = self

        def run(batches: Iterable[Any]) -> Iterator[Any]:
            return spec._run(schema, iter(batches))

        return run

    def _run(self, schema: pa.Schema, upstream: Iterator[Any]) -> Iterator[Any]:
        first = first_of(upstream, f"{self.options.label}: a column of the frame")
        if first is None:
            return
        partition = Partition(
            upstream,
            _count_rows,
            label=self.options.label,
            key=self.key,
            max_buffer_bytes=self.options.bounds.bytes,
            metrics=self.options.metrics,
        )
        first_batch = [first]
        del first, upstream
        yield from self.work(schema, partition, first_batch)


class Description(str):
    """A text that a notebook shows with its line breaks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def describe_read_ahead(options: CallOptions) -> str:
    """Return the line of ``describe()`` about how much input a stage reads ahead."""
    return (
        f"  read ahead: a ring of {READ_AHEAD_BATCHES} batches, under a demand counter of "
        f"{options.bounds.bytes} bytes (one larger batch passes alone)"
    )


def describe_policy(options: CallOptions) -> list[str]:
    """Return the lines of ``describe()`` about the policy and the bounds of the calls."""
    policy, lines = options.policy, []
    if policy.timeout is not None:
        lines.append(f"  time-out: {policy.timeout} s for each attempt")
    if options.serialize_by is not None:
        lines.append(f"  order: one call at a time of each value of key {options.serialize_by}")
    for seconds, of in (policy.deadline, "each row"), (options.bounds.seconds, "the partition"):
        if seconds is not None:
            lines.append(f"  deadline: {seconds:g} s for {of}")
    if policy.circuit is not None:
        lines.append(f"  {policy.circuit.describe()}")
    if policy.retry is not None:
        lines.append(f"  retries: at most {policy.retry.times}")
    if policy.cache is not None:
        lines.append(f"  in each worker: {policy.cache.describe()}")
    if policy.journal is not None:
        lines.append(
            f"  {policy.journal!r}: the calls in flight of a killed worker are made again, "
            f"at most {options.running_rows} in each partition"
        )
    spenders = [each for each in (policy.limit, policy.budget) if each is not None]
    lines += [f"  {each.describe()}" for each in spenders]
    return lines


def check_frame(frame: object, what: str) -> None:
    """Raise ``TypeError`` if ``frame`` is not a Spark DataFrame, classic or Connect.

    ``what`` names the called function in the error message.
    """
    if not callable(getattr(frame, "mapInArrow", None)):
        raise TypeError(
            f"{what} takes a Spark DataFrame, got {type(frame).__module__}.{type(frame).__name__}"
        )


def folding_of(frame: DataFrame) -> Callable[[str], str]:
    """Return a function that maps names of the same column to the same string.

    It lowers the case of a name, unless ``spark.sql.caseSensitive`` is true.
    """
    cased = frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")
    return str if str(cased).lower() == "true" else str.lower


def check_intervals(frame: DataFrame) -> None:
    """Raise an error for an interval column that Python cannot return to Spark.

    Spark's own error would not name the column.
    """
    for field in frame.schema.fields:
        if "Interval" in repr(field.dataType):
            resolve_type(field.dataType, f"the frame's column {field.name!r}")


def map_in_arrow(frame: DataFrame, run: MapFunction, schema: StructType) -> DataFrame:
    """Return ``frame.mapInArrow(run, schema)``, also for columns whose names Spark cannot resolve.

    ``mapInArrow`` selects the columns by their names. It does not find a name with a dot or a
    backtick, or a name of two columns, and it expands a star. So this function renames the columns
    for Spark, and gives ``run`` batches with the original names. Spark matches the results by
    position. If times or intervals in ``schema`` are less precise than in Arrow, Spark casts the
    results to ``schema``.
    """
    carried = with_arrow_precision(schema)
    if carried != schema:
        return _cast_to(map_in_arrow(frame, run, carried), schema)
    names = list(frame.columns)
    if _are_safe_names(names) and _are_safe_names(schema.names):
        return frame.mapInArrow(run, schema)
    inside, outside = _numbered_names(names), _numbered_names(schema.names)

    def run_renamed(batches: Iterable[Any]) -> Iterator[Any]:
        with contextlib.closing(run(_rename_columns(batch, names) for batch in batches)) as outputs:  # type: ignore[type-var]
            for batch in outputs:
                yield _rename_columns(batch, outside)

    return frame.toDF(*inside).mapInArrow(run_renamed, schema)


def _rename_columns(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return ``batch`` with other column names. In pyarrow before 16, batches cannot be renamed."""
    schema = batch.schema
    for place, name in enumerate(names):
        schema = schema.set(place, schema.field(place).with_name(name))
    return type(batch).from_arrays(batch.columns, schema=schema)


def _cast_to(frame: DataFrame, schema: StructType) -> DataFrame:
    from pyspark.sql.functions import col

    inside = _numbered_names(schema.names)
    columns = [
        col(name)
        if before.dataType == field.dataType
        else col(name).cast(field.dataType).alias(field.name, metadata=field.metadata)
        for name, before, field in zip(inside, frame.schema, schema, strict=True)
    ]
    return frame.toDF(*inside).select(*columns).toDF(*schema.names)


def carry_months(frame: DataFrame) -> tuple[DataFrame, Callable[[DataFrame], DataFrame]]:
    """Return ``frame`` with month intervals as integers, and a function that converts them back.

    Spark refuses to pass month intervals to Python, because Python has no type for them.
    """
    kinds = {
        f"_{place}": field.dataType.simpleString()
        for place, field in enumerate(frame.schema.fields)
        if type(field.dataType).__name__ == "YearMonthIntervalType"
    }
    if not kinds:
        return frame, lambda after: after

    def with_cast(before: DataFrame, to: Callable[[str], str]) -> DataFrame:
        found = list(before.columns)
        inside = _numbered_names(found)
        months = {name: f"cast({name} as interval month)" for name in kinds}
        columns = [
            f"cast({months[name]} as {to(name)}) as {name}" if name in kinds else name
            for name in inside
        ]
        return before.toDF(*inside).selectExpr(*columns).toDF(*found)

    def restore(after: DataFrame) -> DataFrame:
        return with_cast(after, kinds.__getitem__)

    return with_cast(frame, lambda _: "int"), restore


def _are_safe_names(names: Sequence[str]) -> bool:
    return len({name.lower() for name in names}) == len(names) and not any(
        name == "*" or mark in name for name in names for mark in ".`"
    )


def _numbered_names(names: Sequence[str]) -> list[str]:
    return [f"_{index}" for index in range(len(names))]


def _count_rows(batch: Any) -> int:
    return int(batch.num_rows)
