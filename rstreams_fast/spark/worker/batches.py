"""Runs ``map_batches`` in one partition: calls the user's function with whole Arrow batches.

If the first rows of a call may be emitted before the call has ended, ``_BatchesOnThreads`` makes
the calls: it emits each part of a result immediately. Otherwise a ``CallStage`` makes the calls, on
an event loop: it emits the result of a call when the call has ended.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.calls.attempts import CallAttempts, RetryRules
from rstreams_fast.calls.engine import Surroundings
from rstreams_fast.calls.errors import with_note
from rstreams_fast.calls.ids import names_call_id, set_key, set_run_digest
from rstreams_fast.calls.journal.calls import JournalledCalls
from rstreams_fast.calls.keys import KeyDigest, checked_key
from rstreams_fast.calls.memory.cache import CachedResults
from rstreams_fast.calls.outcome import Outcome
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.calls.threads import CallThreads
from rstreams_fast.core import CallWindow, SpscRing
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.worker.answer_forms import BatchesForm
from rstreams_fast.spark.worker.call_stage import REPORT_SECONDS, CallStage
from rstreams_fast.spark.worker.outcomes import OUTCOME, OutcomeForm, RowFailures
from rstreams_fast.spark.worker.partition import Output, Partition
from rstreams_fast.spark.worker.read_ahead import ByteLease
from rstreams_fast.spark.worker.using import PlainClient
from rstreams_fast.spark.worker.values.conversions import conform
from rstreams_fast.spark.worker.values.frame_columns import batches_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["OUTPUTS_AHEAD", "can_emit_before_end", "run_batches"]

OUTPUTS_AHEAD: Final = 2
"""The capacity of the ring for the output batches of one call. A full ring blocks the call."""


def run_batches(
    options: CallOptions, schema: pa.Schema, partition: Partition, first: list[Any]
) -> Iterator[Any]:
    """Return an iterator over the output batches of a partition, in the order of the input.

    ``first``: a list with the first input batch. The read-ahead thread, which reads the other
    batches, empties the list, so that the list does not keep the batch in memory.
    """
    if can_emit_before_end(options):
        return _BatchesOnThreads(options, schema, partition).outputs(first)
    fn, called_id = options.fn, options.called_id
    options = replace(options, fn=_with_list_result(options, schema))
    calls = _BatchCalls(options, schema, partition)
    failures = None
    if options.on_failure != "raise":
        convert = calls.cast_outcome if options.on_failure == "column" else None
        failures = partial(RowFailures(options, partition.counters).wrap, convert=convert)
    policy, counters, key_of, journal, cache = (
        options.policy,
        partition.counters,
        partial(_key_of, options),
        None,
        None,
    )
    if policy.journal is not None:
        form = BatchesForm(schema)
        journal = JournalledCalls(options, policy.journal, form, counters, key_of)
    if policy.cache is not None:
        of = called_id, schema.types
        cache = CachedResults(policy.cache, *of, counters, as_outcomes=options.as_outcomes)
    surroundings = Surroundings(cache=cache, key_of=key_of, failures=failures, wrap=calls.wrap)
    stage = CallStage(
        partition, options, calls, calls, surroundings=surroundings, journal=journal, watched=fn
    )
    return stage.outputs(first)


def _key_of(options: CallOptions, batch: pa.RecordBatch) -> tuple[Any, ...]:
    """Return the key by which the cache and the journal find the result of a call with ``batch``.

    Both store the results of earlier calls, the journal in files. The key is ``key(batch)`` if the
    user's ``Policy`` has the argument ``key``; otherwise it is a digest of the batch.
    """
    if (key := options.policy.key) is not None:
        return checked_key((key(batch),), options.label)
    return (KeyDigest(options.label, "")((batch,)),)


def can_emit_before_end(options: CallOptions) -> bool:
    """Return whether the first rows of a call may be emitted before the call has ended.

    Return ``False`` if the stage has an option that needs the whole result first: an async
    function, an ``on_failure`` other than ``"raise"``, ``Bounds(seconds)``, or a policy with
    retries, a limit, a circuit, a budget, a cache or a journal.
    """
    policy = options.policy
    features = (policy.retry, policy.limit, policy.circuit, policy.budget, options.bounds.seconds)
    needs_whole = options.is_async or options.on_failure != "raise" or policy.remembers
    return not needs_whole and not any(features)


def _with_list_result(options: CallOptions, schema: pa.Schema) -> Callable[..., Any]:
    """Return a wrapper of the user's function that turns an iterable of frames into a list.

    The call includes the iteration, so an error of the iteration counts as an error of the call.
    If the user's policy stores results, in a cache or in a journal (files), the frames of the list
    are converted to record batches of ``schema``. Otherwise they are not converted here.
    """
    fn, label = options.fn, options.label

    def as_list(result: Any) -> Any:
        if options.policy.remembers:
            return list(_pieces(result, schema, label))
        return _as_list(result)

    def call(*args: Any) -> Any:
        return as_list(fn(*args))

    async def call_async(*args: Any) -> Any:
        return as_list(await fn(*args))

    wrapper = call_async if options.is_async else call
    wrapper.__qualname__ = options.label
    return wrapper


def _as_list(result: Any) -> Any:
    # A structured numpy array is iterable, but it is one frame: do not make a list of its rows.
    # The attribute ``dtype`` identifies such an array.
    return list(result) if _is_frame_iterable(result) and not hasattr(result, "dtype") else result


def _is_frame_iterable(result: Any) -> bool:
    """Return whether ``result`` is an iterable of frames.

    An object with an attribute ``columns`` is a single frame.
    """
    return (
        isinstance(result, Iterable)
        and not isinstance(result, str | bytes | Mapping)
        and not hasattr(result, "columns")
    )


def _pieces(result: Any, schema: pa.Schema, label: str) -> Iterator[Any]:
    """Convert the result of a call to record batches of the declared ``schema``.

    Batches without rows are left out.
    """
    batches: Iterable[Any] | None = batches_of(result, schema, label)
    if batches is None:
        if not _is_frame_iterable(result):
            raise TypeError(
                f"{label} must return rows (a RecordBatch, a Table, a pandas frame, a structured "
                f"array, a list of dicts) or an iterable of such, got {type(result).__name__}"
            )
        batches = _batches_of_each(result, schema, label)
    for batch in batches:
        piece = conform(batch, schema, label)
        if piece.num_rows:
            yield piece


def _batches_of_each(several: Iterable[Any], schema: pa.Schema, label: str) -> Iterator[Any]:
    for rows in several:
        found = batches_of(rows, schema, label)
        yield from (rows,) if found is None else found


def _name_of(first_row: int, rows: int) -> str:
    return f"the batch of rows {first_row} to {first_row + rows - 1} of the partition"


# -- calls of a sync function, on threads ----------------------------------------------------------


class _Job:
    """A call: its input batch, and the ring ``out`` for its output batches.

    The main thread reads the rings of the calls one after another, in the order of the input.
    """

    def __init__(self, batch: Any, lease: ByteLease, first_row: int) -> None:
        self.batch = batch
        self.lease = lease
        self.first_row = first_row
        self.out = SpscRing(OUTPUTS_AHEAD)
        self.failure: BaseException | None = None
        """The exception that the call raised. The ring ``out`` does not carry the exception: the
        main thread could not tell a ``TimeoutError`` of the call from a time-out of ``out.get``.
        """


class _BatchesOnThreads:
    """Calls a sync function with the input batches, on up to ``concurrency`` threads.

    Only one thread at a time takes a batch from the read-ahead ring, so the calls start in the
    order of the input. For this the queue of the ``CallThreads``, the thread pool, never has more
    than one element: the number of the next batch. A thread takes this number and the batch. Then
    it puts the number of the following batch into the queue, and makes its call.
    """

    def __init__(
        self,
        options: CallOptions,
        schema: pa.Schema,
        partition: Partition,
    ) -> None:
        self._options = options
        self._schema = schema
        self._partition = partition
        self._read_ahead = partition.read_ahead
        self._counters = partition.counters
        self._counters.concurrency = options.concurrency
        self._writer = partition.writer
        self._threads = CallThreads(
            self._take_turn, id, options.concurrency, self._start_thread, "batches"
        )
        self._jobs = SpscRing(options.concurrency)
        self._next_row = 0
        self._lock = threading.Lock()
        self._running_jobs: set[_Job] = set()
        self._closed = False
        self._on_close = threading.Event()
        self._failure: BaseException | None = None
        self._client = PlainClient(options.using)
        self._rules = RetryRules(options.policy, options.label, partition.counters)
        self._names_call_id = names_call_id(options.fn)

    def outputs(self, first: list[Any]) -> Iterator[Any]:
        """Yield the output batches of the stage. The main thread runs this generator.

        ``first``: a list with the first batch. The read-ahead thread empties it, to save memory.
        """
        counters = self._counters
        self._partition.threads.on_failure = self._fail
        with self._client, self._partition.running(first, self._close):
            try:
                self._threads.put(1, 1)
                while (job := self._get(self._jobs)) is not None:
                    while (piece := self._get(job.out)) is not None:
                        counters.emit(piece.num_rows)
                        begin = time.monotonic()
                        yield piece
                        piece = None
                        counters.waiting_downstream += time.monotonic() - begin
                        self._writer.write_if_due()
                    if job.failure is not None:
                        raise job.failure
                    self._partition.budget.release(job.lease)
            finally:
                # The threads must be closed in any case. The ``with`` block calls ``_close``, which
                # closes them, at its end, but an exception at that moment could prevent this call.
                self._threads.close()
            if (failure := self._failure or self._read_ahead.error) is not None:
                raise failure

    def _get(self, ring: SpscRing) -> Any:
        """Wait for the next element of ``ring`` and return it; ``None`` if the ring is closed."""
        wait = None if not self._writer.is_enabled else REPORT_SECONDS
        begin = time.monotonic()
        try:
            while True:
                try:
                    return ring.get(wait)
                except TimeoutError:
                    self._count_wait(begin)
                    begin = time.monotonic()
                    self._writer.write_if_due()
        except RingClosed:
            return None
        finally:
            self._count_wait(begin)

    def _count_wait(self, begin: float) -> None:
        counters = self._counters
        waited = time.monotonic() - begin
        if counters.running:
            counters.waiting_function += waited
        else:
            counters.waiting_upstream += waited

    def _close(self) -> None:
        self._threads.close()
        self._jobs.close()
        with self._lock:
            self._closed = True
            jobs = list(self._running_jobs)
        self._on_close.set()
        for job in jobs:
            job.out.close()

    def _fail(self, failure: BaseException) -> None:
        """Close all rings, so that the main thread wakes and raises ``failure``. Thread-safe."""
        self._failure = self._failure or failure
        self._close()

    def _start_thread(self, run: Callable[[], object], name: str) -> None:
        self._client.context.copy().run(self._partition.threads.start, run, name)

    def _take_turn(self, number: int) -> None:
        """Take batch ``number``, let another thread take the next, and call the user's function.

        The ``_Job`` of the call is put into the ring ``_jobs`` before another thread may take a
        batch. So the jobs are in the order of the batches, as the main thread expects.
        """
        try:
            try:
                batch, lease = self._read_ahead.ring.get()
            except RingClosed:
                self._jobs.close()
                return
            job = _Job(batch, lease, self._next_row)
            self._next_row += batch.num_rows
            del batch
            counters = self._counters
            with self._lock:
                if self._closed:
                    return
                self._running_jobs.add(job)
                counters.calls += 1
                counters.running += 1
                counters.max_running = max(counters.max_running, counters.running)
            self._jobs.put(job)
            self._threads.put(number + 1, number + 1)
            self._run_job(job)
        except RingClosed:
            pass  # the stage ends, and has closed the ring of jobs
        except BaseException as raised:
            # Pass any exception, such as a MemoryError, to the main thread. Otherwise the main
            # thread would wait for this call for ever.
            self._fail(raised)

    def _run_job(self, job: _Job) -> None:
        options, rows = self._options, job.batch.num_rows
        failure: BaseException | None = None
        try:
            with self._trace():
                self._make_call(job)
        except RingClosed as closed:
            if not self._closed:
                failure = closed
        except StopIteration as stopped:
            # Replace StopIteration by an error that names the user's function. If the generator
            # ``outputs`` raised StopIteration, Python would replace it by an error without a name.
            failure = RuntimeError(f"{options.label} raised StopIteration")
            failure.__cause__ = stopped
        except BaseException as raised:
            failure = raised
        if failure is not None:
            where = _name_of(job.first_row, rows)
            job.failure = with_note(failure, f"raised by {options.label} for {where}")
        with self._lock:
            if failure is not None:
                self._counters.count_failure(failure)
            self._counters.running -= 1
            self._running_jobs.discard(job)
        job.out.close()

    def _trace(self) -> AbstractContextManager[object]:
        """Return a context manager for one call. For a sample of the calls it makes trace spans."""
        tracer = self._writer.spans
        if tracer is not None:
            with self._lock:  # other threads change ``calls_to_skip``, too
                tracer.calls_to_skip -= 1
                if tracer.calls_to_skip < 0:
                    return tracer.begin()
        return nullcontext()

    def _make_call(self, job: _Job) -> None:
        """Call the user's function for ``job``, and put its output batches into the ring.

        If the function raises ``RetryAfter`` before its first output batch, call it again later.
        """
        options, attempts, counters = self._options, CallAttempts(self._rules, None), self._counters
        batch, job.batch = job.batch, None
        if self._names_call_id:
            set_run_digest(KeyDigest(options.label, ""))
            set_key((batch,))
        while True:
            with self._lock:  # other threads change the counters, too
                counters.attempts += 1
            begun = time.monotonic()
            try:
                result = options.fn(*self._client.opened, batch)
                for piece in _pieces(result, self._schema, options.label):
                    job.out.put(piece)
                    batch = None
            except RetryAfter as error:
                with self._lock:
                    pause = None if batch is None else attempts.pause_after(error)
                if pause is None:
                    attempts.explain(error)
                    raise
            else:
                counters.count_success()
                return
            finally:
                with self._lock:
                    counters.count_latency(time.monotonic() - begun)
            with self._lock:
                counters.service_waits.__enter__()
            closed = self._on_close.wait(pause)
            with self._lock:
                counters.service_waits.__exit__()
            if closed:
                raise RingClosed


# -- calls that a ``CallStage`` makes, on an event loop --------------------------------------------


class _Item:
    __slots__ = ("batch", "first_row", "lease")

    def __init__(self, batch: Any, lease: ByteLease, first_row: int) -> None:
        self.batch = batch
        self.first_row = first_row
        self.lease = lease


class _BatchCalls:
    """The source and the sink of the ``CallStage`` that runs ``map_batches``.

    As the source, the object supplies the input batches, one for each call. As the sink, it turns
    the result of a call into output batches.
    """

    room = 1
    can_flush = False

    def __init__(self, options: CallOptions, schema: pa.Schema, partition: Partition) -> None:
        self.outputs: deque[Output] = deque()
        self.most_pending = options.concurrency
        self._label = options.label
        self._schema = schema
        self._outcomes = OutcomeForm(options.policy.units)
        self._read_ahead = partition.read_ahead
        self._budget = partition.budget
        self._next_row = 0

    @property
    def ended(self) -> bool:
        return self._read_ahead.ended

    def next(self, rows: int) -> _Item | None:  # noqa: ARG002 - a batch is not divided
        found = self._read_ahead.poll()
        if found is None:
            return None
        item = _Item(found.batch, found.lease, self._next_row)
        self._next_row += found.batch.num_rows
        return item

    def expect(self, item: _Item) -> list[Any]:
        return [item]

    def wrap(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(item: _Item) -> tuple[list[Any], ByteLease]:
            batch, item.batch = item.batch, None
            result = await fn(batch)
            if isinstance(result, Outcome):
                return self._with_outcome_column(result, batch), item.lease
            return list(_pieces(result, self._schema, self._label)), item.lease

        return call

    def cast_outcome(self, result: Any) -> Any:
        """Return ``result``, the ``Outcome`` of a call, with its rows cast to the declared schema.

        The ``Outcome`` of a failed call has no rows, and is returned unchanged.
        """
        if result.error is not None:
            return result
        return result._replace(value=list(_pieces(result.value, self._schema, self._label)))

    def _with_outcome_column(self, outcome: Outcome, batch: Any) -> list[Any]:
        """Return the output batches of a call, each with a further column named "outcome".

        The column reports the error, the seconds and the number of attempts of the call. A failed
        call has no output batches: then return a batch of nulls, as long as the input ``batch``.
        """
        import pyarrow as pa

        schema = self._schema
        if outcome.error is None:
            pieces = outcome.value
        else:
            nulls = [pa.nulls(batch.num_rows, kind) for kind in schema.types]
            pieces = [pa.RecordBatch.from_arrays(nulls, schema.names)]
        columns = self._outcomes.with_inputs(outcome, [piece.num_rows for piece in pieces], batch)
        return [
            pa.RecordBatch.from_arrays([*piece.columns, column], [*schema.names, OUTCOME])
            for piece, column in zip(pieces, columns, strict=True)
        ]

    def name_of(self, item: _Item) -> str:
        return _name_of(item.first_row, item.lease.rows)

    def take(self, window: CallWindow, most: int) -> int:
        results = window.take(most)
        for pieces, lease in results:
            if not pieces:
                self._budget.release(lease)
            last = len(pieces) - 1
            for index, piece in enumerate(pieces):
                self.outputs.append(Output(piece, piece.num_rows, lease if index == last else None))
        return len(results)

    def flush(self) -> None:
        """Do nothing: ``take`` emits each result immediately, so no result waits."""

    def check_end(self) -> None:
        """Do nothing: a call may return any number of rows, so no row can be missing."""
