"""A stage of calls, row by row: what runs in one partition of ``lookup`` and ``enrich``.

Three threads, two rings::

    Spark's iterator -> reader -> [ring, byte budget] -> loop: CallWindow -> [ring] -> main -> Spark

The loop makes the calls over the rows of successive batches without a barrier between batches. The main
thread alone yields. Nobody waits while holding what another one needs: the loop never blocks; the reader and
the main thread park on their ring.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.core import CallWindow, SpscRing
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.calls import Resource, ThreadedCalls, guarded
from rstreams_fast.spark.figures import Counters, FiguresWriter, reported
from rstreams_fast.spark.hold import READ_AHEAD_BATCHES, ByteBudget, Reader, Reading
from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.threads import CLOSE_SECONDS, Crew
from rstreams_fast.spark.types import Columns, keys_of, shorten

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["OUTPUT_BATCHES", "SUB_BATCH_ROWS", "Layout", "RowStage", "run_rows"]

SUB_BATCH_ROWS: Final = 1024
"""Rows whose results leave together, at most."""

FLUSH_SECONDS: Final = 0.1
"""How long a result may wait for others to leave with."""

OUTPUT_BATCHES: Final = 4
"""Sub-batches between the loop and the main thread."""

ROWS_PER_TURN: Final = 4096
"""Rows handled before the loop looks after its sockets and timers again."""

OUTPUT_SHARE: Final = 8
"""A sub-batch is made smaller when its results would take more than this part of the byte budget."""

REPORT_SECONDS: Final = 0.2
"""How often the figures are brought up to date."""

STOP_SECONDS: Final = CLOSE_SECONDS * 0.75
"""How long cancelled calls and the ``using`` manager have to end, when there is no time for more."""


@dataclass(frozen=True)
class Layout:
    """How keys are found in an input, and what becomes of the results.

    With ``on`` the inputs are record batches: the keys are the columns named there (all, if empty), and the results
    are appended. Without, they are arrays or tuples of arrays, which are the keys, and results are arrays.
    """

    on: tuple[str, ...] | None
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    def count(self, batch: Any) -> int:
        """Return the rows of an input."""
        if isinstance(batch, tuple):
            return len(batch[0])
        return int(batch.num_rows) if self.on is not None else len(batch)

    def keys(self, batch: Any) -> Sequence[pa.Array]:
        """Return the key columns of an input."""
        if self.on is None:
            return batch if isinstance(batch, tuple) else (batch,)
        if not self.on:
            return list(batch.columns)
        missing = [name for name in self.on if name not in batch.schema.names]
        if missing:
            raise ValueError(
                f"on: no column {', '.join(missing)}; there are {', '.join(batch.schema.names)}"
            )
        return [batch.column(name) for name in self.on]

    def key_names(self, batch: Any) -> Sequence[str]:
        """Return the names of the keys for a message; none where Spark does not tell them."""
        if self.on is None:
            return ()
        return self.on or tuple(batch.schema.names)

    def output(self, rows: Any, arrays: list[pa.Array]) -> Any:
        """Return the output for the input ``rows`` and the result columns."""
        import pyarrow as pa

        if self.on is None:
            return arrays[0]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *arrays], names=[*rows.schema.names, *self.names]
        )


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
    """Rows ``start`` to ``start + rows`` of a batch: the unit in which keys are converted and results leave.

    ``items`` are the keys of its calls. ``positions``, if some rows have no call, says for every row which
    item is its own, or null.
    """

    __slots__ = ("batch", "items", "items_out", "positions", "results", "rows", "rows_out", "start")

    def __init__(self, batch: _Batch, start: int, rows: int, items: list[Any], positions: Any):
        self.batch = batch
        self.start = start
        self.rows = rows
        self.items = items
        self.positions = positions
        self.results: list[Any] = []
        self.items_out = 0
        self.rows_out = 0


class RowStage:
    """The loop's side of one partition: rows in, calls, results out. Everything but ``__init__`` runs on the loop."""

    def __init__(
        self,
        options: CallOptions,
        layout: Layout,
        counters: Counters,
        writer: FiguresWriter,
        budget: ByteBudget,
        crew: Crew,
        spread: bool,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.out = SpscRing(OUTPUT_BATCHES)
        self.failure: BaseException | None = None
        self.out_waiting = False
        """The loop waits for room in ``out``: whoever makes some calls ``wake``."""
        self._options = options
        self._layout = layout
        self._columns = Columns(layout.names, layout.types)
        self._counters = counters
        self._writer = writer
        self._budget = budget
        self._crew = crew
        self._spread = spread  # several keys: an item is a tuple of them
        self._reader: Reader | None = None
        self._in_waiting = False
        self._window: CallWindow | None = None
        self._pool: ThreadedCalls | None = None
        self._resource = None if options.using is None else Resource(options.using)
        self._executor = ThreadPoolExecutor(
            initializer=crew.adopt, thread_name_prefix="rstreams-executor"
        )
        self._unordered = not options.ordered
        self._chunk: _Chunk | None = None  # the one whose calls are being made
        self._next_item = 0
        self._batch: _Batch | None = None  # the one whose keys are being converted
        self._next_row = 0
        self._in_work: deque[_Chunk] = deque()  # in order: results wanted
        self._completed: list[tuple[_Batch, int, Any, Any]] = []  # unordered: batch, row, key, value
        self._sharing: dict[Any, list[Any]] = {}
        self._followers = 0
        self._emitted: deque[tuple[Any, int, Reading | None]] = deque()
        self._ended = False
        self._finishing = False
        self._stopping = False
        self._stopped_at: float | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._row_limit = options.window_rows
        self._chunk_rows = SUB_BATCH_ROWS
        self._state = "waiting_upstream"
        self._since = time.monotonic()
        counters.concurrency = options.concurrency
        counters.max_pending_rows = options.window_rows

    # -- the loop's life ---------------------------------------------------------------------------

    def run(self) -> None:
        """Body of the loop's thread."""
        try:
            self.loop.set_default_executor(self._executor)
            self.loop.call_soon(self._open)
            self.loop.run_forever()
        except BaseException as raised:  # noqa: BLE001 - the main thread raises it
            self._set_failure(raised)
        finally:
            try:
                self._tidy_up()
            finally:
                self.loop.close()
                self.out.close()

    def attach(self, reader: Reader) -> None:
        """Say where the input comes from, before ``run``."""
        self._reader = reader

    def on_batch(self) -> None:
        """The reader has put something into its ring, or closed it. Any thread."""
        if self._in_waiting:
            self._in_waiting = False
            self.wake()

    def wake(self) -> None:
        """Let the loop look at its rings. Any thread."""
        with contextlib.suppress(RuntimeError):  # closed: nothing left to do
            self.loop.call_soon_threadsafe(self._pump)

    def stop(self) -> None:
        """Cancel everything and end. Any thread; a NOP once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop)

    def _open(self) -> None:
        if self._writer.wanted:
            self._report()
        if self._resource is None:
            self._start(None)
        else:
            opening = self.loop.create_task(self._resource.open())
            opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        if opening.cancelled():
            self._fail(asyncio.CancelledError("using: opening was cancelled"))
        elif (failure := opening.exception()) is not None:
            failure.add_note("rstreams_fast: raised by the context manager given by 'using'")
            self._fail(failure)
        elif not self._stopping:
            self._start(opening.result())

    def _start(self, resource: Any) -> None:
        options = self._options
        fn: Callable[..., Awaitable[Any]]
        if options.is_async:
            fn = options.fn
        else:
            self._pool = ThreadedCalls(options.fn, options.concurrency, self.loop, self._crew)
            fn = self._pool
        fn = guarded(fn, options, self.loop, self._counters)
        if self._resource is not None:
            fn = _with_resource(fn, resource)
        if self._unordered:
            fn = self._tagged(fn)
        self._window = CallWindow(
            fn,
            loop=self.loop,
            on_ready=self._pump,
            concurrency=options.concurrency,
            capacity=options.window_rows,
            ordered=options.ordered,
            spread=self._unordered or self._spread,
            dedupe=options.dedupe and options.ordered,
        )
        self._pump()

    def _fail(self, failure: BaseException) -> None:
        self._set_failure(failure)
        self._stop()

    def _set_failure(self, failure: BaseException) -> None:
        if self.failure is None:
            self.failure = failure
            self.out.close()

    def _stop(self) -> None:
        """Cancel the calls; when they have ended, leave ``using``; then end the loop."""
        if self._stopping:
            return
        self._stopping = True
        self._stopped_at = self.loop.time()
        if self._reader is not None:
            self._reader.cancel()
        if self._window is not None:
            self._window.cancel()
        if self._pool is not None:
            self._pool.close()
        self.loop.call_later(STOP_SECONDS, self.loop.stop)
        self._check_stopped()

    def _check_stopped(self) -> None:
        window = self._window
        if window is not None:
            window.take(0)  # so that on_ready is called again
            # The calls of a pool cannot be stopped, and their futures were cancelled.
            if window.running:
                return
        self._finish()

    def _finish(self) -> None:
        """Everything was done, or stopped: leave ``using``, then end the loop."""
        if self._finishing:
            return
        self._finishing = True
        if self._resource is None:
            self.loop.stop()
            return
        closing = self.loop.create_task(self._resource.close(self.failure))
        closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        if not closing.cancelled() and (failure := closing.exception()) is not None:
            failure.add_note("rstreams_fast: raised by the context manager given by 'using'")
            self._set_failure(failure)
        self.loop.stop()

    def _tidy_up(self) -> None:
        """End what the user's clients left on the loop; stop what does not want to end."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self._pool is not None:
            self._pool.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        left = asyncio.all_tasks(self.loop)
        if left:
            for task in left:
                task.cancel()
            stopped_at = self.loop.time() if self._stopped_at is None else self._stopped_at
            patience = max(0.1, stopped_at + STOP_SECONDS - self.loop.time())
            self.loop.run_until_complete(asyncio.wait(left, timeout=patience))
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it refused to end, which is known
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())

    # -- input -------------------------------------------------------------------------------------

    def _pull(self) -> bool:
        """Make ``_batch`` an input with rows to convert; ``False`` when there is none now, or ever."""
        while self._batch is None or self._next_row == self._batch.total:
            self._batch = None
            self._next_row = 0
            assert self._reader is not None
            ring = self._reader.ring
            entry = ring.poll()
            if entry is None:
                if not self._ended:
                    self._in_waiting = True
                    closed = ring.closed
                    entry = ring.poll()  # what came before the reader could see that we wait
                    if entry is None:
                        if closed:
                            self._in_waiting = False
                            self._ended = True
                        return False
                    self._in_waiting = False
                else:
                    return False
            rows, reading = entry
            total = self._layout.count(rows)
            if total == 0:
                self._budget.give_back(reading)
                continue
            self._batch = _Batch(rows, self._layout.keys(rows), total, reading)
        return True

    def _next_chunk(self) -> bool:
        """Convert the keys of the next rows; ``False`` when there are none now, or ever."""
        import pyarrow.compute as pc

        if not self._pull():
            return False
        batch = self._batch
        assert batch is not None
        start = self._next_row
        rows = min(self._chunk_rows, batch.total - start)
        self._next_row = start + rows
        keys = [array.slice(start, rows) for array in batch.keys]
        valid = None
        if self._options.on_null == "skip":
            for array in keys:
                if array.null_count:
                    mask = array.is_valid()
                    valid = mask if valid is None else pc.and_(valid, mask)
        positions = None
        if valid is not None:
            keys = [array.filter(valid) for array in keys]
            numbered = pc.subtract(pc.cumulative_sum(valid.cast("int64")), 1)
            positions = pc.if_else(valid, numbered, None)
            self._counters.skipped += rows - len(keys[0])
        lists = [keys_of(array) for array in keys]
        items: list[Any] = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
        chunk = _Chunk(batch, start, rows, items, positions)
        if self._layout.on is None and self._next_row == batch.total:
            # Only the keys came, and they are converted: nothing of the input is held any more.
            batch.rows, batch.keys = None, ()
            self._budget.give_back(batch.reading)
        if self._unordered:
            self._tag(chunk, valid)
        else:
            self._in_work.append(chunk)
        self._chunk = chunk
        self._next_item = 0
        return True

    def _submit(self) -> int:
        """Make calls for the next rows while there is room; return how many."""
        window = self._window
        assert window is not None
        chunk = self._chunk
        while chunk is None or self._next_item == len(chunk.items):
            if not self._next_chunk():
                self._chunk = None
                return 0
            chunk = self._chunk
            assert chunk is not None
        if self._unordered and self._options.dedupe:
            return self._submit_shared(chunk)
        items, start = chunk.items, self._next_item
        room = self._row_limit - window.pending
        if room < len(items) - start < self._options.window_rows and self._is_limited():
            if room <= 0 and window.pending:
                return 0
            taken = window.submit_many(items[start : start + max(room, 1)])
        else:
            taken = window.submit_many(items, start)
        self._next_item += taken
        return taken

    def _is_limited(self) -> bool:
        return self._row_limit < self._options.window_rows

    # -- unordered: every call carries its rows along ---------------------------------------------------

    def _tag(self, chunk: _Chunk, valid: Any) -> None:
        import pyarrow.compute as pc

        batch, start = chunk.batch, chunk.start
        if valid is None:
            rows: Sequence[int] = range(start, start + chunk.rows)
        else:
            rows = [start + row for row in pc.indices_nonzero(valid).to_pylist()]
            for row in pc.indices_nonzero(pc.invert(valid)).to_pylist():
                self._completed.append((batch, start + row, None, None))
        if self._spread:
            chunk.items = [
                ([(batch, row)], *key) for row, key in zip(rows, chunk.items, strict=True)
            ]
        else:
            chunk.items = [
                ([(batch, row)], key) for row, key in zip(rows, chunk.items, strict=True)
            ]

    def _tagged(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        sharing = self._sharing

        async def call(places: list[Any], *key: Any) -> tuple[list[Any], Any, Any]:
            try:
                return places, key, await fn(*key)
            finally:
                if sharing:
                    with contextlib.suppress(TypeError):
                        sharing.pop(key, None)

        return call

    def _submit_shared(self, chunk: _Chunk) -> int:
        window = self._window
        assert window is not None
        items = chunk.items
        first = self._next_item
        while self._next_item < len(items):
            if window.pending + self._followers >= self._row_limit:
                break
            item = items[self._next_item]
            places, key = item[0], item[1:]
            try:
                shared = self._sharing.get(key)
            except TypeError:  # not hashable: it has no equals
                shared = None
            else:
                if shared is not None:
                    shared.extend(places)
                    self._followers += 1
                    self._next_item += 1
                    continue
                self._sharing[key] = places
            if not window.submit_many([item]):
                with contextlib.suppress(TypeError):
                    self._sharing.pop(key, None)
                break
            self._next_item += 1
        return self._next_item - first

    # -- the pump: results out, calls in, until neither moves -------------------------------------------

    def _pump(self) -> None:
        try:
            if self._stopping:
                self._check_stopped()
            elif self._window is not None and not self._finishing:
                self._step()
        except BaseException as raised:
            self._fail(raised)
            if not isinstance(raised, Exception | asyncio.CancelledError):
                raise

    def _step(self) -> None:
        window = self._window
        assert window is not None
        done = 0
        while True:
            taken = 0
            if self._hand_over():
                results = window.take(SUB_BATCH_ROWS)
                taken = len(results)
                if self._unordered:
                    self._collect_unordered(results)
                else:
                    self._collect(results)
                self._hand_over()
            if window.failure is not None:
                self._fail_call(*window.failure)
                return
            submitted = self._submit()
            done += taken + submitted
            if not taken and not submitted:
                break
            if done >= ROWS_PER_TURN:
                self.loop.call_soon(self._pump)
                break
        if window.failure is not None:
            self._fail_call(*window.failure)
            return
        self._look_around()

    def _look_around(self) -> None:
        """After a step: flush what would wait for nothing, see the end, account for the time."""
        window, counters = self._window, self._counters
        assert window is not None
        idle = window.pending == 0 and self._chunk is None
        if idle and self._unordered and self._completed and not self._emitted:
            self._flush_unordered()
            self._hand_over()
        counters.calls = window.started
        counters.running = window.running
        counters.max_running = window.max_running
        counters.pending = window.pending + self._followers
        counters.max_pending = max(counters.max_pending, window.max_pending, counters.pending)
        if self._emitted:
            state = "waiting_downstream"
        elif self._chunk is None and not self._ended:
            state = "waiting_upstream"
        else:
            state = "waiting_function"
        now = time.monotonic()
        setattr(counters, self._state, getattr(counters, self._state) + now - self._since)
        self._state, self._since = state, now
        assert self._reader is not None
        if (
            idle
            and self._ended
            and not (self._in_work or self._completed or self._emitted)
        ):
            if self._reader.error is not None:
                self._fail(self._reader.error)
            else:
                self._finish()
        elif self._flush_timer is None and (
            self._completed or (self._in_work and self._in_work[0].results)
        ):
            self._flush_timer = self.loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        if self._stopping or self._finishing:
            return
        try:
            if not self._emitted:
                if self._unordered:
                    self._flush_unordered()
                elif self._in_work and self._in_work[0].results:
                    self._emit_part(self._in_work[0])
        except BaseException as raised:  # noqa: BLE001 - the main thread raises it
            self._fail(raised)
        else:
            self._pump()

    def _hand_over(self) -> bool:
        """Put what is ready into the ring; ``False`` when it is full."""
        emitted = self._emitted
        while emitted:
            if not self.out.offer(emitted[0]):
                self.out_waiting = True
                if not self.out.offer(emitted[0]):  # room made before it could be seen that we wait
                    return False
                self.out_waiting = False
            emitted.popleft()
        return True

    # -- results --------------------------------------------------------------------------------------

    def _collect(self, results: list[Any]) -> None:
        """Give results, which come in order, to the chunks they belong to; complete ones leave."""
        position = 0
        while self._in_work:
            chunk = self._in_work[0]
            missing = len(chunk.items) - chunk.items_out - len(chunk.results)
            if missing:
                if position == len(results):
                    return
                if not position and len(results) <= missing and not chunk.results:
                    chunk.results = results
                    position = len(results)
                else:
                    part = results[position : position + missing]
                    chunk.results.extend(part)
                    position += len(part)
                if len(chunk.results) + chunk.items_out < len(chunk.items):
                    return
            self._in_work.popleft()
            self._emit(chunk, chunk.rows)

    def _emit_part(self, chunk: _Chunk) -> None:
        """Let the rows leave that need no result beyond those that are there."""
        import pyarrow.compute as pc

        items = chunk.items_out + len(chunk.results)
        if items == len(chunk.items):
            return  # complete: it leaves as a whole
        end = items
        if chunk.positions is not None:
            end = pc.index(chunk.positions, items).as_py()
        self._emit(chunk, end)

    def _emit(self, chunk: _Chunk, end: int) -> None:
        """Let the rows up to ``end`` of the chunk leave with its results so far."""
        start, results, first = chunk.rows_out, chunk.results, chunk.items_out
        batch, items = chunk.batch, chunk.items
        arrays = self._arrays(results, lambda index: self._key_text(items[first + index]))
        rows = end - start
        if chunk.positions is not None:
            import pyarrow.compute as pc

            own = chunk.positions.slice(start, rows)
            arrays = [array.take(pc.subtract(own, first)) for array in arrays]
        chunk.rows_out = end
        chunk.items_out = first + len(results)
        chunk.results = []
        if batch.rows is None or self._layout.on is None:
            output = self._layout.output(None, arrays)
        else:
            output = self._layout.output(batch.rows.slice(chunk.start + start, rows), arrays)
        self._send(batch, output, rows)

    def _collect_unordered(self, results: list[Any]) -> None:
        completed = self._completed
        for places, key, value in results:
            self._followers -= len(places) - 1
            for batch, row in places:
                completed.append((batch, row, key, value))
        if len(completed) >= self._chunk_rows:
            self._flush_unordered()

    def _flush_unordered(self) -> None:
        import pyarrow as pa

        completed, self._completed = self._completed, []
        by_batch: dict[int, list[tuple[_Batch, int, Any, Any]]] = {}
        for entry in completed:
            by_batch.setdefault(id(entry[0]), []).append(entry)
        for entries in by_batch.values():
            batch = entries[0][0]

            def key_text(
                index: int, entries: list[tuple[_Batch, int, Any, Any]] = entries
            ) -> str:
                key = entries[index][2]
                return self._key_text(key if key is None or len(key) > 1 else key[0])

            arrays = self._arrays([entry[3] for entry in entries], key_text)
            rows = batch.rows.take(pa.array([entry[1] for entry in entries], pa.int64()))
            self._send(batch, self._layout.output(rows, arrays), len(entries))

    def _arrays(self, results: list[Any], key_at: Callable[[int], str]) -> list[pa.Array]:
        arrays = self._columns.arrays(results, key_at)
        if results:
            if len(arrays) == 1:
                self._counters.nulls += arrays[0].null_count
            else:
                self._counters.nulls += results.count(None)
            self._learn(sum(array.nbytes for array in arrays) / len(results))
        return arrays

    def _learn(self, bytes_per_row: float) -> None:
        """Keep few results when they are large: they count against the byte budget, too."""
        budget = self._options.max_buffer_bytes
        if bytes_per_row * self._options.window_rows > budget:
            fitting = int(budget / bytes_per_row)
            self._row_limit = max(self._options.concurrency, fitting)
            self._chunk_rows = max(1, min(SUB_BATCH_ROWS, fitting // OUTPUT_SHARE))
        else:
            self._row_limit = self._options.window_rows
            self._chunk_rows = SUB_BATCH_ROWS

    def _send(self, batch: _Batch, output: Any, rows: int) -> None:
        batch.left -= rows
        # The rows leave when the main thread has handed the last of them on.
        reading = batch.reading if batch.left == 0 and self._layout.on is not None else None
        self._emitted.append((output, rows, reading))

    # -- failures ------------------------------------------------------------------------------------

    def _fail_call(self, item: Any, error: BaseException) -> None:
        key = item
        if self._unordered:
            key = item[1] if len(item) == 2 else item[1:]  # noqa: PLR2004 - places and one key
        note = f"rstreams_fast: raised by {self._options.label} for {self._key_text(key)}"
        if isinstance(error, asyncio.CancelledError):
            # It would look like our own cancellation.
            cancelled = RuntimeError(f"{self._options.label} was cancelled from within")
            cancelled.__cause__ = error
            error = cancelled
        error.add_note(note)
        self._fail(error)

    def _key_text(self, key: Any) -> str:
        names = self._layout.on
        if names and len(names) == 1:
            return f"the key {names[0]}={shorten(key)}"
        if names and isinstance(key, tuple) and len(key) == len(names):
            pairs = ", ".join(f"{n}={shorten(k)}" for n, k in zip(names, key, strict=True))
            return f"the key {pairs}"
        return f"the key {shorten(key)}"

    # -- figures -------------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._window is not None and not (self._stopping or self._finishing):
            self._look_around()
        self._writer.write_if_due()
        self.loop.call_later(REPORT_SECONDS, self._report)



def _with_resource(
    fn: Callable[..., Awaitable[Any]], resource: Any
) -> Callable[..., Awaitable[Any]]:
    from functools import partial

    return partial(fn, resource)


# -- the main thread's side -----------------------------------------------------------------------------


def run_rows(
    options: CallOptions, layout: Layout, key: str, upstream: Iterator[Any]
) -> Iterator[Any]:
    """Run a stage over one partition: a generator for the main thread."""
    first = next(upstream, None)
    if first is None:
        return  # an empty partition starts no thread and opens nothing
    counters = Counters(options.label, key)
    writer = FiguresWriter(options.figures, counters)
    budget = ByteBudget(options.max_buffer_bytes, counters)
    crew = Crew()
    stage = RowStage(
        options, layout, counters, writer, budget, crew, spread=len(layout.keys(first)) > 1
    )
    reader = Reader(upstream, budget, layout.count, stage.on_batch, capacity=READ_AHEAD_BATCHES)
    stage.attach(reader)
    held = [first]
    del first, upstream
    with reported(writer, counters):
        try:
            crew.start(lambda: reader.run(held.pop()), "reader")
            crew.start(stage.run, "loop")
            yield from _outputs(stage, counters, budget)
            if stage.failure is not None:
                raise stage.failure
        finally:
            reader.cancel()
            stage.stop()
            crew.join()
            counters.running = counters.pending = 0


def _outputs(stage: RowStage, counters: Counters, budget: ByteBudget) -> Iterator[Any]:
    out = stage.out
    while stage.failure is None:
        try:
            output, rows, reading = out.get()
        except RingClosed:
            return
        if stage.out_waiting:
            stage.out_waiting = False
            stage.wake()
        if stage.failure is not None:
            return
        counters.rows_out += rows
        counters.batches_out += 1
        yield output
        del output
        if reading is not None:
            budget.give_back(reading)
