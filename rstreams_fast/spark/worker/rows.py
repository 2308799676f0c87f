"""Runs ``lookup`` and ``enrich`` in one partition: rows become keys, and results become columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal

from rstreams_fast.calls.collector import FewerCollections
from rstreams_fast.calls.engine import Surroundings
from rstreams_fast.calls.errors import with_note
from rstreams_fast.calls.journal.calls import JournalledCalls
from rstreams_fast.calls.memory.cache import CachedResults
from rstreams_fast.core import CallWindow
from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.worker.answer_forms import ColumnForm
from rstreams_fast.spark.worker.call_stage import CallStage
from rstreams_fast.spark.worker.counters import Counters
from rstreams_fast.spark.worker.keys import as_argument, hashable_keys, keys_of
from rstreams_fast.spark.worker.outcomes import OUTCOME, OutcomeForm, RowFailures
from rstreams_fast.spark.worker.partition import Output, Partition, first_of
from rstreams_fast.spark.worker.read_ahead import ByteLease
from rstreams_fast.spark.worker.values.conversions import Columns, ValueSource, shorten
from rstreams_fast.spark.worker.values.zones import zone_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SUB_BATCH_ROWS", "Layout", "run_rows"]

SUB_BATCH_ROWS: Final = 1024
"""The most rows of a sub-batch: a part of an input batch that becomes an output batch."""

RESULTS_SHARE: Final = 8
"""A sub-batch is a part of an input batch that becomes an output batch. Its results may take at
most 1/``RESULTS_SHARE`` of the bytes that the user allows by ``Bounds(bytes=...)``."""


@dataclass(frozen=True)
class Layout:
    """Says which columns of an input are the keys, and which columns the output has.

    If ``on`` is a tuple (``enrich``), each input is a record batch. The columns named in ``on`` are
    the keys; an empty ``on`` means all columns. The results are appended as columns.

    If ``on`` is ``None`` (a ``lookup`` that makes a column), each input is a key array, or a tuple
    of key arrays, and each output is an array.
    """

    on: tuple[str, ...] | None
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    argument: str = "output"
    """The name of the user's argument that declares the output columns, for error messages."""
    outcome: Literal["", "within", "beside"] = ""
    """How the outcomes of calls (error, seconds, attempts) are returned. ``within``: in a struct of
    the value and its outcome. ``beside``: in a last column. Empty: they are not returned.
    """
    lenient: bool = False
    """Whether results may lack declared fields, have undeclared fields, and give times as texts."""
    zone: str | None = None
    """If ``lenient``, a result may have a text as a time. This is the time zone for texts without a
    zone: the zone of the Spark session. Without ``lenient`` it is ``None``."""

    @property
    def columns(self) -> Columns:
        zone = None if self.zone is None else zone_of(self.zone)
        return Columns(self.names, self.types, ValueSource(zone, lenient=self.lenient))

    @property
    def appended(self) -> tuple[str, ...]:
        """The names of all columns that are appended to the input.

        With ``on_failure="column"`` the last of these columns reports the outcome of each call.
        """
        return (*self.names, OUTCOME) if self.outcome == "beside" else self.names

    def count(self, batch: Any) -> int:
        if isinstance(batch, tuple):
            return len(batch[0])
        return len(batch) if self.on is None else int(batch.num_rows)

    def keys(self, batch: Any) -> Sequence[pa.Array]:
        if self.on is None:
            return batch if isinstance(batch, tuple) else (batch,)
        names = batch.schema.names
        if taken := [name for name in self.appended if name in names]:
            raise ValueError(
                f"{self.argument}: there is a column {', '.join(taken)} already; "
                f"there are {', '.join(names)}"
            )
        if missing := [name for name in self.on if name not in names]:
            raise ValueError(f"on: no column {', '.join(missing)}; there are {', '.join(names)}")
        return [batch.column(name) for name in self.on] if self.on else list(batch.columns)

    def key_name(self, batch: Any, index: int) -> str:
        if self.on is None:
            # The input of a ``lookup`` is key arrays without column names: use the array's number.
            return f"number {index + 1}"
        return repr(self.on[index] if self.on else batch.schema.names[index])

    def output(self, rows: Any, arrays: list[pa.Array]) -> Any:
        """Return the result columns ``arrays``; with ``enrich``, appended to the input ``rows``."""
        import pyarrow as pa

        if self.on is None:
            return arrays[0]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *arrays], names=[*rows.schema.names, *self.appended]
        )

    def key_text(self, key: Any) -> str:
        if self.on and len(self.on) == 1:
            return f"the key {self.on[0]}={shorten(key)}"
        if self.on and isinstance(key, tuple) and len(key) == len(self.on):
            pairs = zip(self.on, key, strict=True)
            return f"the key {', '.join(f'{name}={shorten(value)}' for name, value in pairs)}"
        return f"the key {shorten(key)}"


