"""Inside of a journal: its log, which outlives the process, and what is read of its segments."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rstreams_fast.calls.journal import answers as journal_answers
from rstreams_fast.calls.journal import write_ahead
from rstreams_fast.calls.journal.levels import SEGMENTS_PER_MERGE, SegmentLevels
from rstreams_fast.calls.journal.segments import Folder, table_of
from rstreams_fast.calls.journal.write_ahead import Log, records_of
from rstreams_fast.calls.journal.writer import JournalWriter
from rstreams_fast.calls.keys import KEY_BYTES, KeyDigest
from rstreams_fast.core import MISSING
from rstreams_fast.spark.worker.answer_forms import ColumnForm
from rstreams_fast.spark.worker.values.conversions import Columns
from tests.fresh import small_segments
from tests.helpers import run_threads
from tests.spark.conftest import temporary_in
from tests.spark.journals import Doubling, files, stage_of, values, wait_for_merges
from tests.spark.processes import OtherProcess
from tests.spark.test_journal import NOW, TYPES

__all__ = ["small_segments"]

RECORDS = [b"one", b"\0" * 100, b"three" * 1000]


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[Path]:
    with temporary_in(tmp_path):
        yield tmp_path


def found(name: str = "n") -> list[tuple[list[bytes], bool]]:
    return list(records_of(name))


def abandoned(*records: bytes) -> Path:
    """Return the file of a process that is dead."""
    log = Log("n")
    for record in records:
        log.append(record)
    log.close(remove=False)
    (path,) = write_ahead.folder().iterdir()
    return path


def test_records_of_the_living_are_read_and_those_of_the_dead_once(place: Path) -> None:
    log = Log("n")
    for record in RECORDS:
        log.append(record)
    for _ in range(2):
        assert found() == [(RECORDS, False)]
    assert found("another") == []
    log.clear()
    assert found() == [([], False)]
    log.append(b"x" * len(RECORDS[0]))  # the second of those that were cleared follows it
    assert found() == [([b"x" * len(RECORDS[0])], False)]
    log.clear()
    log.append(b"x")
    assert found() == [([b"x"], False)]
    log.close(remove=False)
    assert found() == [([b"x"], True)]
    assert found() == []
    assert not any(place.iterdir())


def test_a_log_grows_with_what_is_written_and_leaves_nothing_at_a_good_end(place: Path) -> None:
    logs = [Log("n") for _ in range(3)]
    records = [bytes([index]) * 50_000 for index in range(20)] + [b"y" * 3_000_000]
    for record in records:
        logs[0].append(record)
    assert (records, False) in found()
    for log in logs:
        log.close(remove=True)
    assert not any(place.iterdir())


@pytest.mark.parametrize("kept", range(3))
@pytest.mark.parametrize("by", ["cut", "flip", "length"])
def test_a_torn_tail_is_left_out(kept: int, by: str) -> None:
    path = abandoned(*RECORDS)
    content = bytearray(path.read_bytes())
    at = sum(8 + len(record) for record in RECORDS[:kept])
    if by == "cut":
        del content[at + 8 + len(RECORDS[kept]) - 1 :]
    elif by == "flip":
        content[at + 8] ^= 1
    else:
        content[at + 2] ^= 0xFF
    path.write_bytes(content)
    assert found() == [(RECORDS[:kept], True)]
    assert not path.parent.exists()


def test_an_empty_file_of_a_dead_process_is_removed_and_one_that_is_not_read_is_not() -> None:
    path = abandoned()
    path.write_bytes(b"")
    assert found() == []
    assert not path.exists()
    abandoned(b"x")
    reader = records_of("n")
    assert next(reader) == ([b"x"], True)
    reader.close()  # one that fails leaves the file
    assert found() == [([b"x"], True)]


def test_what_nobody_asks_for_is_removed_in_time() -> None:
    path = abandoned(b"x")
    assert found("another") == []
    assert path.exists()
    os.utime(path, (1, 1))
    assert found("another") == []
    assert not path.exists()
    log = Log("n")
    (path,) = write_ahead.folder().iterdir()
    os.utime(path, (1, 1))
    assert found("another") == []
    assert path.exists()  # its process lives
    log.close(remove=True)


def test_a_folder_that_others_may_use_is_refused(place: Path) -> None:
    folder = write_ahead.folder()
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="others may use it"):
        Log("n")
    folder.rmdir()
    folder.symlink_to(place)
    with pytest.raises(PermissionError, match="a link"):
        Log("n")


def test_without_a_temporary_directory_there_is_an_error(place: Path) -> None:
    place.rmdir()
    assert found() == []
    with pytest.raises(FileNotFoundError, match="rstreams-journal"):
        Log("n")


def test_those_who_begin_and_those_who_look_do_not_mind_each_other() -> None:
    def writing() -> None:
        for _ in range(100):
            log = Log("n")
            log.append(b"x")
            assert ([b"x"], False) in found()
            log.close(remove=True)

    run_threads([writing, writing, writing])
    assert found() == []


WRITING = """
import sys
from rstreams_fast.calls.journal.write_ahead import Log

