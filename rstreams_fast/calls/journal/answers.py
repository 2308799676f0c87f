"""Finds the answers (results of calls) of a journal by the digests of their keys.

A segment file is a complete Arrow file of answers. A log file (a write-ahead log on a host's disk)
keeps an answer until the answer is in a segment file.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rstreams_fast.calls.journal.forms import AnswerForm
from rstreams_fast.calls.journal.levels import SegmentLevels
from rstreams_fast.calls.journal.segments import BATCH_ROWS, Folder
from rstreams_fast.calls.latest import LatestUsed
from rstreams_fast.core import MISSING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Answers", "answers_of"]

READ_BYTES: Final = 32 << 20
"""For each function, the most bytes of answers that stay in memory after they were read."""

OPEN_SEGMENTS: Final = 64
"""For each function, the most segment files that a process keeps open."""

FILTER_BYTES: Final = 8
"""Bytes of the filter of ``may_have`` for each answer. With 8 bytes, the filter rules out seven of
eight keys that have no answer."""

REFRESH_TRIES: Final = 20
"""How many times ``refresh`` lists the segment files if other processes replace some meanwhile."""

_prefix_of: Final = struct.Struct("=Q").unpack_from


class _SortedRun(NamedTuple):
    """The location of each answer: the number of its segment file, and its row there.

    Sorted by ``prefixes``: the first eight bytes of the digest of the answer's key.
    """

    prefixes: pa.Array
    segments: pa.Array
    rows: pa.Array

    def view(self) -> memoryview:
        """Return the first eight bytes of each digest, as integers."""
        return memoryview(self.prefixes.buffers()[1]).cast("Q")[: len(self.rows)]

    def places(self, prefix: int) -> Iterator[tuple[int, int]]:
        """Yield the segment number and row of each answer whose digest begins with ``prefix``."""
        view = self.view()
        at = bisect_left(view, prefix)
        while at < len(view) and view[at] == prefix:
            yield self.segments[at].as_py(), self.rows[at].as_py()
            at += 1


def _merge_runs(runs: Sequence[_SortedRun]) -> _SortedRun:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [pa.concat_arrays(parts) for parts in zip(*runs, strict=True)]
    order = pc.sort_indices(columns[0])
    return _SortedRun(*(column.take(order) for column in columns))


class Answers:
    """The answers in a journal's folder, found by the digest of the key. Thread-safe.

    An index in memory has the segment file and the row of each answer. ``get`` reads an answer when
    it is first needed, and keeps up to ``READ_BYTES`` bytes of answers in memory.
    """

    def __init__(self, folder: Folder, form: AnswerForm) -> None:
        self.folder = folder
        self.levels = SegmentLevels(folder)
        self._form = form
        self.has_any = False
        """Whether the journal has any answer of this function."""
        self.logged: dict[bytes, Any] = {}
        """Answers in the log files of living processes, as ``find_answers`` has read the files. At
        that time these answers were in no segment file."""
        self._unwritten: dict[bytes, Any] = {}
        """Answers that ``add`` has stored, and that ``forget`` has not removed yet."""
        self._index: tuple[list[str], tuple[_SortedRun, ...]] = [], ()
        """Names of the segment files ("" for a removed file), and the location of each answer."""
        self._filter = bytearray(FILTER_BYTES)
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, Any] = OrderedDict()
        self._batches: OrderedDict[tuple[str, int], pa.RecordBatch] = OrderedDict()
        self._bytes = 0

    def refresh(self) -> None:
        """Index the segment files that were written since the last ``refresh``."""
        for _ in range(REFRESH_TRIES):
            found = self.folder.names()
            with self._lock:
                is_complete = self._add(found)
                for digest in itertools.chain(self.logged, self._unwritten):
                    self._filter[_prefix_of(digest)[0] & (len(self._filter) - 1)] = 1
            if is_complete:
                return

    def close(self) -> None:
        """Close all segment files. ``get`` opens them again when it needs them."""
        with self._lock:
            self._readers.clear()

    def add(self, digest: bytes, answer: Any) -> None:
        """Keep an answer that this process has just logged, so that ``get`` finds it."""
        with self._lock:
            self._unwritten[digest] = answer
            self._filter[_prefix_of(digest)[0] & (len(self._filter) - 1)] = 1
            self.has_any = True

    def forget(self, digests: Iterable[bytes]) -> None:
        """Drop answers that ``add`` has kept, because ``get`` finds them in segment files now."""
        with self._lock:
            for digest in digests:
                self._unwritten.pop(digest, None)

    def _add(self, found: AbstractSet[str]) -> bool:
        """Index new segment files. ``False``: a file has vanished, so list the files again."""
        import pyarrow as pa

        is_complete = True
        # Most indexed segment files are gone, because they were merged: build the index anew.
        if 2 * len(found & self._seen) < len(self._seen):
            self._index, self._seen = ([], ()), set()
            self._filter = bytearray(FILTER_BYTES)
            # Drop all batches, and the readers of removed files: a removed file keeps its space on
            # the disk while it is mapped.
            self._batches.clear()
            self._bytes = 0
            for name in self._readers.keys() - found:
                del self._readers[name]
        for name in sorted(found - self._seen):
            run = None
            try:
                with self.folder.reading(name):
                    reader = self._reader(name)
                    run = None if reader is None else self._run(reader)
            except FileNotFoundError:
                self._readers.pop(name, None)
                is_complete = False
                continue
            except pa.ArrowInvalid as damaged:
                self.folder.warn_of_damage(name, damaged)
            self._seen.add(name)
            if run is None:
                continue
            names, before = self._index
            names.append(name)
            runs = [*before, run]
            while len(runs) > 1 and len(runs[-2].rows) <= 2 * len(runs[-1].rows):
                runs[-2:] = [_merge_runs(runs[-2:])]
            self._index = names, tuple(runs)
            self._extend_filter(run)
        self.has_any = bool(self._index[1] or self.logged or self._unwritten)
        return is_complete

    def _run(self, reader: Any) -> _SortedRun:
        import pyarrow as pa

        if (kind := reader.schema.field("answer").type) != self._form.type:
            raise pa.ArrowInvalid(f"its answers are {kind}, and not {self._form.type}")
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        if any(batch.num_rows != BATCH_ROWS for batch in batches[:-1]):
            raise pa.ArrowInvalid(f"its batches are not of {BATCH_ROWS} rows")
        keys = pa.concat_arrays([batch.column("key") for batch in batches])
        rows = len(keys)
        words = pa.Array.from_buffers(
            pa.uint64(), 2 * rows, [None, keys.buffers()[1]], offset=2 * keys.offset
        )
        prefixes = words.take(pa.array(range(0, 2 * rows, 2), pa.int64()))
        segments = pa.repeat(pa.scalar(len(self._index[0]), pa.int32()), rows)
        return _merge_runs([_SortedRun(prefixes, segments, pa.array(range(rows), pa.int32()))])

    def _extend_filter(self, run: _SortedRun) -> None:
        runs, size = self._index[1], len(self._filter)
        while size < FILTER_BYTES * sum(len(run.rows) for run in runs):
            size *= 2
        marks, new, mask = self._filter, [run], size - 1
        if size > len(marks):
            marks, new = bytearray(size), list(runs)
        for one in new:
            for prefix in one.view():
                marks[prefix & mask] = 1
        self._filter = marks

    def may_have(self, digest: bytes) -> bool:
        """A filter, five times faster than ``get``: ``False`` means that the key has no answer."""
        marks = self._filter
        return bool(marks[_prefix_of(digest)[0] & (len(marks) - 1)])

    def _reader(self, name: str) -> Any:
        reader = self._readers.pop(name, None)
        if reader is None:
            reader = self.folder.open(name, checked=name in self._seen)
        if reader is not None:
            self._readers[name] = reader
        if len(self._readers) > OPEN_SEGMENTS:
            self._readers.popitem(last=False)
        return reader

    def places(self, digest: bytes) -> list[tuple[str, int]]:
        """Return segment file and row of each answer whose digest begins with ``digest[:8]``."""
        (prefix,) = _prefix_of(digest)
        names, runs = self._index
        return [(names[at], row) for run in runs for at, row in run.places(prefix) if names[at]]

    def get(self, digest: bytes) -> Any:
        """Return the answer for the key with this ``digest``, or ``MISSING``."""
        for answers in self._unwritten, self.logged:
            if (found := answers.get(digest, MISSING)) is not MISSING:
                return found
        gone = True
        while gone:
            gone = False
            for name, row in self.places(digest):
                try:
                    batch = self._batch(name, row // BATCH_ROWS)
                except FileNotFoundError:
                    # The segment file was merged or removed after it was indexed: refresh, then try
                    # again.
                    gone = True
                    self._drop(name)
                    continue
                row %= BATCH_ROWS
                if batch is not None and batch.column("key")[row].as_py() == digest:
                    return self._form.value(batch.column("answer")[row])
            if not gone:
                break
            self.refresh()
        return MISSING

    @property
    def segments(self) -> int:
        """The number of segment files at the last ``refresh``."""
        return len(self._seen)

    def _drop(self, name: str) -> None:
        with self._lock:
            names, _ = self._index
            if name in names:
                names[names.index(name)] = ""

    def _batch(self, name: str, index: int) -> Any:
        with self._lock:
            batch = self._batches.pop((name, index), None)
            if batch is None:
                batch = self._read(name, index)
                if batch is None:
                    return None
                self._bytes += _bytes_of(batch)
            self._batches[name, index] = batch
            while self._bytes > READ_BYTES and len(self._batches) > 1:
                self._bytes -= _bytes_of(self._batches.popitem(last=False)[1])
            return batch

    def _read(self, name: str, index: int) -> Any:
        import pyarrow as pa

        try:
            with self.folder.reading(name):
                reader = self._reader(name)
                return None if reader is None else reader.get_batch(index)
        except pa.ArrowInvalid as damaged:
            self.folder.warn_of_damage(name, damaged)
            return None
        except FileNotFoundError:
            self._readers.pop(name, None)
            raise


def _bytes_of(batch: pa.RecordBatch) -> int:
    return max(int(batch.nbytes), mmap.PAGESIZE)  # a mapped batch takes at least one page of memory


_answers: Final[LatestUsed[Answers]] = LatestUsed()


def answers_of(uri: str, folder_name: str, form: AnswerForm) -> Answers:
    """Return the answers in a folder of a journal, as an object that the whole process shares."""
    key = f"{uri} {folder_name}"
    # ``Folder`` may wait for the network. So make it before ``get``, which takes a lock.
    answers = _answers.find(key) or Answers(Folder(uri, folder_name), form)
    return _answers.get(key, lambda: answers)