class _Batch:
    """An input batch that is being processed. ``left``: how many rows have no output yet."""

    __slots__ = ("keys", "lease", "left", "rows", "total")

    def __init__(self, rows: Any, keys: Sequence[Any], total: int, lease: ByteLease) -> None:
        self.rows: Any = rows
        self.keys = keys
        self.total = total
        self.left = total
        self.lease = lease


class _Chunk:
    """A part of an input batch whose keys are made together: ``rows`` rows, from ``start`` on.

    ``keys`` has the keys of the rows that have a call. ``valid`` says which rows have a call;
    ``None``: all rows. (With ``on_null="skip"`` a row with a null key has no call.)
    """

    __slots__ = ("batch", "first", "keys", "left", "results", "rows", "rows_out", "start", "valid")

    def __init__(
        self, batch: _Batch, start: int, rows: int, keys: list[Any], valid: pa.Array | None
    ) -> None:
        self.batch = batch
        self.start = start
        self.rows = rows
        self.keys = keys
        self.valid = valid
        self.left = len(keys)
        """How many calls of the chunk have no result yet."""
        self.first = 0
        """The number of the first of ``keys``; the keys of a partition are numbered from 0 on. By
        this number ``UnorderedSink`` finds the row of a result. ``OrderedSink`` does not use it."""
        # Only ``OrderedSink`` uses the next two fields: the results that are not emitted yet, and
        # the number of the chunk's rows that are emitted.
        self.results: list[Any] = []
        self.rows_out = 0


# -- from input batches to keys, the arguments of the calls ----------------------------------------


class KeySource:
    """Converts input rows to keys, with which the user's function is called.

    A key has the values of a row's key columns. The rows that are converted together are a
    ``_Chunk``, a part of an input batch.
    """

    def __init__(
        self, partition: Partition, options: CallOptions, layout: Layout, spread: bool
    ) -> None:
        self._read_ahead = partition.read_ahead
        self._budget = partition.budget
        self._counters = partition.counters
        self._skip_nulls = options.on_null == "skip"
        self._compares_keys = options.compares_keys
        self._layout = layout
        self._spread = spread
        self._batch: _Batch | None = None  # the batch from which ``next`` takes the next rows
        self._next_row = 0

    @property
    def ended(self) -> bool:
        return self._read_ahead.ended

    def name_of(self, item: Any) -> str:
        return self._layout.key_text(item)

    def next(self, rows: int) -> _Chunk | None:
        """Return the next input rows, at most ``rows``, and their keys. ``None``: none is ready."""
        import pyarrow.compute as pc

        batch = self._next_batch()
        if batch is None:
            return None
        start = self._next_row
        rows = min(rows, batch.total - start)
        self._next_row = start + rows
        arrays = [array.slice(start, rows) for array in batch.keys]
        valid = None
        if self._skip_nulls:
            for array in arrays:
                if array.null_count:
                    mask = array.is_valid()
                    valid = mask if valid is None else pc.and_(valid, mask)
        if valid is not None:
            arrays = [array.filter(valid) for array in arrays]
            self._counters.skipped += rows - len(arrays[0])
        lists = [
            keys_of(array, self._layout.key_name(batch.rows, index))
            for index, array in enumerate(arrays)
        ]
        if self._compares_keys:
            lists = list(map(hashable_keys, lists, arrays))
        keys = list(zip(*lists, strict=True)) if self._spread else lists[0]
        if self._next_row == batch.total:
            batch.keys = ()
            if self._layout.on is None:
                # The batch has only key columns, and all their values are converted: release it.
                batch.rows = None
                self._budget.release(batch.lease)
        return _Chunk(batch, start, rows, keys, valid)

    def _next_batch(self) -> _Batch | None:
        while self._batch is None or self._next_row == self._batch.total:
            self._batch = None
            self._next_row = 0
            found = self._read_ahead.poll()
            if found is None:
                return None
            rows, lease = found
            total = self._layout.count(rows)
            if total:
                self._batch = _Batch(rows, self._layout.keys(rows), total, lease)
            else:
                self._budget.release(lease)
        return self._batch


