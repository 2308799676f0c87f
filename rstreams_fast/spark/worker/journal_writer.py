"""Writes the answers of a partition to its journal."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from pickle import dumps
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.calls.errors import noted
from rstreams_fast.calls.journal.segments import KEY_BYTES, LARGE_BYTES, Folder, table_of
from rstreams_fast.calls.journal.write_ahead import Log, records_of
from rstreams_fast.spark.worker.values.conversions import Columns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LINGER_SECONDS", "REMOTE_LINGER_SECONDS", "JournalWriter"]

LINGER_SECONDS: Final = 0.05
"""How long an answer waits for more answers before they are written, on a local file system."""

REMOTE_LINGER_SECONDS: Final = 1.0
"""How long an answer waits on a remote file system, where each file costs a paid request."""

SEGMENT_ROWS: Final = 1024
"""The most answers of one segment."""

SEGMENT_BYTES: Final = 4 << 20
"""The most bytes of a segment, estimated from the segment before it."""

MOST_UNWRITTEN: Final = 4 * SEGMENT_ROWS
"""With so many unwritten answers, new calls wait for the file system."""

MERGED: Final = 16
"""So many segments of one size are merged into one."""
_Answers = tuple[list[bytes], list[Any]]
"""The digests of keys and their answers, as two lists: pairs would be more objects to collect."""

_SCALARS: Final[frozenset[type]] = frozenset({type(None), bool, int, float, str, bytes})
"""Types that every pickler writes alike, so the fastest pickler may write them."""

_LOGGED: Final[frozenset[type]] = frozenset(
    {dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone, Decimal}
)
"""The types, besides ``_SCALARS``, whose values a log may hold, alone or in containers."""

_LOGGED_NAMES: Final = {(kind.__module__, kind.__qualname__): kind for kind in _LOGGED}


class _Pickler(pickle.Pickler):
    """Refuses every value that is not plain data: reading it back could run code."""

    def reducer_override(self, value: Any) -> Any:
        """Accept ``value`` if its type is plain; else raise ``PicklingError``."""
        if type(value) in _LOGGED or (type(value) is type and value in _LOGGED):
            return NotImplemented
        raise pickle.PicklingError(f"{type(value).__name__} is not plain")


class _Unpickler(pickle.Unpickler):
    """Reads plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the plain type of that name."""
        return _LOGGED_NAMES[module, name]


class JournalWriter:
    """Writes each answer to a log, which survives the process, and later to a segment.

    A thread of its own writes the segments; an answer that is in a segment leaves its log. There
    are two logs: while the answers of one become segments, new answers go to the other. Sixteen
    segments are merged into one, repeatedly, and ``close`` merges the rest: so there are few
    segments, though each answer is written soon.
    """

    def __init__(self, folder: Folder, logs: str, columns: Columns) -> None:
        """``logs``: the name that all logs for this folder have."""
        self._folder = folder
        self._columns = columns
        self._name = logs
        self._logs: deque[Log] = deque()
        """First the log that ``put`` writes to, then the log whose answers become segments."""
        self._text = io.BytesIO()
        self._pickler = _Pickler(self._text, 5)
        self._lock = threading.Lock()
        """Guards the first log and ``_waiting``."""
        self._taken: _Answers = [], []
        self._linger = LINGER_SECONDS if folder.is_local else REMOTE_LINGER_SECONDS
        self._waiting: _Answers = [], []
        self._most_rows = SEGMENT_ROWS
        self._some = threading.Event()
        self._enough = threading.Event()
        self._closed = False
        self._ended = threading.Event()
        self._ended.set()
        self._failure: BaseException | None = None
        self._levels: list[list[tuple[str, pa.Table]]] = []
        self.wrote = False
        """Whether this writer has written a segment."""

    def start(self, start: Callable[[Callable[[], object], str], None]) -> None:
        """Create the logs, and write on a thread that ``start`` starts."""
        self._ended.clear()
        try:
            for _ in range(2):
                self._logs.append(Log(self._name))
            start(self._run, "journal")
        except BaseException:
            self._close_logs()
            self._ended.set()
            raise

    def left(self) -> dict[bytes, Any]:
        """Return the answers in living processes' logs; write dead processes' as segments."""
        living: dict[bytes, Any] = {}
        for records, dead in records_of(self._name):
            found = dict(self._read_all(records))
            if not dead:
                living.update(found)
            elif found and (table := self._table(list(found), list(found.values()))).num_rows:
                self._folder.write(table)
        return living

    def _read_all(self, records: list[bytes]) -> Iterator[tuple[bytes, Any]]:
        unknown = 0
        for record in records:
            try:
                yield self._read(record)
            except Exception:  # another version of this package may have written it
                unknown += 1
        if unknown:
            logging.getLogger("rstreams_fast").warning(
                "journal: %d answers for %s that another process has logged cannot be read, and "
                "are called for again",
                unknown,
                self._folder.path,
            )

    def _read(self, record: bytes) -> tuple[bytes, Any]:
        import pyarrow as pa

        digest, content = record[:KEY_BYTES], record[KEY_BYTES:]
        if content[:1] == b"\x80":  # every pickle starts with it
            return digest, _Unpickler(io.BytesIO(content)).load()
        with pa.ipc.open_stream(content) as reader:
            return digest, reader.read_next_batch().column(0)[0].as_py()

    def _record(self, digest: bytes, answer: Any) -> bytes | None:
        import pyarrow as pa

        text, pickler = self._text, self._pickler
        text.seek(0)
        text.truncate()
        pickler.clear_memo()
        try:
            pickler.dump(answer)
            return digest + text.getvalue()
        # The answer is an object: only its declared fields may be written.
        except Exception:
            try:
                batch = pa.record_batch([self._array([answer])], names=["answer"])
            except Exception:
                return None  # the task raises this when it converts the answer
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content: bytes = sink.getvalue().to_pybytes()
        return digest + content

    def put(self, digest: bytes, answer: Any) -> bool:
        """Queue an answer for writing; the loop's thread only. Return whether calls must wait."""
        plain = type(answer) in _SCALARS
        record = digest + dumps(answer, 5) if plain else self._record(digest, answer)
        with self._lock:
            keys, answers = self._waiting
            keys.append(digest)
            answers.append(answer)
            count = len(keys)
            if record is not None and self._logs:  # even if the writer has failed
                try:
                    self._logs[0].append(record)
                except OSError as raised:
                    self._failure = noted(raised, f"raised by the log of {self._folder.path}")
                    raise
        if self._failure is not None:  # after logging the answer: no segment will get it
            raise self._failure
        if count == 1:
            self._some.set()
        if count < self._most_rows:
            return False
        self._enough.set()
        return self.behind

    @property
    def behind(self) -> bool:
        """Whether calls must wait for the file system. Raises the error that ended the writer."""
        if self._failure is not None:
            raise self._failure
        unwritten = len(self._waiting[0]) + len(self._taken[0])
        return unwritten >= MOST_UNWRITTEN * self._most_rows // SEGMENT_ROWS

    def close(self) -> None:
        """Wait until every answer is written."""
        self._closed = True
        self._enough.set()
        self._some.set()
        self._ended.wait()
        self._close_logs()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._closed:
                self._some.wait()
                self._enough.wait(self._linger)
                if not self._closed:
                    self._some.clear()
                    self._enough.clear()
                while self._waiting[0]:
                    self._write_waiting()
            rest = [segment for level in reversed(self._levels) for segment in level]
            if len(rest) > 1:
                self._merge(rest)
        except Exception as raised:
            self._failure = noted(raised, f"raised by the journal in {self._folder.path}")
        finally:
            self._ended.set()

    def _close_logs(self) -> None:
        with self._lock:
            while self._logs:
                self._logs.pop().close(remove=self._failure is None)

    def _write_waiting(self) -> None:
        with self._lock:
            self._taken, self._waiting = self._waiting, ([], [])
            self._logs.reverse()
        while self._taken[0]:
            self._write()
        self._logs[1].clear()

    def _write(self) -> None:
        """Write one segment; merge segments as soon as there are enough of one size."""
        (keys, answers), most = self._taken, self._most_rows
        self._taken = keys[most:], answers[most:]
        table = self._table(keys[:most], answers[:most])
        if table.num_rows:  # large answers need smaller segments
            fitting = SEGMENT_BYTES * table.num_rows // table.nbytes
            self._most_rows = max(1, min(SEGMENT_ROWS, fitting))
        name = self._folder.write(table)
        self.wrote = True
        for level in itertools.count():
            if table.nbytes >= LARGE_BYTES:
                return
            if level == len(self._levels):
                self._levels.append([])
            group = self._levels[level]
            group.append((name, table))
            size = sum(table.nbytes for _, table in group)
            if len(group) < MERGED and size < LARGE_BYTES:
                return
            self._levels[level] = []
            name, table = self._merge(group)

    def _merge(self, group: list[tuple[str, pa.Table]]) -> tuple[str, pa.Table]:
        import pyarrow as pa

        table = pa.concat_tables([table for _, table in group]).combine_chunks()
        merged = self._folder.write(table, since=group[0][0])
        for name, _ in group:
            self._folder.remove(name)
        return merged, table

    def _table(self, keys: list[bytes], answers: list[Any]) -> pa.Table:
        import pyarrow as pa

        try:
            column = self._array(answers)
        except Exception:
            # The task itself reports an answer that does not fit its declared type, with its key.
            if len(keys) <= 1:
                return self._table([], [])
            rows = zip(keys, answers, strict=True)
            tables = [self._table([key], [answer]) for key, answer in rows]
            return pa.concat_tables(tables).combine_chunks()
        return table_of(keys, column)

    def _array(self, answers: list[Any]) -> pa.Array:
        import pyarrow as pa

        columns = self._columns
        arrays = columns.arrays(answers, str)
        if len(arrays) == 1:
            return arrays[0]
        fields = [pa.field(*field) for field in zip(columns.names, columns.types, strict=True)]
        nulls = pa.array([answer is None for answer in answers], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=nulls)
