"""Sinks that call a function with many rows. After a failure, only failed rows are sent again."""

from __future__ import annotations

import contextlib
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast._checks import is_coroutine_function, refuse_coroutine
from rstreams_fast._third_parties import pyarrow_for
from rstreams_fast.calls.errors import BudgetSpentError, CircuitOpenError
from rstreams_fast.calls.functions import label_of
from rstreams_fast.calls.ids import identified_call
from rstreams_fast.calls.journal.calls import digest_of_text, folder_name_of
from rstreams_fast.calls.journal.journal import Journal
from rstreams_fast.calls.journal.segments import Folder
from rstreams_fast.calls.keys import KeyDigest
from rstreams_fast.calls.lists.batching import Batching
from rstreams_fast.calls.policy import PolicyFunction
from rstreams_fast.spark.frames import MapFunction
from rstreams_fast.spark.lookups import Lookup, lookup
from rstreams_fast.spark.options import Failures
from rstreams_fast.spark.sinks.dead_letters import (
    DeadLetterFile,
    DeadLetters,
    check_not_read,
    remove_other_files,
)
from rstreams_fast.spark.sinks.report import PartitionCounts
from rstreams_fast.spark.sinks.sink import Frame, Sink, SinkOptions
from rstreams_fast.spark.worker.counters import task_context
from rstreams_fast.spark.worker.outcomes import OUTCOME
from rstreams_fast.spark.worker.values.conversions import Columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CalledSink", "FunctionSink"]

DEFAULT_CALLS: Final = 4
"""The default of ``concurrency`` in a sink: the maximum of concurrent calls per partition."""

DEFAULT_ROWS: Final = 100
"""The default of ``batch`` in a sink: the maximum number of rows per call."""

_REFUSALS: Final = (BudgetSpentError.__qualname__, CircuitOpenError.__qualname__)
"""The error types of attempts that a budget or an open circuit refused: they sent no rows."""

OUTCOME_COLUMN: Final = "rstreams_fast.outcome"
"""The column that ``lookup`` adds to the rows: the result or error of each row, for ``_Drain``."""


class CalledSink(ABC):
    """The base of built-in sinks that are called like a user's function: with a client and rows."""

    batch: Batching
    """The number of rows per call, unless the user gives another number."""

    @property
    @abstractmethod
    def target(self) -> str:
        """A text that identifies where the rows go.

        It distinguishes sinks that use the same journal or the same directory for dead letters.
        """

    @abstractmethod
    def check(self, names: tuple[str, ...]) -> None:
        """Raise an error if the sink cannot write rows with these column names."""

    @abstractmethod
    def client(self, concurrency: int) -> AbstractAsyncContextManager[Any]:
        """Return the context manager of a client that can make ``concurrency`` calls at once."""

    @abstractmethod
    async def __call__(self, client: Any, rows: list[dict[str, Any]]) -> list[Any] | None:
        """Write ``rows`` and return the result of each row; ``None`` if all rows succeeded."""


@dataclass(frozen=True)
class _RowIds:
    """A function that returns a digest of a row's key: ``call_id`` makes the row's id from it."""

    names: tuple[str, ...]
    key: tuple[str, ...]
    label: str
    version: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "_digest", KeyDigest(self.label, self.version))
        places = tuple(self.names.index(name) for name in self.key)
        object.__setattr__(self, "_places", places)

    _digest: KeyDigest = field(init=False)
    _places: tuple[int, ...] = field(init=False)

    # Pickle only the arguments: the hash object in ``_digest`` cannot be pickled.
    def __reduce__(self) -> Any:
        return _RowIds, (self.names, self.key, self.label, self.version)

    def __call__(self, row: tuple[Any, ...]) -> bytes:
        if len(row) == 1 and isinstance(row[0], dict):
            return self._digest(tuple(row[0][name] for name in self.key))
        return self._digest(tuple(row[place] for place in self._places))


