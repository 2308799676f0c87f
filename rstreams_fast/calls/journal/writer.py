"""Writes answers to a journal: immediately to a log file, and later to segment files.

A segment file is a complete Arrow file of answers. A log file is a write-ahead log on the host's
own disk.
"""

from __future__ import annotations

import datetime as dt
import io
import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.calls.errors import with_note
from rstreams_fast.calls.journal.forms import AnswerForm
from rstreams_fast.calls.journal.levels import SegmentLevels
from rstreams_fast.calls.journal.segments import Folder, table_of
from rstreams_fast.calls.journal.write_ahead import Log, records_of
from rstreams_fast.calls.keys import KEY_BYTES, KeyDigest
from rstreams_fast.calls.thread_group import start_thread

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LINGER_SECONDS", "REMOTE_LINGER_SECONDS", "JournalWriter"]

LINGER_SECONDS: Final = 0.25
"""How long, in seconds, an answer waits for more answers before a local segment file is written."""

REMOTE_LINGER_SECONDS: Final = 1.0
"""How long, in seconds, an answer waits before a remote segment file is written: each file costs a
paid request."""

FIRST_ROWS: Final = 1024
"""The most answers of a writer's first segment file: the size of an answer is still unknown."""

SEGMENT_ROWS: Final = 8192
"""The most answers of one segment file."""

SEGMENT_BYTES: Final = 4 << 20
"""The most bytes of a segment file, by an estimate from the previous file."""

MOST_UNWRITTEN: Final = 4
"""While the unwritten answers would fill this number of segment files, new calls wait."""

_Answers = tuple[list[bytes], list[Any]]
"""The digests of keys, and their answers. Pairs would be more work for the garbage collector."""

_PLAIN_TYPES: Final[frozenset[type]] = frozenset(
    {dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone, Decimal}
)
"""The types of values that a log may contain, besides Python's scalars and containers."""

_PICKLED: Final = b"p"
"""First byte of a log record with a pickle of the joined digests of keys, and the answers."""

_COLUMNAR: Final = b"c"
"""First byte of a log record with a key's digest, and the answer as an Arrow IPC stream."""

_PLAIN_TYPES_BY_NAME: Final = {(kind.__module__, kind.__qualname__): kind for kind in _PLAIN_TYPES}


class _Pickler(pickle.Pickler):
    """Pickles plain data, and refuses other values: to unpickle these could run code."""

    def reducer_override(self, value: Any) -> Any:
        """Accept ``value`` if ``_PLAIN_TYPES`` has its type; else raise ``PicklingError``."""
        if type(value) in _PLAIN_TYPES or (type(value) is type and value in _PLAIN_TYPES):
            return NotImplemented
        raise pickle.PicklingError(f"{type(value).__name__} is not plain")


class _Unpickler(pickle.Unpickler):
    """Loads only Python's scalars and containers, and values of the types in ``_PLAIN_TYPES``."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of ``_PLAIN_TYPES``. Refuse other types, because they could run code."""
        return _PLAIN_TYPES_BY_NAME[module, name]