log = Log("n")
for index in range(10**9):
    log.append(b"%d" % index)
    if index == 2000:
        print(flush=True)
    if index % 4000 == 3999:
        log.clear()
        log.append(b"%d" % index)
"""


def test_what_a_killed_process_wrote_is_whole(place: Path) -> None:
    for _ in range(3):
        with OtherProcess(WRITING, TMPDIR=str(place)) as process:
            process.line()
            ((_, dead),) = found()
            assert not dead
        ((records, dead),) = found()
        assert dead
        numbers = list(map(int, records))
        assert 1 <= len(numbers) <= 4001
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert not any(place.iterdir())


# -- of segments -----------------------------------------------------------------------------------
@pytest.fixture
def uri(place: Path) -> str:
    return str(place / "journal")


ANSWERS: list[tuple[pa.DataType, Any]] = [
    *TYPES,
    (pa.float64(), np.float64(0.5)),
    (pa.timestamp("us", "UTC"), pd.Timestamp(NOW)),
    (pa.list_(pa.int64()), np.arange(3)),
    (pa.int64(), None),
]


def writer_of(uri: str, kind: Any) -> JournalWriter:
    folder = Folder(uri, "place")
    return JournalWriter(folder, SegmentLevels(folder), "n", ColumnForm(Columns(["v"], [kind])))


@pytest.mark.parametrize(("kind", "value"), ANSWERS, ids=lambda it: str(it)[:20])
def test_answers_that_a_dead_process_had_in_no_segment_are_found(
    kind: Any, value: Any, uri: str
) -> None:
    def journal() -> JournalWriter:
        return writer_of(uri, kind)

    dead = journal()
    dead.start(start=lambda run, name: None)  # its thread never runs
    dead.put(KeyDigest("f", "1"), [(1,)], [value])
    for _ in range(2):
        assert list(journal().read_logs()) == [ONE]
    for log in dead._logs:
        log.close(remove=False)
    assert journal().read_logs() == {}
    (segment,) = files(uri)
    with pa.memory_map(str(segment)) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table["key"].to_pylist() == [ONE]
    assert table["answer"].to_pylist() == pa.array([value], kind).to_pylist()


def test_what_is_removed_meanwhile_is_called_again_and_looked_for_once(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = Doubling()
    stage = stage_of(fetch, uri)
    values(stage, range(3000))
    (answers,) = journal_answers._answers._kept.values()
    answers.refresh()
    for segment in files(uri):
        segment.unlink()
    listed = Counter[str]()
    names = Folder.names

    def counted(self: Any) -> Any:
        listed["times"] += 1
        return names(self)

    monkeypatch.setattr(Folder, "names", counted)
    digest_of = KeyDigest("Doubling", "1")
    answers._readers.clear()
    assert all(answers.get(digest_of((k,))) is MISSING for k in range(3000))
    assert listed["times"] == 1


ONE = KeyDigest("f", "1")((1,))


class Numbers(KeyDigest):
    """Digests that show their numbers."""

    def many(self, keys: Any) -> list[bytes]:
        return [_key(*key) for key in keys]


def _key(of: int) -> bytes:
    return of.to_bytes(16, "little")


def test_a_record_of_a_log_that_nobody_can_read_is_told_and_takes_no_other_with_it(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    def journal() -> JournalWriter:
        return writer_of(uri, pa.int64())

    dead = journal()
    dead.start(start=lambda run, name: None)  # its thread never runs
    numbers = Numbers("f", "1")
    dead.put(numbers, [(1,), (2,)], [7, 8])
    dead.put(numbers, [(5,), (6,)], [np.int64(9), 10])  # the first is no plain data
    log = Log("n")
    log.append(b"p\x80\x05no pickle")
    log.append(b"c" + _key(4) + b"no stream")
    assert journal().read_logs() == {_key(1): 7, _key(2): 8, _key(5): 9, _key(6): 10}
    for one in (log, *dead._logs):
        one.close(remove=True)
    told = {record.getMessage() for record in caplog.records}
    assert len(told) == 1
    assert "cannot be read" in told.pop()


class Failing(Folder):
    """A folder in which some attempts to write a segment fail; ``check`` is called after these."""

    def __init__(self, uri: str, failing: set[int], check: Callable[[], object]) -> None:
        super().__init__(uri, "place")
        self.attempts = 0
        self._failing = failing
        self._check = check

    def write(self, table: pa.Table, since: str | None = None) -> str:
        """Fail or write, by the number of the attempt."""
        self.attempts += 1
        if self.attempts in self._failing:
            self._check()
            raise OSError("no write")
        return super().write(table, since)


def test_a_segment_that_is_gone_keeps_no_other_from_being_merged(uri: str) -> None:
    """As where other processes merge, or ``max_bytes`` removes the oldest."""
    folder = Folder(uri, "place")
    levels = SegmentLevels(folder)

    def add(count: int, removed: int) -> None:
        for number in range(count):
            table = table_of([os.urandom(KEY_BYTES)], pa.array([number]))
            name = folder.write(table)
            if number < removed:
                folder.remove(name)
            levels.add(name, table.nbytes)

    add(SEGMENTS_PER_MERGE, removed=1)
    assert len(files(uri)) == 1
    add(3, removed=1)
    assert len(files(uri)) == 3
    merged = levels.merge_all()
    assert merged is not None
    assert [file.name for file in files(uri)] == [merged[0]]
    add(2, removed=1)
    last = levels.merge_all()
    assert last is not None
    assert {file.name for file in files(uri)} == {merged[0], last[0]}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_segments_that_were_merged_keep_no_space_on_the_disk(uri: str) -> None:
    folder, keys = Folder(uri, "place"), [os.urandom(KEY_BYTES) for _ in range(3)]
    names = [folder.write(table_of([key], pa.array([n]))) for n, key in enumerate(keys)]
    answers = journal_answers.Answers(folder, ColumnForm(Columns(["v"], [pa.int64()])))
    answers.refresh()
    assert [answers.get(key) for key in keys] == [0, 1, 2]
    assert folder.merge(names) is not None
    answers.refresh()
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert [line for line in maps if uri in line and line.endswith("(deleted)")] == []
    assert [answers.get(key) for key in keys] == [0, 1, 2]


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("failing", [{1}, {2}, {1, 2, 4}, {3, 4, 6}])
def test_what_a_failed_write_leaves_is_in_the_logs_and_written_later(
    failing: set[int], uri: str
) -> None:
    count, written, numbers = 40, list[bytes](), Numbers("f", "1")  # three segments of answers

    def check() -> None:
        """Every answer that was put is in a log or in a segment."""
        kept = set(writer_of(uri, pa.int64()).read_logs())
        for segment in files(uri):
            with pa.memory_map(str(segment)) as file:
                kept.update(pa.ipc.open_file(file).read_all()["key"].to_pylist())
        assert kept.issuperset(map(_key, range(put)))

    folder = Failing(uri, failing, check)
    form = ColumnForm(Columns(["v"], [pa.int64()]))
    writer = JournalWriter(folder, SegmentLevels(folder), "n", form, written.extend)
    writer.start(idle=0.01)
    put = 0
    for _ in range(3):
        put += count
        keys = range(put - count, put)
        writer.put(numbers, [(key,) for key in keys], [*keys])
        wait_for_merges()
        assert sorted(written) == sorted(map(_key, range(put)))
        assert not writer.is_behind
        check()
    writer.close()
    check()
    assert found() == []


def test_a_log_stays_when_no_thread_could_write_its_answers(uri: str) -> None:
    def fail(run: object, name: str) -> None:
        raise RuntimeError("can't start new thread")

    writer = writer_of(uri, pa.int64())
    writer.start(idle=0.01, start=fail)
    with pytest.raises(RuntimeError, match="thread"):
        writer.put(Numbers("f", "1"), [(1,)], [7])
    writer.close()
    ((records, dead),) = found()
    assert len(records) == 1
    assert dead


def test_threads_that_share_a_writer_log_all_answers(uri: str) -> None:
    writer = writer_of(uri, pa.int64())
    writer.start(start=lambda run, name: None)  # its thread never runs
    # The pickler calls Python for each date: there another thread may go on.
    answers = [[NOW + dt.timedelta(days=key)] * 20 for key in range(400)]

    def put(keys: range) -> None:
        for key in keys:
            writer.put(Numbers("f", "1"), [(key,)], [answers[key]])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run_threads([partial(put, range(part, 400, 4)) for part in range(4)])
    finally:
        sys.setswitchinterval(before)
    assert writer_of(uri, pa.int64()).read_logs() == {
        _key(k): each for k, each in enumerate(answers)
    }
    for log in writer._logs:
        log.close(remove=True)
