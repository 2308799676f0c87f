"""A stage of calls, row by row: what runs in one partition of ``lookup`` and ``enrich``."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.core import CallWindow
from rstreams_fast.spark.calls import Resource, ThreadedCalls, guarded
from rstreams_fast.spark.hold import Reading
from rstreams_fast.spark.loop import LoopStage
from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.partition import Partition, first_of
from rstreams_fast.spark.types import Columns, keys_of, shorten

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SUB_BATCH_ROWS", "Layout", "run_rows"]

SUB_BATCH_ROWS: Final = 1024
"""Rows whose results leave together, at most."""

RESULTS_SHARE: Final = 8
"""Sub-batches shrink when the results of one would take more than this part of the byte budget."""


@dataclass(frozen=True)
class Layout:
    """How keys are found in an input, and what becomes of the results.

    With ``on`` the inputs are record batches: the keys are the columns named there (all, if
    empty), and the results are appended. Without, they are arrays or tuples of arrays, which are
    the keys, and outputs are arrays.
    """

    on: tuple[str, ...] | None
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    argument: str = "output"
    """Where the names were declared."""

    def count(self, batch: Any) -> int:
        """Return the rows of an input."""
        if isinstance(batch, tuple):
            return len(batch[0])
        return len(batch) if self.on is None else int(batch.num_rows)

    def keys(self, batch: Any) -> Sequence[pa.Array]:
        """Return the key columns of an input."""
        if self.on is None:
            return batch if isinstance(batch, tuple) else (batch,)
        names = batch.schema.names
        if taken := [name for name in self.names if name in names]:
            raise ValueError(
                f"{self.argument}: there is a column {', '.join(taken)} already; "
                f"there are {', '.join(names)}"
            )
        if missing := [name for name in self.on if name not in names]:
            raise ValueError(f"on: no column {', '.join(missing)}; there are {', '.join(names)}")
        return [batch.column(name) for name in self.on] if self.on else list(batch.columns)

    def key_name(self, batch: Any, index: int) -> str:
        """Name a key column of an input for a message."""
        if self.on is None:
            return f"number {index + 1}"  # more is not told
        return repr(self.on[index] if self.on else batch.schema.names[index])

    def output(self, rows: Any, arrays: list[pa.Array]) -> Any:
        """Return the output for the input ``rows`` and the result columns."""
        import pyarrow as pa

        if self.on is None:
            return arrays[0]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *arrays], names=[*rows.schema.names, *self.names]
        )

    def key_text(self, key: Any) -> str:
        """Name a key for a message."""
        if self.on and len(self.on) == 1:
            return f"the key {self.on[0]}={shorten(key)}"
        if self.on and isinstance(key, tuple) and len(key) == len(self.on):
            pairs = zip(self.on, key, strict=True)
            return f"the key {', '.join(f'{name}={shorten(value)}' for name, value in pairs)}"
        return f"the key {shorten(key)}"


class _Batch:
    """An input whose rows have not all left yet."""

    __slots__ = ("keys", "left", "reading", "rows", "total")

    def __init__(self, rows: Any, keys: Sequence[Any], total: int, reading: Reading) -> None:
        self.rows: Any = rows
        self.keys = keys
        self.total = total
        self.left = total
        self.reading = reading


class _Chunk:
    """Rows ``start`` to ``start + rows`` of a batch: what is converted at once, and leaves at once.

    ``items`` are the keys of its calls. ``valid``, if some rows have no call, says which have one.
    """

    __slots__ = ("batch", "items", "rows", "start", "valid")

    def __init__(
        self, batch: _Batch, start: int, rows: int, items: list[Any], valid: pa.Array | None
    ) -> None:
        self.batch = batch
        self.start = start
        self.rows = rows
        self.items = items
        self.valid = valid


class _RowStage(LoopStage):
    """What ordered and unordered stages share: converting keys, making calls, building columns."""

    def __init__(
        self,
        options: CallOptions,
        layout: Layout,
        spread: bool,
        partition: Partition,
    ) -> None:
        super().__init__(partition)
        self.options = options
        self.layout = layout
        self.spread = spread  # several keys: an item is a tuple of them
        self._columns = Columns(layout.names, layout.types)
        self._pool: ThreadedCalls | None = None
        self._batch: _Batch | None = None  # the one whose keys are being converted
        self._next_row = 0
        self.chunk: _Chunk | None = None  # the one whose calls are being made
        self.next_item = 0
        self.row_limit = options.window_rows
        self.chunk_rows = SUB_BATCH_ROWS
        self.rows_in_work = 0  # converted, and not yet emitted
        self._most_rows_in_work = options.window_rows + SUB_BATCH_ROWS
        self.counters.concurrency = options.concurrency
        self.counters.max_pending_rows = options.window_rows

    # -- calls -------------------------------------------------------------------------------------

    def resource(self) -> Resource | None:
        return None if self.options.using is None else Resource(self.options.using)

    def make_window(self, opened: tuple[Any, ...], /) -> CallWindow:
        options = self.options
        fn: Callable[..., Awaitable[Any]]
        if options.is_async:
            fn = options.fn
        else:
            fn = self._pool = ThreadedCalls(options.fn, options.concurrency, self.loop, self.crew)
        fn = guarded(fn, options, self.loop, self.counters)
        return self.window_of(partial(fn, *opened) if opened else fn)

    @abstractmethod
    def window_of(self, fn: Callable[..., Awaitable[Any]]) -> CallWindow:
        """Return the window of calls of ``fn``, which takes the values of the keys."""

    def close_calls(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def has_calls_to_make(self) -> bool:
        return self.chunk is not None

    def submit(self, window: CallWindow) -> int:
        chunk = self.chunk
        if chunk is None:
            if self.rows_in_work >= self._most_rows_in_work:
                return 0
            chunk = self._next_chunk()
            if chunk is None:
                return 0
            self.rows_in_work += chunk.rows
            self.next_item = 0
            self.begin(chunk)
            if not chunk.items:
                return chunk.rows  # all of its keys are null: it can leave
            self.chunk = chunk
        taken = self.submit_items(window, chunk.items)
        self.next_item += taken
        if self.next_item == len(chunk.items):
            self.chunk = None
        return taken

    def submit_items(self, window: CallWindow, items: list[Any]) -> int:
        """Make calls for ``items`` from ``next_item`` on; return how many."""
        if self.row_limit < self.options.window_rows:  # results are large: see _learn
            room = max(self.row_limit - window.pending, 0 if window.pending else 1)
            return window.submit_many(items[self.next_item : self.next_item + room])
        return window.submit_many(items, self.next_item)

    @abstractmethod
    def begin(self, chunk: _Chunk) -> None:
        """Its keys are converted, its calls are about to be made."""

    # -- input -------------------------------------------------------------------------------------

    def _next_batch(self) -> _Batch | None:
        while self._batch is None or self._next_row == self._batch.total:
            self._batch = None
            self._next_row = 0
            entry = self.pull()
            if entry is None:
                return None
            rows, reading = entry
            total = self.layout.count(rows)
            if total:
                self._batch = _Batch(rows, self.layout.keys(rows), total, reading)
            else:
                self.budget.give_back(reading)
        return self._batch

    def _next_chunk(self) -> _Chunk | None:
        """Convert the keys of the next rows; ``None`` when there are none now, or ever."""
        import pyarrow.compute as pc

        batch = self._next_batch()
        if batch is None:
            return None
        start = self._next_row
        rows = min(self.chunk_rows, batch.total - start)
        self._next_row = start + rows
        keys = [array.slice(start, rows) for array in batch.keys]
        valid = None
        if self.options.on_null == "skip":
            for array in keys:
                if array.null_count:
                    mask = array.is_valid()
                    valid = mask if valid is None else pc.and_(valid, mask)
        if valid is not None:
            keys = [array.filter(valid) for array in keys]
            self.counters.skipped += rows - len(keys[0])
        lists = [
            keys_of(array, self.layout.key_name(batch.rows, index))
            for index, array in enumerate(keys)
        ]
        items = list(zip(*lists, strict=True)) if self.spread else lists[0]
        if self._next_row == batch.total:
            batch.keys = ()
            if self.layout.on is None:
                # Only the keys came, and they are converted: nothing of the input is held any more.
                batch.rows = None
                self.budget.give_back(batch.reading)
        return _Chunk(batch, start, rows, items, valid)

    # -- output ------------------------------------------------------------------------------------

    def arrays(self, results: list[Any], key_at: Callable[[int], str]) -> list[pa.Array]:
        """Return the result columns."""
        arrays = self._columns.arrays(results, key_at)
        if results:
            nulls = arrays[0].null_count if len(arrays) == 1 else results.count(None)
            self.counters.nulls += nulls
            self._learn(sum(array.nbytes for array in arrays) / len(results))
        return arrays

    def _learn(self, bytes_per_row: float) -> None:
        """Keep few results when they are large: as many as the byte budget would hold."""
        self.row_limit = self.options.window_rows
        self.chunk_rows = SUB_BATCH_ROWS
        fitting = int(self.options.max_buffer_bytes / max(bytes_per_row, 1))
        if fitting < self.row_limit:
            self.row_limit = max(self.options.concurrency, fitting)
            self.chunk_rows = max(1, min(SUB_BATCH_ROWS, fitting // RESULTS_SHARE))

    def emit(self, batch: _Batch, rows: Any, count: int, arrays: list[pa.Array]) -> None:
        """Let ``rows`` of a batch leave with their result columns."""
        batch.left -= count
        self.rows_in_work -= count
        reading = None
        if batch.left == 0 and self.layout.on is not None:
            reading = batch.reading  # given back when the main thread has handed these rows on
        self.emitted.append((self.layout.output(rows, arrays), count, reading))

    def check_end(self) -> None:
        if self.rows_in_work:
            raise RuntimeError(f"{self.rows_in_work} rows were not handed on; this is a bug")

    def key_of(self, item: Any) -> Any:
        """Return the key of a window's item."""
        return item

    def name_of(self, item: Any) -> str:
        return self.layout.key_text(self.key_of(item))


