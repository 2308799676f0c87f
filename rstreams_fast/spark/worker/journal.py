"""Answers that were written by earlier tasks, and those that this partition writes."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import struct
import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rstreams_fast.core import MISSING
from rstreams_fast.spark.journals import KeyDigest, current_call
from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.segments import BATCH_ROWS, LARGE_BYTES, Folder, bound, table_of
from rstreams_fast.spark.worker.attempts import noted
from rstreams_fast.spark.worker.conversions import Columns
from rstreams_fast.spark.worker.counters import Counters
from rstreams_fast.spark.worker.outcomes import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

    from rstreams_fast.spark.journals import Journal

__all__ = ["LINGER_SECONDS", "MOST_UNWRITTEN", "SEGMENT_ROWS", "PartitionJournal"]

LINGER_SECONDS: Final = 0.05
"""How long an answer waits for others to be written with, on a local file system."""

REMOTE_LINGER_SECONDS: Final = 1.0
"""The same where a file costs a request that is paid for."""

SEGMENT_ROWS: Final = 1024
"""Answers that are written together, at most."""

SEGMENT_BYTES: Final = 4 << 20
"""The same in bytes, as far as the answers before tell."""

MOST_UNWRITTEN: Final = 4 * SEGMENT_ROWS
"""With so many answers unwritten, calls wait for the file system."""

MERGED: Final = 16
"""So many segments of one size become one."""

READ_BYTES: Final = 32 << 20
"""What a process keeps of the answers that were read."""

OPEN_SEGMENTS: Final = 64
"""Segments that a process keeps open."""

MANY_SEGMENTS: Final = 512
"""So many are merged by a task that has ended."""

COMPACTING: Final = 1 / 8
"""The share of the tasks that do it."""

FILTER_BYTES: Final = 8
"""Bytes of the filter for each answer, at least: of eight keys without one, seven are told so."""

TRIES: Final = 20
"""How often it looks again when segments were replaced while it looked."""

WAIT_SECONDS: Final = 0.01
"""How often a call that waits for the file system looks."""


class PartitionJournal:
    """The journal of a stage in one partition."""

    def __init__(
        self,
        options: CallOptions,
        journal: Journal,
        names: Sequence[str],
        kinds: Sequence[pa.DataType],
        counters: Counters,
    ) -> None:
        self._journal = journal
        self._digest_of = KeyDigest(options.label, journal.version)
        declared = str(kinds[0]) if len(kinds) == 1 else str(list(zip(names, kinds, strict=True)))
        text = ascii((options.label, journal.version, declared))
        place = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self._answers = _answers_of(journal.uri, place)
        self._told = options.on_failure == "column"
        self._lists = options.batch is not None
        self._counters = counters
        self._writer = _Writer(self._answers.folder, self._digest_of, Columns(names, kinds))

    def open(self, start: Callable[[Callable[[], object], str], None]) -> None:
        """Find what was written so far, and ``start`` a thread that writes."""
        self._answers.refresh()
        self._writer.start(start)

    def close(self, tidy: bool) -> None:
        """Wait until all is written; ``tidy``: there is time to see that it is not too much."""
        self._writer.close()
        if not tidy or not self._writer.wrote:
            return
        # Of many tasks that see as many segments a few merge them; they do not mind each other.
        if self._answers.segments >= MANY_SEGMENTS and random.random() < COMPACTING:  # noqa: S311
            self._answers.folder.compact()
        if self._journal.max_bytes is not None:
            bound(self._journal.uri, self._journal.max_bytes)

    def around(
        self, fn: Callable[..., Awaitable[Any]], loop: asyncio.AbstractEventLoop
    ) -> Callable[..., Awaitable[Any]]:
        """Return ``fn`` that is called for keys that were not answered yet."""
        digest_of, answers, writer = self._digest_of, self._answers, self._writer
        told, lists, counters = self._told, self._lists, self._counters
        set_call, put = current_call.set, writer.put

        async def call(*key: Any) -> Any:
            digest = digest_of(key) if answers.any else None  # else in the writer's time
            if digest is not None and answers.may_have(digest):
                if answers.folder.is_local:
                    found = answers.get(digest)
                else:
                    found = await loop.run_in_executor(None, answers.get, digest)
                if found is not MISSING:
                    counters.journal_hits += 1
                    return Outcome(found, None, 0, 0.0) if told else found
            set_call((digest_of, None if lists else key))
            result = await fn(*key)
            behind = False
            if not told:
                behind = put(key, digest, result)
            elif result.error is None:
                behind = put(key, digest, result.value)
            while behind:
                await asyncio.sleep(WAIT_SECONDS)
                behind = writer.behind
            return result

        return call


# -- what was answered before ----------------------------------------------------------------------


_first_of: Final = struct.Struct("=Q").unpack_from


class _Run(NamedTuple):
    """Places of answers, in order of the first eight bytes of their keys: 16 bytes an answer."""

    firsts: pa.Array
    segments: pa.Array
    rows: pa.Array

    def view(self) -> memoryview:
        """Return the beginnings of the keys."""
        return memoryview(self.firsts.buffers()[1]).cast("Q")[: len(self.rows)]

    def places(self, first: int) -> Iterator[tuple[int, int]]:
        """Return the segments and rows of the keys that begin so."""
        view = self.view()
        at = bisect_left(view, first)
        while at < len(view) and view[at] == first:
            yield self.segments[at].as_py(), self.rows[at].as_py()
            at += 1


def _merged(runs: Sequence[_Run]) -> _Run:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [pa.concat_arrays(parts) for parts in zip(*runs, strict=True)]
    order = pc.sort_indices(columns[0])
    return _Run(*(column.take(order) for column in columns))


class _Answers:
    """The answers of a folder, found by key. Any thread may use them.

    The places of all of them are in memory; the answers are read when they are asked for, and so
    many of them are kept.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.any = False
        """Whether there are answers."""
        self._index: tuple[list[str], tuple[_Run, ...]] = [], ()
        """The names of segments, empty where one is gone, and the places in them."""
        self._filter = bytearray(FILTER_BYTES)
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, Any] = OrderedDict()
        self._batches: OrderedDict[tuple[str, int], pa.RecordBatch] = OrderedDict()
        self._bytes = 0

    def refresh(self) -> None:
        """Find the segments that were written since."""
        for _ in range(TRIES):
            found = self.folder.sizes()
            with self._lock:
                if self._add(found.keys()):
                    return

    def _add(self, found: AbstractSet[str]) -> bool:
        """Take in the segments that are new; ``False``: one was replaced meanwhile."""
        import pyarrow as pa

        whole = True
        if 2 * len(found & self._seen) < len(self._seen):  # most were merged: begin again
            self._index, self._seen = ([], ()), set()
            self._filter = bytearray(FILTER_BYTES)
        for name in sorted(found - self._seen):
            run = None
            try:
                reader = self._reader(name)
                run = None if reader is None else self._run(reader)
            except FileNotFoundError:
                whole = False
                continue
            except pa.ArrowInvalid as damaged:
                self.folder.refuse(name, damaged)
            self._seen.add(name)
            if run is None:
                continue
            names, before = self._index
            names.append(name)
            runs = [*before, run]
            while len(runs) > 1 and len(runs[-2].rows) <= 2 * len(runs[-1].rows):
                runs[-2:] = [_merged(runs[-2:])]
            self._index = names, tuple(runs)
            self._extend_filter(run)
        self.any = bool(self._index[1])
        return whole

    def _run(self, reader: Any) -> _Run:
        import pyarrow as pa

        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        keys = pa.concat_arrays([batch.column("key") for batch in batches])
        rows = len(keys)
        words = pa.Array.from_buffers(
            pa.uint64(), 2 * rows, [None, keys.buffers()[1]], offset=2 * keys.offset
        )
        firsts = words.take(pa.array(range(0, 2 * rows, 2), pa.int64()))
        segments = pa.repeat(pa.scalar(len(self._index[0]), pa.int32()), rows)
        return _merged([_Run(firsts, segments, pa.array(range(rows), pa.int32()))])

    def _extend_filter(self, run: _Run) -> None:
        runs, size = self._index[1], len(self._filter)
        while size < FILTER_BYTES * sum(len(run.rows) for run in runs):
            size *= 2
        marks, new, mask = self._filter, [run], size - 1
        if size > len(marks):
            marks, new = bytearray(size), list(runs)
        for one in new:
            for first in one.view():
                marks[first & mask] = 1
        self._filter = marks

    def may_have(self, digest: bytes) -> bool:
        """Say, of most keys that have no answer, that they have none; in a fifth of the time."""
        marks = self._filter
        return bool(marks[_first_of(digest)[0] & (len(marks) - 1)])

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
        """Return where answers may be: segments and rows whose keys begin as ``digest``."""
        (first,) = _first_of(digest)
        names, runs = self._index
        return [(names[at], row) for run in runs for at, row in run.places(first) if names[at]]

    def get(self, digest: bytes) -> Any:
        """Return the answer for a key, or ``MISSING``."""
        gone = True
        while gone:
            gone = False
            for name, row in self.places(digest):
                try:
                    batch = self._batch(name, row // BATCH_ROWS)
                except FileNotFoundError:  # merged with others, or removed
                    gone = True
                    self._drop(name)
                    continue
                row %= BATCH_ROWS
                if batch is not None and batch.column("key")[row].as_py() == digest:
                    return batch.column("answer")[row].as_py()
            if not gone:
                break
            self.refresh()
        return MISSING

    @property
    def segments(self) -> int:
        """How many there were when it last looked."""
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
                self._bytes += batch.nbytes
            self._batches[name, index] = batch
            while self._bytes > READ_BYTES and len(self._batches) > 1:
                self._bytes -= self._batches.popitem(last=False)[1].nbytes
            return batch

    def _read(self, name: str, index: int) -> Any:
        import pyarrow as pa

        try:
            return self._reader(name).get_batch(index)
        except pa.ArrowInvalid as damaged:
            self.folder.refuse(name, damaged)
            return None
        except FileNotFoundError:
            raise
        except OSError:  # an object store says so of one that is open and gone
            self._readers.pop(name, None)
            return self._reader(name).get_batch(index)


_known: Final[dict[tuple[str, str], _Answers]] = {}
_known_lock: Final = threading.Lock()


def _answers_of(uri: str, place: str) -> _Answers:
    with _known_lock:
        found = _known.get((uri, place))
        if found is None:
            found = _known[uri, place] = _Answers(Folder(uri, place))
        return found


# -- what is answered now --------------------------------------------------------------------------


_Answer = tuple[tuple[Any, ...], bytes | None, Any]
"""A key, its digest if that is known already, and the answer."""


class _Writer:
    """Writes answers as segments, on a thread of its own.

    Of 16 segments it makes one, again and again, and one of all that are left at its end: so they
    stay few, though each is written soon.
    """

    def __init__(self, folder: Folder, digest_of: KeyDigest, columns: Columns) -> None:
        self._folder = folder
        self._digest_of = digest_of
        self._columns = columns
        self._linger = LINGER_SECONDS if folder.is_local else REMOTE_LINGER_SECONDS
        self._waiting: deque[_Answer] = deque()
        self._most_rows = SEGMENT_ROWS
        self._some = threading.Event()
        self._enough = threading.Event()
        self._closed = False
        self._ended = threading.Event()
        self._ended.set()
        self._failure: BaseException | None = None
        self._levels: list[list[tuple[str, pa.Table]]] = []
        self.wrote = False
        """Whether there are segments by it."""

    def start(self, start: Callable[[Callable[[], object], str], None]) -> None:
        """Write from now on, on a thread that ``start`` starts."""
        self._ended.clear()
        try:
            start(self._run, "journal")
        except BaseException:
            self._ended.set()
            raise

    def put(self, key: tuple[Any, ...], digest: bytes | None, answer: Any) -> bool:
        """Let an answer be written; the loop's thread only. ``True``: it is ``behind``."""
        waiting = self._waiting
        waiting.append((key, digest, answer))
        count = len(waiting)
        if count == 1:
            self._some.set()
        if count < self._most_rows:
            return False
        self._enough.set()
        return self.behind

    @property
    def behind(self) -> bool:
        """Whether calls must wait for the file system; raises if that has failed."""
        if self._failure is not None:
            raise self._failure
        return len(self._waiting) >= MOST_UNWRITTEN * self._most_rows // SEGMENT_ROWS

    def close(self) -> None:
        """Wait until all is written."""
        self._closed = True
        self._enough.set()
        self._some.set()
        self._ended.wait()
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
                while self._waiting:
                    self._write()
            rest = [segment for level in reversed(self._levels) for segment in level]
            if len(rest) > 1:
                self._merge(rest)
        except Exception as raised:
            self._failure = noted(raised, f"raised by the journal in {self._folder.path}")
        finally:
            self._ended.set()

    def _write(self) -> None:
        """Write a segment; as soon as there are enough of its size, make one of them."""
        waiting = self._waiting
        taken = [waiting.popleft() for _ in range(min(len(waiting), self._most_rows))]
        table = self._table(taken)
        if table.num_rows:  # few are written together when they are large
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

    def _table(self, taken: list[_Answer]) -> pa.Table:
        import pyarrow as pa

        try:
            answers = self._array([answer for _, _, answer in taken])
        except Exception:
            # Of an answer that cannot become what is declared the task will say so, with its key.
            if len(taken) <= 1:
                return self._table([])
            return pa.concat_tables([self._table([one]) for one in taken]).combine_chunks()
        digest_of = self._digest_of
        digests = [digest_of(key) if digest is None else digest for key, digest, _ in taken]
        return table_of(digests, answers)

    def _array(self, answers: list[Any]) -> pa.Array:
        import pyarrow as pa

        columns = self._columns
        arrays = columns.arrays(answers, str)
        if len(arrays) == 1:
            return arrays[0]
        fields = [pa.field(*field) for field in zip(columns.names, columns.types, strict=True)]
        nulls = pa.array([answer is None for answer in answers], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=nulls)