def _only_row(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    if len(rows) > 1:
        raise RuntimeError("this call is of several rows: give call_id the one that is meant")
    # Return the row as a dict, not as a tuple. If a tuple had a dict as its only value, ``_RowIds``
    # would take this value for the row.
    return (dict(zip(names, rows[0], strict=True)),)


class FunctionSink(Sink):
    """Writes rows by calls of a function under its policy. The calls are made as in ``lookup``."""

    def __init__(self, fn: Callable[..., Any], options: SinkOptions) -> None:
        if not callable(fn):
            raise TypeError(
                "sink must be a function, a class of subscribers or one of sinks, "
                f"got {type(fn).__name__}"
            )
        self._policy: Any = None
        if isinstance(fn, PolicyFunction):
            fn, self._policy = fn.fn, fn.policy
            if self._policy.cache is not None:
                raise ValueError("a sink takes no cache: it would keep back rows that are equal")
        self._fn, self._label = fn, label_of(fn)
        self._target = fn.target if isinstance(fn, CalledSink) else ""
        concurrency = options.concurrency or DEFAULT_CALLS
        batch, using = Batching(DEFAULT_ROWS), options.using
        if isinstance(fn, CalledSink):
            options.refuse(self._label, "using")
            batch, using = fn.batch, partial(fn.client, concurrency)
        self._batch = options.batch or batch
        self._options = replace(options, using=using, concurrency=concurrency, batch=self._batch)
        # Make a stage only to check the arguments: this raises an error if they do not fit a sink.
        self._make_stage(self._make_calls(None), "")

    def drain(self, frame: Frame) -> MapFunction:
        names, options = frame.names, self._options
        if unknown := sorted(set(options.key) - set(names)):
            raise ValueError(
                f"key: the frame has no column {', '.join(unknown)}; it has {', '.join(names)}"
            )
        if isinstance(self._fn, CalledSink):
            self._fn.check(names)
        if options.dead_letters is not None:
            check_not_read(options.dead_letters, self._dead_letter_prefix(frame), frame.files)
        part = "" if frame.batch is None else str(frame.batch)
        if self._policy is not None and self._policy.journal is not None and not frame.job:
            raise ValueError(
                "a journal needs job=: by this name a later write finds the answers of this write"
            )
        # A write without a name has no repetition: its rows get ids that no other write gives.
        version = self._version(frame.job or frame.write_id, part)
        calls = self._make_calls(_RowIds(names, options.key or names, self._label, version))
        outcomes = self._make_stage(calls, version).as_map_fn(names, OUTCOME_COLUMN)
        drain = _Drain(calls, outcomes, options.dead_letters, self._dead_letter_prefix(frame))
        if self._policy is not None and self._policy.journal is not None and frame.batch:
            # When Spark begins a batch, the previous batch is committed and will not be repeated.
            # So the answers of the previous batch in the journal are useless now.
            journal = self._journal_with_version(self._version(frame.job, str(frame.batch - 1)))
            folder_name = folder_name_of(self._label, journal.version, str(_result_type()))
            drain.obsolete_journal = journal.uri, folder_name
        return drain

    def commit(self, frame: Frame, tokens: list[str], rows: int) -> bool:  # noqa: ARG002
        if self._options.dead_letters is not None and frame.job:
            remove_other_files(self._options.dead_letters, self._dead_letter_prefix(frame), tokens)
        return True

    def _dead_letter_prefix(self, frame: Frame) -> str:
        """Return the prefix of the names of this write's dead-letter files.

        It differs between sinks, because several sinks may write to the same directory.
        """
        write = digest_of_text(frame.write_id, self._label, self._target)
        return f"dead-{write}-{'' if frame.batch is None else frame.batch}-"

    def _version(self, job: str, part: str) -> str:
        """Return a text that is part of the journal's version and of the ids of rows.

        It distinguishes equal rows of different jobs, batches and targets. ``job`` is the name of
        the job, or the id of a write without a name.
        """
        return ascii((job, part, self._target))

    def _journal_with_version(self, version: str) -> Journal:
        journal: Journal = self._policy.journal
        return replace(journal, version=f"{journal.version} {version}")

    def _make_calls(self, ids: _RowIds | None) -> _Calls:
        kind = _AsyncCalls if is_coroutine_function(self._fn) else _PlainCalls
        return kind(self._fn, self._options.using is not None, ids)

    def _make_stage(self, calls: _Calls, version: str) -> Lookup:
        options, policy, letters = self._options, self._policy, self._options.dead_letters
        fn: Any = calls
        if policy is not None:
            if policy.journal is not None:
                policy = replace(policy, journal=self._journal_with_version(version))
            fn = policy(calls)
        return lookup(
            fn,
            _result_type(),
            using=options.using,
            concurrency=options.concurrency or DEFAULT_CALLS,
            batch=options.batch,
            on_null="call",
            on_failure="raise" if letters is None else Failures("column", letters.at_most),
            bounds=options.bounds,
            metrics=options.metrics,
        )


def _result_type() -> Any:
    """Return the Arrow type of a row's result, a boolean."""
    return pyarrow_for("rstreams_fast.spark").bool_()


class _Calls:
    """The function that ``lookup`` calls: passes rows to the user's function, and counts them."""

    def __init__(self, fn: Callable[..., Any], has_client: bool, ids: _RowIds | None) -> None:
        self.__qualname__ = label_of(fn)
        self._fn = fn
        self._ids = ids
        self._gets_batches = _takes_batches(fn, 1 if has_client else 0)
        self._schema: Any = None
        self._columns: Any = None
        self.counts = PartitionCounts()
        self.failed = 0
        """How many times the sending of a row has failed."""

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the ``batches`` of a partition and count their bytes. First set all counts to 0."""
        self.counts, self.failed = PartitionCounts(), 0
        for batch in batches:
            if self._schema is None:
                self._schema = batch.schema
            self.counts.bytes += batch.nbytes
            yield batch

    @contextlib.contextmanager
    def _argument_of(self, keys: list[Any]) -> Iterator[Any]:
        """Yield the rows as the function's argument. In the block ``call_id`` returns their ids."""
        ids, schema = self._ids, self._schema
        assert ids is not None  # noqa: S101 - for mypy
        rows = keys if len(ids.names) > 1 else [(key,) for key in keys]
        if not self._gets_batches:
            argument: Any = [dict(zip(ids.names, row, strict=True)) for row in rows]
        else:
            import pyarrow as pa

            if self._columns is None:
                self._columns = Columns(schema.names, schema.types)
            arrays = self._columns.arrays(keys, lambda index: f"row {index} of a call")
            argument = pa.RecordBatch.from_arrays(arrays, schema=schema)
        with identified_call(ids, lambda: _only_row(ids.names, rows)):
            yield argument

    def _results(self, returned: Any, rows: int) -> list[Any]:
        """Return for each row ``True``, or the exception with which the row failed."""
        if returned is None:
            return [True] * rows
        if not isinstance(returned, list | tuple) or len(returned) != rows:
            size = f" of {len(returned)}" if isinstance(returned, list | tuple) else ""
            raise TypeError(
                f"{self.__qualname__} was called with {rows} rows and must return nothing, or a "
                f"list of as many results; it returned {type(returned).__name__}{size}"
            )
        for one in returned:
            if isinstance(one, type) and issubclass(one, BaseException):
                raise TypeError(
                    f"{self.__qualname__} returned the class {one.__name__} as the result of a "
                    f"row: return an exception, {one.__name__}(...)"
                )
        found = [one if isinstance(one, BaseException) else True for one in returned]
        self.failed += rows - found.count(True)
        return found


class _AsyncCalls(_Calls):
    async def __call__(self, *args: Any) -> list[Any]:
        *client, keys = args
        rows = len(keys)
        self.counts.calls += 1
        try:
            with self._argument_of(keys) as argument:
                return self._results(await self._fn(*client, argument), rows)
        except BaseException:
            self.failed += rows
            raise


class _PlainCalls(_Calls):
    """Calls of a function that is not async, on several threads. A lock guards the counts."""

    _lock = threading.Lock()

    def __call__(self, *args: Any) -> list[Any]:
        *client, keys = args
        rows = len(keys)
        with self._lock:
            self.counts.calls += 1
        try:
            with self._argument_of(keys) as argument:
                returned = self._fn(*client, argument)
            refuse_coroutine("write", self._fn, returned, "; make the function async")
            with self._lock:
                return self._results(returned, rows)
        except BaseException:
            with self._lock:
                self.failed += rows
            raise


def _takes_batches(fn: Callable[..., Any], place: int) -> bool:
    """Whether parameter number ``place``, which gets the rows, is annotated as ``RecordBatch``."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    kind = parameters[place].annotation if place < len(parameters) else None
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return name.rpartition(".")[2] == "RecordBatch"


class _Drain:
    """The function that writes a partition. Spark sends it to its workers as a pickle."""

    def __init__(
        self, calls: _Calls, outcomes: MapFunction, dead_letters: DeadLetters | None, prefix: str
    ) -> None:
        self._calls = calls
        self._outcomes = outcomes
        self._dead_letters = dead_letters
        self._prefix = prefix
        self.obsolete_journal: tuple[str, str] | None = None
        """The URI of the journal, and its folder with results that no batch needs any more."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows of ``batches``, then yield one batch with the counts of the partition."""
        calls, never_sent = self._calls, 0
        context = task_context()
        partition = 0 if context is None else context.partitionId()
        name = f"{self._prefix}{partition:05d}"
        with contextlib.ExitStack() as stack:
            if self._dead_letters is not None:
                file = stack.enter_context(DeadLetterFile(self._dead_letters, name))
            outputs = stack.enter_context(contextlib.closing(self._outcomes(calls.count(batches))))  # type: ignore[type-var]
            for output in outputs:
                calls.counts.rows += output.num_rows
                if self._dead_letters is not None and (dead := _failed_rows(output)) is not None:
                    file.put(dead)
                    calls.counts.dead += dead.num_rows
                    never_sent += _count_never_sent(dead)
        if self.obsolete_journal is not None and not partition:
            Folder(*self.obsolete_journal).remove_all()
        counts = calls.counts
        counts.token = name
        counts.retried = max(0, calls.failed - (counts.dead - never_sent))
        counts.rows -= counts.dead
        yield counts.batch()


def _failed_rows(output: pa.RecordBatch) -> pa.RecordBatch | None:
    """Return the failed rows of ``output``, if any, with their outcome as the last column."""
    import pyarrow as pa

    outcomes = output.column(output.num_columns - 1)
    fields = [outcomes.type.field(place) for place in range(1, outcomes.type.num_fields)]
    parts = outcomes.flatten()[1:]
    failed = parts[0].is_valid()
    if not failed.true_count:
        return None
    outcome = pa.StructArray.from_arrays(parts, fields=fields)
    columns = [*output.columns[:-1], outcome]
    names = [*output.schema.names[:-1], OUTCOME]
    return pa.RecordBatch.from_arrays(columns, names).filter(failed)


def _count_never_sent(dead: pa.RecordBatch) -> int:
    """Return how many of the ``dead`` rows were never sent: a budget or circuit refused them.

    A refused attempt is always the last attempt of its row.
    """
    outcomes: list[Any] = dead.column(dead.num_columns - 1).to_pylist()
    return sum(one["attempts"] == 1 and one["error"]["type"] in _REFUSALS for one in outcomes)