# -- from the results of the calls to output batches -----------------------------------------------


class ResultColumns:
    """Converts the results of calls to columns, and appends these columns to the input rows.

    It also bounds the pending calls, so that their results fit in ``Bounds(bytes)``.
    """

    def __init__(self, options: CallOptions, layout: Layout, counters: Counters) -> None:
        self._options = options
        self.layout = layout
        self._columns = layout.columns
        self._counters = counters
        self._outcomes = OutcomeForm(options.policy.units)
        self.failures = RowFailures(options, counters)
        self.outputs: deque[Output] = deque()
        self.pending_rows = 0  # input rows whose keys are made, but which are in no output yet
        self.chunk_rows = SUB_BATCH_ROWS
        self.most_pending = options.window_rows

    def arrays(self, results: list[Any], key_at: Callable[[int], Any]) -> list[pa.Array]:
        """Convert ``results``, one per call, to the declared columns.

        If ``results[index]`` does not fit, the error names the key of its call, ``key_at(index)``.
        """
        layout = self.layout
        values = self._values_of(results)
        try:
            arrays = self._convert(values, key_at)
        except (TypeError, ValueError) as mismatch:
            if self._options.on_failure != "column":
                raise with_note(
                    mismatch, f"returned by {self._options.label}"
                ) from mismatch.__cause__
            results = [self._result_or_failure(*each, key_at) for each in enumerate(results)]
            values = self._values_of(results)
            arrays = self._convert(values, key_at)
        else:
            self.failures.accept(results)
        if results:
            nulls = arrays[0].null_count if len(arrays) == 1 else values.count(None)
            self._counters.nulls += nulls
        if layout.outcome == "within":
            arrays = [self._outcomes.with_values(arrays[0], results)]
        elif layout.outcome == "beside":
            arrays.append(self._outcomes.array(results))
        if results:
            self._adapt_bounds(sum(array.nbytes for array in arrays) / len(results))
        return arrays

    def _values_of(self, results: list[Any]) -> list[Any]:
        if not self.layout.outcome:
            return results
        return [None if result is None else result.value for result in results]

    def _convert(self, values: list[Any], key_at: Callable[[int], Any]) -> list[pa.Array]:
        key_text = self.layout.key_text
        return self._columns.arrays(values, lambda index: key_text(key_at(index)))

    def _result_or_failure(self, index: int, result: Any, key_at: Callable[[int], Any]) -> Any:
        try:
            self._convert(self._values_of([result]), lambda _: key_at(index))
        except (TypeError, ValueError) as mismatch:
            return self.failures.refuse(result, mismatch)
        self.failures.accept([result])
        return result

    def _adapt_bounds(self, bytes_per_row: float) -> None:
        """Bound the pending calls, and the rows converted at once, by the size of the results.

        ``bytes_per_row`` is the average size of the latest results. The results of all pending
        calls should fit in ``Bounds(bytes)``.
        """
        options = self._options
        fitting = int(options.bounds.bytes / max(bytes_per_row, 1))
        self.most_pending = min(options.window_rows, max(options.running_rows, fitting))
        self.chunk_rows = max(1, min(SUB_BATCH_ROWS, fitting // RESULTS_SHARE))

    def emit(self, batch: _Batch, rows: Any, count: int, arrays: list[pa.Array]) -> None:
        """Queue an output: ``count`` rows of the input ``batch``, and their results ``arrays``."""
        batch.left -= count
        self.pending_rows -= count
        lease = None
        if batch.left == 0 and self.layout.on is not None:
            # This is the last output of the input batch. After the main thread has yielded it to
            # Spark, the main thread gives the bytes of the input batch back to the byte budget.
            lease = batch.lease
        self.outputs.append(Output(self.layout.output(rows, arrays), count, lease))

    def check_end(self) -> None:
        """Raise an error if a row of the input is in no output."""
        if self.pending_rows:
            raise RuntimeError(f"{self.pending_rows} rows were not handed on; this is a bug")


class _RowSink(ABC):
    """Emits the input rows with the results of their calls. A ``CallPump``, which starts the calls
    and moves their results on, calls the methods.
    """

    def __init__(self, columns: ResultColumns, most_rows: int) -> None:
        self._columns = columns
        self._most_rows = most_rows
        self.outputs = columns.outputs
        self.check_end = columns.check_end

    @property
    def most_pending(self) -> int:
        return self._columns.most_pending

    @property
    def room(self) -> int:
        columns = self._columns
        return columns.chunk_rows if columns.pending_rows < self._most_rows else 0

    def expect(self, chunk: _Chunk) -> list[Any]:
        self._columns.pending_rows += chunk.rows
        self._append(chunk)
        return chunk.keys

    @abstractmethod
    def _append(self, chunk: _Chunk) -> None:
        """Store ``chunk``, the next rows of the input, until the results of its calls come."""


class OrderedSink(_RowSink):
    """Emits the rows with their results in the order of the input."""

    def __init__(self, columns: ResultColumns, most_rows: int) -> None:
        super().__init__(columns, most_rows)
        self._expected: deque[_Chunk] = deque()

    def _append(self, chunk: _Chunk) -> None:
        self._expected.append(chunk)

    def take(self, window: CallWindow, most: int) -> int:
        results = window.take(most)
        self._put_results(results)
        return len(results)

    def _put_results(self, results: list[Any]) -> None:
        position = 0
        while self._expected:
            head = self._expected[0]
            if missing := head.left:
                part = results[position : position + missing] if position else results[:missing]
                position += len(part)
                head.left -= len(part)
                if head.results:
                    head.results.extend(part)
                else:
                    head.results = part
                if head.left:
                    return
            self._expected.popleft()
            self._emit_until(head, head.rows)

    @property
    def can_flush(self) -> bool:
        head = self._expected[0] if self._expected else None
        return head is not None and (bool(head.results) or not head.left)

    def flush(self) -> None:
        self._put_results([])
        if self.can_flush:
            head = self._expected[0]
            end = len(head.keys) - head.left
            if head.valid is not None:
                import pyarrow.compute as pc

                end = pc.indices_nonzero(head.valid)[end].as_py()
            self._emit_until(head, end)

    def _emit_until(self, chunk: _Chunk, end: int) -> None:
        """Emit the rows of the chunk before row ``end`` that are not emitted yet."""
        columns, results, start = self._columns, chunk.results, chunk.rows_out
        first = len(chunk.keys) - chunk.left - len(results)
        arrays = columns.arrays(results, lambda index: chunk.keys[first + index])
        count = end - start
        if chunk.valid is not None:
            arrays = _with_nulls(arrays, chunk.valid.slice(start, count))
        chunk.results = []
        chunk.rows_out = end
        rows = None
        if columns.layout.on is not None:
            rows = chunk.batch.rows.slice(chunk.start + start, count)
        columns.emit(chunk.batch, rows, count, arrays)


def _with_nulls(arrays: list[pa.Array], valid: pa.Array) -> list[pa.Array]:
    """Insert a null for each row that is not ``valid``: ``arrays`` lack elements for these rows."""
    import pyarrow.compute as pc

    own = pc.subtract(pc.cumulative_sum(valid.cast("int64")), 1)
    places = pc.if_else(valid, own, None)
    return [array.take(places) for array in arrays]


class _Completed:
    """Rows of an input batch that have results: their positions in the batch, keys and results."""

    __slots__ = ("keys", "results", "rows")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.keys: list[Any] = []
        self.results: list[Any] = []


class UnorderedSink(_RowSink):
    """Emits rows soon after their calls have ended, in any order."""

    def __init__(self, columns: ResultColumns, most_rows: int) -> None:
        super().__init__(columns, most_rows)
        self._expected: deque[_Chunk] = deque()
        self._keys = 0
        """How many keys came so far: the number of the next key. A result has its key's number."""
        self._completed: defaultdict[_Batch, _Completed] = defaultdict(_Completed)
        self._waiting = 0

    def _append(self, chunk: _Chunk) -> None:
        import pyarrow.compute as pc

        chunk.first = self._keys
        self._keys += len(chunk.keys)
        self._expected.append(chunk)
        if chunk.valid is not None:
            rows = pc.indices_nonzero(pc.invert(chunk.valid)).to_pylist()
            nulls = [None] * len(rows)
            self._complete(chunk, rows, nulls, nulls)
            chunk.valid = pc.indices_nonzero(chunk.valid).to_pylist()

    def _complete(
        self, chunk: _Chunk, rows: list[int], keys: list[Any], results: list[Any]
    ) -> None:
        completed, start = self._completed[chunk.batch], chunk.start
        completed.rows += [start + row for row in rows]
        completed.keys += keys
        completed.results += results
        self._waiting += len(rows)

    def take(self, window: CallWindow, most: int) -> int:
        numbers, results = window.take_numbered(most)
        by_number = dict(zip(numbers, results, strict=True))
        numbers.sort()
        begin = 0
        for chunk in self._expected:
            if begin == len(numbers):
                break
            end = bisect_left(numbers, chunk.first + len(chunk.keys), begin)
            if end > begin:
                own = numbers[begin:end]
                first, keys, begin = chunk.first, chunk.keys, end
                chunk.left -= len(own)
                places = [number - first for number in own]
                rows = places if chunk.valid is None else [chunk.valid[at] for at in places]
                found = [by_number[number] for number in own]
                self._complete(chunk, rows, [keys[at] for at in places], found)
        while self._expected and not self._expected[0].left:
            self._expected.popleft()
        if self._waiting >= self._columns.chunk_rows:
            self.flush()
        return len(results)

    @property
    def can_flush(self) -> bool:
        return self._waiting > 0

    def flush(self) -> None:
        import pyarrow as pa

        self._waiting = 0
        while self._completed:
            batch, found = self._completed.popitem()
            arrays = self._columns.arrays(found.results, found.keys.__getitem__)
            rows = batch.rows.take(pa.array(found.rows, pa.int64()))
            self._columns.emit(batch, rows, len(found.rows), arrays)


def run_rows(
    options: CallOptions, layout: Layout, key: str, upstream: Iterator[Any]
) -> Iterator[Any]:
    """Yield the output batches of ``lookup`` or ``enrich`` in one partition, on the main thread.

    ``upstream`` yields the input batches. The user's function is called with the key of each row,
    and its results become columns of the output.
    """
    import pyarrow as pa

    first = first_of(upstream, f"{options.label}: a key column")
    if first is None:
        return  # the partition is empty: start no thread, open no context manager of the user
    partition = Partition(
        upstream,
        layout.count,
        label=options.label,
        key=key,
        max_buffer_bytes=options.bounds.bytes,
        metrics=options.metrics,
    )
    partition.counters.max_pending_rows = options.window_rows
    key_types = [array.type for array in layout.keys(first)]
    spread = len(key_types) > 1  # if there are several key columns, each key is a tuple
    journal = None
    if options.policy.journal is not None:
        form = ColumnForm(layout.columns)
        may_change = any(isinstance(kind, str) or pa.types.is_nested(kind) for kind in key_types)
        journal = JournalledCalls(
            options, options.policy.journal, form, partition.counters, may_change=may_change
        )
    cache = None
    if options.policy.cache is not None:
        cache = CachedResults(
            options.policy.cache,
            options.called_id,
            key_types,
            partition.counters,
            as_outcomes=options.as_outcomes,
        )
    argument_of = as_argument if options.compares_keys and "timestamp" in str(key_types) else None
    columns = ResultColumns(options, layout, partition.counters)
    sink = OrderedSink if options.ordered else UnorderedSink
    turns = None
    if (place := options.serialize_by) is not None:
        turns = itemgetter(place) if spread else _identity
    stage = CallStage(
        partition,
        options,
        KeySource(partition, options, layout, spread),
        sink(columns, options.window_rows + SUB_BATCH_ROWS),
        surroundings=Surroundings(
            argument_of=argument_of,
            cache=cache,
            failures=None if options.on_failure == "raise" else columns.failures.wrap,
        ),
        journal=journal,
        ordered=options.ordered,
        spread=spread,
        dedupe=options.dedupe,
        key=turns,
    )
    first_batch = [first]
    del first, upstream
    with FewerCollections(options.running_rows):
        yield from stage.outputs(first_batch)


def _identity(item: Any) -> Any:
    return item