class _Awaiting:
    """A chunk whose results are not all there yet."""

    __slots__ = ("chunk", "items_out", "positions", "results", "rows_out")

    def __init__(self, chunk: _Chunk) -> None:
        self.chunk = chunk
        self.results: list[Any] = []
        self.items_out = 0
        self.rows_out = 0
        self.positions: Any = None
        if chunk.valid is not None:
            import pyarrow.compute as pc

            # For every row the place of its item among the items, or null.
            numbered = pc.subtract(pc.cumulative_sum(chunk.valid.cast("int64")), 1)
            self.positions = pc.if_else(chunk.valid, numbered, None)

    @property
    def missing(self) -> int:
        return len(self.chunk.items) - self.items_out - len(self.results)


class OrderedRows(_RowStage):
    """Results leave in the order of the rows."""

    _awaiting: deque[_Awaiting]

    def window_of(self, fn: Callable[..., Awaitable[Any]]) -> CallWindow:
        self._awaiting = deque()
        options = self.options
        return CallWindow(
            fn,
            loop=self.loop,
            on_ready=self.pump,
            concurrency=options.concurrency,
            capacity=options.window_rows,
            ordered=True,
            spread=self.spread,
            dedupe=options.dedupe,
        )

    def begin(self, chunk: _Chunk) -> None:
        self._awaiting.append(_Awaiting(chunk))

    def collect(self, results: list[Any]) -> None:
        position = 0
        while self._awaiting:
            head = self._awaiting[0]
            if missing := head.missing:
                part = results[position : position + missing] if position else results[:missing]
                position += len(part)
                if head.results:
                    head.results.extend(part)
                else:
                    head.results = part
                if head.missing:
                    return
            self._awaiting.popleft()
            self._emit_until(head, head.chunk.rows)

    def holds_results(self) -> bool:
        return bool(self._awaiting) and bool(
            self._awaiting[0].results or not self._awaiting[0].missing
        )

    def flush(self) -> None:
        """Let the rows leave that need no result beyond those that are there."""
        import pyarrow.compute as pc

        self.collect([])
        if not self.holds_results():
            return
        head = self._awaiting[0]
        end = head.items_out + len(head.results)
        if head.positions is not None:
            end = pc.index(head.positions, end).as_py()
        self._emit_until(head, end)

    def _emit_until(self, head: _Awaiting, end: int) -> None:
        """Let the rows up to ``end`` of the chunk leave with its results so far."""
        import pyarrow.compute as pc

        chunk, results, first, start = head.chunk, head.results, head.items_out, head.rows_out
        arrays = self.arrays(results, lambda i: self.layout.key_text(chunk.items[first + i]))
        count = end - start
        if head.positions is not None:
            own = pc.subtract(head.positions.slice(start, count), first)
            arrays = [array.take(own) for array in arrays]
        head.results = []
        head.items_out += len(results)
        head.rows_out = end
        rows = None
        if self.layout.on is not None:
            rows = chunk.batch.rows.slice(chunk.start + start, count)
        self.emit(chunk.batch, rows, count, arrays)