class JournalWriter:
    """Writes each answer to a log file, which survives the process, and later to a segment file.

    A separate thread writes the segment files, and then removes their answers from the log. There
    are two log files: while the answers of one log become segment files, new answers go to the
    other log. Sixteen segment files of one level are merged into one, and ``close`` merges the
    rest. So there are few segment files, although each answer is written soon.
    """

    def __init__(
        self,
        folder: Folder,
        merged: SegmentLevels,
        logs: str,
        form: AnswerForm,
        on_written: Callable[[list[bytes]], None] | None = None,
    ) -> None:
        """``merged``: the segment files of this process's earlier writers, to which ``close`` adds
        a file. ``logs``: the name of all log files for this folder. ``on_written`` gets the digests
        of keys whose answers are in segment files, before these answers are removed from their log.
        """
        self._on_written = on_written
        self._folder = folder
        self._levels = SegmentLevels(folder)
        self._merged = merged
        self._written: list[bytes] = []
        """Digests of keys whose answers are written, but not passed to ``on_written`` yet."""
        self._new_segments: list[tuple[str, int]] = []
        """The names and bytes of new segment files, which ``_merge`` will pass to ``_levels``."""
        self._form = form
        self._name = logs
        self._logs: deque[Log] = deque()
        """First the log file that ``put`` writes to, then the log file whose answers are being
        written to segment files. The second is made with the first segment file, unless ``close``
        comes before."""
        self._buffer = io.BytesIO()
        self._pickler = _Pickler(self._buffer, 5)
        self._lock = threading.Lock()
        """Guards the first log file, the pickler and ``_waiting``."""
        self._being_written: _Answers = [], []
        self._linger = LINGER_SECONDS if folder.is_local else REMOTE_LINGER_SECONDS
        self._waiting: _Answers = [], []
        self._most_rows = min(FIRST_ROWS, SEGMENT_ROWS)
        self._has_answers = threading.Event()
        self._has_segment = threading.Event()
        self._closed = False
        self._idle: float | None = None
        self._start: Callable[[Callable[[], object], str], object]
        self._tidy_up: Callable[[], object] | None = None
        self._has_written_all = threading.Event()
        self._has_written_all.set()
        self._ended = threading.Event()
        self._ended.set()
        self._failure: BaseException | None = None
        self.is_slow = False
        """Whether a call that ends must check ``is_behind``: writing failed, or many answers
        wait."""
        self.has_written = False
        """Whether this writer has written a segment file."""

    def start(
        self,
        idle: float | None = None,
        start: Callable[[Callable[[], object], str], object] = start_thread,
    ) -> None:
        """Create a log file. The function ``start`` starts the thread that writes segment files.

        With ``idle`` the thread starts with the first answer, and ends after ``idle`` seconds
        without an answer. If writing fails, the thread tries again until it succeeds or the journal
        is closed. Until then ``is_behind`` raises the failure. Without ``idle`` the first failure
        ends the thread.
        """
        self._start, self._idle, self._closed = start, idle, False
        self._failure, self.is_slow = None, False
        self._logs.append(Log(self._name))
        try:
            if self._waiting[0]:  # answers that the last ``close`` could not write
                self._has_answers.set()
            if idle is None or self._waiting[0]:
                self._start_thread()
        except BaseException:
            self._close_logs()
            raise

    def _start_thread(self) -> None:
        self._ended.clear()
        self._has_written_all.clear()
        try:
            self._start(self._run, "rstreams-journal")
        except BaseException:
            self._has_written_all.set()
            self._ended.set()
            raise

    def read_logs(self) -> dict[bytes, Any]:
        """Return the answers in the log files of living processes.

        Write the answers in the log files of dead processes to segment files.
        """
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
                yield from self._read(record)
            except Exception:
                # Another version of this package may have written the record in another format.
                unknown += 1
        if unknown:
            logging.getLogger("rstreams_fast").warning(
                "journal: %d records of answers for %s that another process has logged cannot be "
                "read, and these are called for again",
                unknown,
                self._folder.path,
            )

    def _read(self, record: bytes) -> Iterator[tuple[bytes, Any]]:
        import pyarrow as pa

        tag, content = record[:1], record[1:]
        if tag == _PICKLED:
            keys, answers = _Unpickler(io.BytesIO(content)).load()
            digests = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
            yield from zip(digests, answers, strict=True)
        else:
            with pa.ipc.open_stream(content[KEY_BYTES:]) as reader:
                column = reader.read_next_batch().column(0)
            yield content[:KEY_BYTES], self._form.value(column[0])

    def _records(self, digests: Sequence[bytes], answers: Sequence[Any]) -> Iterator[bytes]:
        """Yield log records of ``answers``: one record if all are plain data, else one for each."""
        buffer, pickler = self._buffer, self._pickler
        buffer.seek(0)
        buffer.truncate()
        pickler.clear_memo()
        try:
            pickler.dump((b"".join(digests), answers))
            yield _PICKLED + buffer.getvalue()
        except Exception:
            if len(digests) > 1:
                for digest, answer in zip(digests, answers, strict=True):
                    yield from self._records([digest], [answer])
            elif (content := self._columnar(answers)) is not None:
                yield _COLUMNAR + digests[0] + content

    def _columnar(self, answers: Sequence[Any]) -> bytes | None:
        """Return an Arrow IPC stream of ``answers`` that are no plain data, in their declared type.

        Returns ``None`` if an answer does not fit the type.
        """
        import pyarrow as pa

        try:
            batch = pa.record_batch([self._form.array(list(answers))], names=["answer"])
        except Exception:
            # Do not log an answer that does not fit its type: the stage raises an error for it.
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    def put(
        self,
        digest_of: KeyDigest,
        keys: Iterable[tuple[Any, ...]],
        answers: Sequence[Any],
    ) -> None:
        """Log answers, and queue them for segment files. A failure makes ``is_slow`` true.

        Then ``is_behind`` raises the failure.
        """
        try:
            digests = digest_of.many(keys)
        except Exception as raised:
            self._fail(raised, "raised for a key by the journal in")
        else:
            self.put_digests(digests, answers)

    def put_digests(self, digests: Sequence[bytes], answers: Sequence[Any]) -> None:
        """Do the same as ``put``, with the digests of the keys in place of the keys."""
        with self._lock:
            waiting, values = self._waiting
            waiting.extend(digests)
            values.extend(answers)
            count = len(waiting)
            try:
                # Log even if segment files cannot be written: the next process reads the log.
                for record in self._records(digests, answers) if self._logs else ():
                    self._logs[0].append(record)
            except Exception as raised:
                self._fail(raised, "raised by the log of")
            if self._idle is not None and self._logs and self._ended.is_set():
                self._start_thread()
        if count == len(digests):
            self._has_answers.set()
        if count >= self._most_rows:
            self._has_segment.set()
            if count >= MOST_UNWRITTEN * self._most_rows:
                self.is_slow = True

    def _fail(self, raised: Exception, where: str) -> None:
        # With ``idle`` many calls raise the stored failure, and each call adds to its traceback. So
        # replace the failure by the latest one.
        if self._failure is None or self._idle is not None:
            self._failure = with_note(raised, f"{where} {self._folder.path}")
        self.is_slow = True

    @property
    def is_behind(self) -> bool:
        """Whether new calls must wait until answers are written. Raises a failure to write."""
        if (failure := self._failure) is not None:
            raise failure
        unwritten = len(self._waiting[0]) + len(self._being_written[0])
        self.is_slow = unwritten >= MOST_UNWRITTEN * self._most_rows
        return self.is_slow

    def close(self, tidy_up: Callable[[], object] | None = None) -> None:
        """Wait until every answer is in a segment file.

        Without ``tidy_up``, wait until the files are merged, too. With ``tidy_up``, do not wait for
        the writer's thread, which merges the files and then calls ``tidy_up``.
        """
        self._tidy_up = tidy_up
        self._closed = True
        self._has_segment.set()
        self._has_answers.set()
        (self._ended if tidy_up is None else self._has_written_all).wait()
        if self._idle is not None and self._failure is None:
            self._merge_all()
        self._has_answers.clear()
        self._has_segment.clear()
        if self._failure is not None or tidy_up is None:
            self._close_logs()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        has_ended = False
        try:
            while not self._closed:
                if not self._has_answers.wait(self._idle) and (has_ended := self._may_end()):
                    return
                self._has_segment.wait(self._linger)
                if not self._closed:
                    self._has_answers.clear()
                    self._has_segment.clear()
                try:
                    self._write_all()
                except Exception as raised:
                    if self._idle is None:
                        raise
                    self._fail(raised, "raised by the journal in")
                    self._has_answers.set()
            # If the journal was closed before this thread began, the loop has written nothing.
            self._write_all()
            self._has_written_all.set()
            self._merge_all()
            if self._tidy_up is not None:
                self._close_logs()
                self._tidy_up()
        except Exception as raised:
            if self._has_written_all.is_set():
                logging.getLogger("rstreams_fast").warning(
                    "journal: segments in %s were not merged (%s)", self._folder.path, raised
                )
            else:
                self._fail(raised, "raised by the journal in")
        finally:
            # ``_may_end`` has set ``_ended`` for a thread that it lets end: by now a newer thread
            # may run.
            if not has_ended:
                self._has_written_all.set()
                self._ended.set()

    def _write_all(self) -> None:
        while self._waiting[0]:
            self._write_waiting()
            if not self._closed:
                self._merge()
        with self._lock:
            # All answers are written: forget the failure. But without ``idle`` the failure must
            # still end the Spark task.
            if self._idle is not None and not self._waiting[0]:
                self._failure = None

    def _may_end(self) -> bool:
        """Whether the thread may end: no answer waits. A later answer starts a new thread."""
        with self._lock:
            if not self._waiting[0]:
                self._ended.set()
            return self._ended.is_set()

    def _merge(self) -> None:
        while self._new_segments:
            self._levels.add(*self._new_segments.pop(0))

    def _merge_all(self) -> None:
        self._merge()
        if (segment := self._levels.merge_all()) is not None:
            self._merged.add(*segment)

    def _close_logs(self) -> None:
        with self._lock:
            is_all_written = self._failure is None and not self._waiting[0]
            while self._logs:
                self._logs.pop().close(remove=is_all_written)

    def _write_waiting(self) -> None:
        if len(self._logs) == 1 and not self._closed:
            self._logs.append(Log(self._name))
        with self._lock:
            self._being_written, self._waiting = self._waiting, ([], [])
            self._logs.reverse()
        while (unwritten := self._being_written)[0]:
            try:
                self._write()
            except Exception:
                # Put the unwritten answers back into ``_waiting``. Both logs may have unwritten
                # answers now, and the second log is cleared only when no answer waits.
                with self._lock:
                    (keys, answers), waiting = unwritten, self._waiting
                    self._waiting = keys + waiting[0], answers + waiting[1]
                    self._being_written = [], []
                raise
        if self._on_written is not None:
            self._on_written(self._written)
        self._written = []
        if len(self._logs) > 1:  # ``close`` removes the log if there is only one
            self._logs[1].clear()

    def _write(self) -> None:
        """Write one segment file from ``_being_written``."""
        (keys, answers), most = self._being_written, self._most_rows
        self._being_written = keys[most:], answers[most:]
        table = self._table(keys[:most], answers[:most])
        # If no answer fits its type, write no file: readers would call an empty file damaged.
        if table.num_rows:
            # The size of these answers decides how many rows the next segment file has.
            fitting = SEGMENT_BYTES * table.num_rows // table.nbytes
            self._most_rows = max(1, min(SEGMENT_ROWS, fitting))
            self._new_segments.append((self._folder.write(table), table.nbytes))
            self.has_written = True
        self._written += keys[:most]

    def _table(self, keys: list[bytes], answers: list[Any]) -> pa.Table:
        import pyarrow as pa

        try:
            column = self._form.array(answers)
        except Exception:
            # Leave out an answer that does not fit its type: the task reports it, with its key.
            if len(keys) <= 1:
                return self._table([], [])
            rows = zip(keys, answers, strict=True)
            tables = [self._table([key], [answer]) for key, answer in rows]
            return pa.concat_tables(tables).combine_chunks()
        return table_of(keys, column)
