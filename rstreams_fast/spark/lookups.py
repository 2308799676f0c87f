"""``lookup`` and ``enrich``: call a function for each row, and add the results as columns."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rstreams_fast._checks import check_bool
from rstreams_fast.calls.lists.batching import Batching
from rstreams_fast.calls.settings import DEFAULT_CONCURRENCY
from rstreams_fast.spark.declared import resolve_schema, resolve_type, with_arrow_precision
from rstreams_fast.spark.failures import outcome_struct
from rstreams_fast.spark.frames import (
    Description,
    MapFunction,
    carry_months,
    check_frame,
    check_intervals,
    describe_policy,
    describe_read_ahead,
    folding_of,
    map_in_arrow,
)
from rstreams_fast.spark.lenient_types import Lenient
from rstreams_fast.spark.options import (
    Bounds,
    CallOptions,
    Failures,
    column_names,
    options_of,
    parameter_index,
)
from rstreams_fast.spark.versions import arrow_function_of, column_of, session_zone
from rstreams_fast.spark.worker.outcomes import OUTCOME
from rstreams_fast.spark.worker.output_ring import OUTPUT_BATCHES
from rstreams_fast.spark.worker.rows import SUB_BATCH_ROWS, Layout, run_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from rstreams_fast.spark.metrics import Metrics

__all__ = ["Enrich", "Lookup", "enrich", "lookup"]


def lookup(
    fn: Callable[..., Any],
    returns: str | DataType | pa.DataType,
    *,
    using: Callable[[], Any] | None = None,
    concurrency: int | Literal["auto"] = DEFAULT_CONCURRENCY,
    ordered: bool = True,
    batch: int | Batching | None = None,
    dedupe: bool = False,
    serialize_by: str | None = None,
    on_null: str = "skip",
    on_failure: str | Failures = "raise",
    bounds: Bounds | None = None,
    metrics: Metrics | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    deterministic: bool = False,
) -> Lookup:
    """Make a function that returns the results of ``fn`` as a Spark column; the calls overlap.

    Spark passes only the key columns to Python. With PySpark 4.1 and later,
    ``spark.udf.register(name, lookup)`` makes the lookup a SQL function. If ``fn`` has a
    ``Policy``, the policy applies to its calls.

    ```python
    import rstreams_fast.spark as rs


    @rs.Policy(timeout=2.0, retry=rs.Retry(3))
    async def length_of(tailnum):
        return len(tailnum)


    length = rs.lookup(length_of, "int")
    first = flights.withColumn("length", length("tailnum")).first()
    print(first)  # Row(tailnum='N14228', length=6)
    ```

    Args:
        fn: Gets the values of the key columns as positional arguments and returns the value of the
            row; ``None`` is null. ``fn`` is ``async``, or a plain function, which runs on up to
            ``concurrency`` threads. ``fn`` may have a ``Policy``; the policy's cache and journal
            identify a call by its keys.
        returns: The type of the column, as DDL, Spark or Arrow type. Values are checked and cast.
        using: A factory of a sync or async context manager, which the stage opens once per
            partition, on its event loop. ``fn`` gets the value of the context manager as its first
            argument. Make clients, connections and secrets here, never in the closure of ``fn``. A
            ``PerWorker`` opens the context manager once per Python worker.
        concurrency: The maximum of concurrent calls per running partition. With ``"auto"`` the
            stage makes as many concurrent calls as the service can answer without queueing them.
            The stage finds this number from the latencies of calls. The number is at most 1024, or
            the bound of the policy's ``limit``. ``"auto"`` needs an async ``fn``.
        ordered: Must be ``True``: the values of a column have the order of their rows. ``enrich``
            also takes ``False``.
        batch: The maximum number of keys in a call. ``fn`` gets a list of keys (tuples, if there
            are several key columns), and returns a list with one result for each key. An exception
            in this list is the failure of its row; if ``retry`` repeats the call of the row, the
            row joins a later list. The cache and the journal of the policy, ``dedupe`` and
            ``on_failure`` apply to rows; the rest of the policy applies to calls with lists. A
            ``Batching`` bounds the bytes of a call, and says how long a key waits for others.
            Default: each call gets one key, not a list.
        dedupe: Whether rows with equal keys share a running call, and its failure. Two NaN are
            equal. When summer time ends, the clock shows one hour twice; a time in the first of
            these hours is not equal to the same clock time in the second.
        serialize_by: The name of a parameter of ``fn``. Rows of a partition with the same value of
            this parameter have one call at a time, in their order; other rows do not wait.
        on_null: With ``"skip"`` a row with a null among its keys gets the value null without a
            call. With ``"call"`` ``fn`` gets ``None``.
        on_failure: With ``"raise"`` the exception of a call fails the task; the error shows the
            key. With ``"null"`` the value of the row is null. With ``"column"`` the column is a
            struct of ``value``, ``error`` (``type``, ``message``; null if the call succeeded),
            ``attempts`` and ``seconds``; ``split_failures`` separates the failed rows. With
            ``"column"`` a result that cannot be converted to the declared type is a failure, too;
            otherwise it fails the task. ``Failures`` bounds how many calls may fail. If the
            policy's ``limit`` or ``budget`` counts units, the struct also has a field ``usage``: a
            struct with the amount of each unit that all attempts of the row's call spent. As in the
            limit and the budget, the amount is what ``spent`` reported, or else the estimate of
            ``weigh``. The sum of ``usage`` over all rows is what their calls spent. With ``batch``
            the amount of a call is divided among its rows, in proportion to their weights; a unit
            without weights is divided equally. With ``dedupe`` the first row of a shared call in
            the output has the amounts of the call, and the other rows have 0. A row that the cache
            or the journal answers has 0, too. If a row in a list reaches its ``deadline``, it does
            not get its part of the units that the call spends later.
        bounds: A ``Bounds`` of rows, bytes and seconds for each running partition.
        metrics: The ``Metrics`` that receive live counts. Default: no metrics.
        loop_factory: Makes the event loop for the calls, one loop per partition. Default: the
            factory of uvloop, if it is installed, else ``asyncio.new_event_loop``.
        deterministic: With ``False``, Spark's optimizer neither merges nor moves the calls, and
            pushes no filter below them. With ``True`` the optimizer may do so. If it merges plans,
            a row may have two calls. With both values, Spark makes the calls again if it runs a
            plan twice: for a retried task, for the sampling of an ``orderBy``, or for a frame that
            is used twice and not persisted.

    Returns:
        The column function, to be called with the key columns.

    Raises:
        TypeError: An argument has the wrong type; the message names the argument.
        ValueError: An argument has a wrong value; the message names the argument.
    """
    if ordered is False:
        raise ValueError(
            "lookup(ordered=False): the values of a column must line up with their rows; "
            "use enrich(..., ordered=False)"
        )
    options = options_of(
        fn,
        using=using,
        concurrency=concurrency,
        ordered=ordered,
        batch=batch,
        dedupe=dedupe,
        serialize_by=parameter_index(serialize_by, fn, using),
        on_null=on_null,
        on_failure=on_failure,
        bounds=bounds,
        metrics=metrics,
        loop_factory=loop_factory,
    )
    return Lookup(options, returns, check_bool("deterministic", deterministic))


def enrich(
    fn: Callable[..., Any],
    *,
    on: str | Sequence[str],
    output: str | StructType | pa.Schema,
    using: Callable[[], Any] | None = None,
    concurrency: int | Literal["auto"] = DEFAULT_CONCURRENCY,
    ordered: bool = True,
    batch: int | Batching | None = None,
    dedupe: bool = False,
    serialize_by: str | None = None,
    on_null: str = "skip",
    on_failure: str | Failures = "raise",
    bounds: Bounds | None = None,
    metrics: Metrics | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Enrich:
    """Make a function for ``DataFrame.transform`` that adds the results of ``fn`` as columns.

    ``fn`` is called once for each row. All columns of the DataFrame are kept.

    ```python
    import rstreams_fast.spark as rs


    async def read(tailnum):
        return {"length": len(tailnum), "digits": sum(map(str.isdigit, tailnum))}


    enriched = flights.transform(rs.enrich(read, on="tailnum", output="length int, digits int"))
    print(enriched.first())  # Row(tailnum='N14228', length=6, digits=5)
    ```

    Args:
        fn: Gets the values of the columns ``on``. If ``output`` has one column, ``fn`` returns its
            value. For several columns it returns a tuple in their order, or a dict, a ``Row`` or a
            named tuple with exactly their names. ``None`` makes all output columns null: they are
            always nullable. ``fn`` may have a ``Policy``, as in ``lookup``.
        on: The name of the key column, or the names of several key columns.
        output: The columns to add, as DDL, ``StructType`` or Arrow schema.
        using: As in ``lookup``.
        concurrency: As in ``lookup``.
        ordered: Whether rows keep their order within a partition. With ``False`` rows have the
            order in which their calls finish.
        batch: As in ``lookup``.
        dedupe: As in ``lookup``.
        serialize_by: As in ``lookup``.
        on_null: As in ``lookup``.
        on_failure: As in ``lookup``, except that ``"column"`` adds a last column ``outcome``: a
            struct of ``error``, ``attempts``, ``seconds`` and, if the policy counts units,
            ``usage``. If the call failed, the output columns are null, and ``outcome.error`` says
            why.
        bounds: As in ``lookup``.
        metrics: As in ``lookup``.
        loop_factory: As in ``lookup``.

    Returns:
        The function from DataFrame to DataFrame.

    Raises:
        TypeError: An argument has the wrong type; the message names the argument.
        ValueError: An argument has a wrong value; the message names the argument.
    """
    keys = column_names("on", on)
    if not keys:
        raise TypeError(f"on must name at least one column, got {on!r}")
    options = options_of(
        fn,
        using=using,
        concurrency=concurrency,
        ordered=ordered,
        batch=batch,
        dedupe=dedupe,
        serialize_by=parameter_index(serialize_by, fn, using),
        on_null=on_null,
        on_failure=on_failure,
        bounds=bounds,
        metrics=metrics,
        loop_factory=loop_factory,
    )
    if options.serialize_by is not None and options.serialize_by >= len(keys):
        raise ValueError(f"serialize_by={serialize_by!r}: fn gets {len(keys)} keys")
    return Enrich(options, keys, output)


class Lookup:
    """A function that returns Spark columns, made by ``lookup``. Immutable and reusable.

    ``lookup(*keys)`` returns the column of results for the given key columns, which are names or
    ``Column`` objects. The attributes such as ``evalType`` are for ``spark.udf.register``.
    """

    def __init__(self, options: CallOptions, returns: Any, deterministic: bool) -> None:
        self._options = options
        self._returns = returns
        self.deterministic = deterministic
        self._key = uuid.uuid4().hex[:12]

    def __call__(self, *keys: str | Column) -> Column:
        """Return the column of results for the given key columns."""
        if not keys:
            raise TypeError(f"{self._options.label}: a lookup needs at least one key column")
        if (place := self._options.serialize_by) is not None and place >= len(keys):
            raise ValueError(f"serialize_by: there are only {len(keys)} key columns")
        self._options.declare()
        run, declared = self._column_function()
        carried = with_arrow_precision(declared)
        column = column_of(run, carried, self._options.label, keys, self.deterministic)
        return column if carried == declared else column.cast(declared)

    def _column_function(self) -> tuple[Callable[[Iterator[Any]], Iterator[Any]], DataType]:
        declared, kind = resolve_type(self._returns, "returns")
        options, key = self._options, self._key
        lenient_arguments = _lenient_arguments(self._returns)
        layout = Layout(None, ("value",), (kind,), outcome=self._outcome, **lenient_arguments)
        if self._outcome:
            declared = outcome_struct(options.policy.units, value=declared)

        def run(arrays: Iterator[Any]) -> Iterator[Any]:
            return run_rows(options, layout, key, iter(arrays))

        return run, declared

    @property
    def _outcome(self) -> Literal["", "within"]:
        return "within" if self._options.on_failure == "column" else ""

    # ``spark.udf.register`` needs the following attributes, and Spark prescribes their names.

    def asNondeterministic(self) -> Lookup:  # noqa: N802
        """Return a copy of this lookup with ``deterministic=False``."""
        return Lookup(self._options, self._returns, False)

    @property
    def evalType(self) -> int:  # noqa: N802
        """Spark's number for Arrow UDFs over an iterator of arrays."""
        return int(self._registered.evalType)

    @property
    def returnType(self) -> DataType:  # noqa: N802
        """The Spark type of the column."""
        return self._column_function()[1]

    @property
    def func(self) -> Callable[..., Any]:
        """The function that Spark calls in a worker, with an iterator over arrays of keys."""
        function: Callable[..., Any] = self._registered.func
        return function

    @property
    def _registered(self) -> Any:
        run, declared = self._column_function()
        return arrow_function_of(run, declared, self._options.label, 2, self.deterministic)

    def as_map_fn(self, on: str | Sequence[str] = (), name: str = "value") -> MapFunction:
        """Return the lookup as a function for ``DataFrame.mapInArrow``: from batches to batches.

        Args:
            on: The names of the key columns. Default: all columns.
            name: The name of the new column that is appended to the batches.

        Raises:
            TypeError: ``name`` or ``on`` is not a column's name.
        """
        _, kind = resolve_type(self._returns, "returns")
        if not isinstance(name, str):
            raise TypeError(f"name must be a column's name, got {name!r}")
        key_names, lenient_arguments = column_names("on", on), _lenient_arguments(self._returns)
        layout = Layout(key_names, (name,), (kind,), "name", self._outcome, **lenient_arguments)
        return _map_function(self._options, layout, self._key)

    def describe(self) -> str:
        """Return a readable description: the bounds and the threads of each running partition."""
        return _describe("lookup", self._options)

    def __repr__(self) -> str:
        return f"<lookup {self._options.label}>"