_Place = tuple[_Batch, int]  # a row of a batch


class UnorderedRows(_RowStage):
    """Results leave as their calls finish. Every call carries the places of its rows along.

    With ``dedupe`` the sharing is done here: the window could not say which row a shared result is
    for.
    """

    _completed: list[tuple[_Batch, int, Any, Any]]  # batch, row, key, value
    _sharing: dict[Any, list[_Place]]
    _followers: int

    def window_of(self, fn: Callable[..., Awaitable[Any]]) -> CallWindow:
        self._completed = []
        sharing: dict[Any, list[_Place]] = {}
        self._sharing = sharing
        self._followers = 0
        options = self.options

        async def call(
            places: list[_Place], *key: Any
        ) -> tuple[list[_Place], tuple[Any, ...], Any]:
            try:
                return places, key, await fn(*key)
            finally:
                if sharing:
                    with contextlib.suppress(TypeError):
                        del sharing[key]

        return CallWindow(
            call,
            loop=self.loop,
            on_ready=self.pump,
            concurrency=options.concurrency,
            capacity=options.window_rows,
            ordered=False,
            spread=True,
        )

    def begin(self, chunk: _Chunk) -> None:
        import pyarrow.compute as pc

        batch, start = chunk.batch, chunk.start
        rows: Sequence[int] = range(chunk.rows)
        if chunk.valid is not None:
            rows = pc.indices_nonzero(chunk.valid).to_pylist()
            for row in pc.indices_nonzero(pc.invert(chunk.valid)).to_pylist():
                self._completed.append((batch, start + row, None, None))
        keys = chunk.items if self.spread else [(item,) for item in chunk.items]
        chunk.items = [([(batch, start + row)], *key) for row, key in zip(rows, keys, strict=True)]

    def submit_items(self, window: CallWindow, items: list[Any]) -> int:
        if not self.options.dedupe:
            return super().submit_items(window, items)
        position = first = self.next_item
        while position < len(items) and (
            window.pending + self._followers < self.row_limit or not window.pending
        ):
            places, *values = items[position]
            key = tuple(values)
            try:
                shared = self._sharing.get(key)
            except TypeError:  # not hashable: it has no equals
                if not window.submit_many([items[position]]):
                    break
            else:
                if shared is not None:
                    shared.extend(places)
                    self._followers += 1
                else:
                    self._sharing[key] = places
                    if not window.submit_many([items[position]]):
                        del self._sharing[key]
                        break
            position += 1
        return position - first

    def followers(self) -> int:
        return self._followers

    def collect(self, results: list[Any]) -> None:
        completed = self._completed
        for places, key, value in results:
            self._followers -= len(places) - 1
            completed.extend((batch, row, key, value) for batch, row in places)
        if len(completed) >= self.chunk_rows:
            self.flush()

    def holds_results(self) -> bool:
        return bool(self._completed)

    def flush(self) -> None:
        import pyarrow as pa

        completed, self._completed = self._completed, []
        by_batch: dict[int, list[tuple[_Batch, int, Any, Any]]] = {}
        for entry in completed:
            by_batch.setdefault(id(entry[0]), []).append(entry)
        for entries in by_batch.values():
            batch = entries[0][0]

            def key_at(index: int, entries: Any = entries) -> str:
                return self.layout.key_text(self._key(entries[index][2]))

            arrays = self.arrays([entry[3] for entry in entries], key_at)
            places = pa.array([entry[1] for entry in entries], pa.int64())
            self.emit(batch, batch.rows.take(places), len(entries), arrays)

    def key_of(self, item: Any) -> Any:
        return self._key(item[1:])

    def _key(self, key: tuple[Any, ...]) -> Any:
        return key if self.spread else key[0]


def run_rows(
    options: CallOptions, layout: Layout, key: str, upstream: Iterator[Any]
) -> Iterator[Any]:
    """Run a stage over one partition: a generator for the main thread."""
    first = first_of(upstream, f"{options.label}: a key column")
    if first is None:
        return  # an empty partition starts no thread and opens nothing
    partition = Partition(
        upstream,
        layout.count,
        label=options.label,
        key=key,
        max_buffer_bytes=options.max_buffer_bytes,
        figures=options.figures,
    )
    kind = OrderedRows if options.ordered else UnorderedRows
    stage = kind(options, layout, len(layout.keys(first)) > 1, partition)
    held = [first]
    del first, upstream
    yield from stage.outputs(held)