class Enrich:
    """A function from DataFrame to DataFrame, made by ``enrich``. Immutable and reusable."""

    def __init__(self, options: CallOptions, on: tuple[str, ...], output: Any) -> None:
        self._options = options
        self._on = on
        self._output = output
        self._key = uuid.uuid4().hex[:12]

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` with the output columns added."""
        check_frame(frame, repr(self))
        self._options.declare()
        from pyspark.sql.types import StructField, StructType

        declared, schema = resolve_schema(self._output, "output")
        before = frame.schema
        fold = folding_of(frame)
        taken = set(map(fold, before.names))
        added_by = dict.fromkeys(declared.names, "output")
        if self._options.on_failure == "column":
            if OUTCOME in map(fold, declared.names):
                raise ValueError(
                    f"on_failure='column': output names the column {OUTCOME!r}, which it adds"
                )
            outcome = outcome_struct(self._options.policy.units)
            declared = StructType([*declared.fields, StructField(OUTCOME, outcome)])
            added_by[OUTCOME] = "on_failure='column'"
        for name, word in added_by.items():
            if fold(name) in taken:
                raise ValueError(f"{word}: the frame has a column {name!r} already")
        keys = tuple(_resolve_name(name, before.names, fold) for name in self._on)
        carried, restore = carry_months(frame)
        for key in keys:
            if before[key] not in carried.schema.fields:
                raise TypeError(
                    f"on: {key!r} is an interval of months, which Python has no value for; "
                    "cast it to a string or a number"
                )
        check_intervals(carried)
        # Declare the new columns nullable, also if the user declared them ``not null``: a row with
        # a null key, or a result ``None``, gives nulls.
        added = [StructField(f.name, f.dataType, True, f.metadata) for f in declared.fields]
        schema_after = StructType([*carried.schema.fields, *added])
        return restore(map_in_arrow(carried, self._map_fn(keys, schema, frame), schema_after))

    def as_map_fn(self) -> MapFunction:
        """Return the stage as a function for ``DataFrame.mapInArrow``: from batches to batches."""
        _, schema = resolve_schema(self._output, "output")
        return self._map_fn(self._on, schema)

    def _map_fn(
        self, keys: tuple[str, ...], schema: pa.Schema, frame: DataFrame | None = None
    ) -> MapFunction:
        outcome: Literal["", "beside"] = "beside" if self._options.on_failure == "column" else ""
        columns = tuple(schema.names), tuple(schema.types)
        lenient_arguments = _lenient_arguments(self._output, frame)
        layout = Layout(keys, *columns, outcome=outcome, **lenient_arguments)
        return _map_function(self._options, layout, self._key)

    def describe(self) -> str:
        """Return a readable description: the bounds and the threads of each running partition."""
        return _describe("enrich", self._options)

    def __repr__(self) -> str:
        return f"<enrich {self._options.label} on {', '.join(self._on)}>"


def _lenient_arguments(declared: Any, frame: DataFrame | None = None) -> dict[str, Any]:
    """Return the additional arguments of ``Layout`` if ``declared`` is ``Lenient``, else none."""
    return {"lenient": True, "zone": session_zone(frame)} if isinstance(declared, Lenient) else {}


def _resolve_name(name: str, names: Sequence[str], fold: Callable[[str], str]) -> str:
    """Return the column name in ``names`` that Spark would resolve ``name`` to.

    An exact match comes first, then the only match after ``fold``, which may ignore the case.
    """
    if list(names).count(name) == 1:
        return name
    alike = [known for known in names if fold(known) == fold(name)]
    if not alike:
        raise ValueError(f"on: the frame has no column {name!r}; it has {', '.join(names)}")
    if len(alike) > 1:
        raise ValueError(f"on: {name!r} may be any of {', '.join(alike)}")
    return alike[0]


def _map_function(options: CallOptions, layout: Layout, key: str) -> MapFunction:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        return run_rows(options, layout, key, iter(batches))

    return run


def _describe(what: str, options: CallOptions) -> str:
    order = "in order" if options.ordered else "as they finish"
    how = "on the loop" if options.is_async else f"on up to {options.concurrency} threads"
    keys = "" if options.batch is None else f", {options.batch.describe()}"
    lines = [
        f"{what} {options.label}, in each partition at work:",
        f"  calls: at most {options.concurrency} at once{keys}, {how}"
        + (", as many as answers show to be right" if options.auto else "")
        + (", equal keys in flight share one" if options.dedupe else ""),
        f"  window: at most {options.window_rows} rows pending, results {order}",
        describe_read_ahead(options),
        f"  results: a ring of {OUTPUT_BATCHES} sub-batches of at most {SUB_BATCH_ROWS} rows",
        "  threads: Spark's own, a reader, a loop"
        + ("" if options.is_async else f", up to {options.concurrency} for calls"),
    ]
    return Description("\n".join(lines + describe_policy(options)))
