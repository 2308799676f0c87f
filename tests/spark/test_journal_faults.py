"""A journal whose disk, clock, neighbours or files are not as they should be loses no answer."""

from __future__ import annotations

import asyncio
import ctypes
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.spark.conftest import temporary_in
from tests.spark.journals import files, stage_of, values
from tests.spark.processes import OtherProcess

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

BATCH_ROWS = 1024
"""Rows of a batch in a segment."""
READ_ONLY = Path("/proc/self/fdinfo")
"""A directory in which nobody can make a file, not even root."""

needs_read_only = pytest.mark.skipif(
    not READ_ONLY.is_dir(), reason="needs a directory that root cannot write, as Linux has in /proc"
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Iterator[None]:
    """Have the logs in a folder of the test's."""
    with temporary_in(tmp_path):
        yield


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


class Service:
    """Counts its calls; ``at`` does something when so many were made."""

    def __init__(self, at: tuple[int, Callable[[], object]] | None = None) -> None:
        self.calls: list[int] = []
        self.at = at

    async def __call__(self, k: int) -> int:
        self.calls.append(k)
        if self.at is not None and len(self.calls) == self.at[0]:
            self.at[1]()
        await asyncio.sleep(0)
        return 2 * k


class OtherService(Service):
    """Another function."""


def answers(fn: Service, uri: str, keys: range, **words: Any) -> list[int]:
    return values(stage_of(fn, uri, **words), keys)


def folders(uri: str) -> list[Path]:
    return sorted(Path(uri).iterdir())


def break_folder(uri: str) -> None:
    """Exchange the journal's folder for one that cannot be written, and move it aside.

    The exchange is one system call: a writer would make the folder anew in between.
    """
    (folder,) = folders(uri)
    aside = Path(f"{uri}-aside")
    aside.symlink_to(READ_ONLY)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    paths = bytes(aside), bytes(folder)
    assert ctypes.CDLL(None).renameat2(here, paths[0], here, paths[1], exchange) == 0


# -- a directory that cannot be written ------------------------------------------------------------
@needs_read_only
def test_nobody_pays_before_it_is_known_that_answers_can_be_written(uri: str) -> None:
    answers(Service(), uri, range(3))
    break_folder(uri)
    (folder,) = folders(uri)
    service = Service()
    with pytest.raises(OSError) as refused:
        answers(service, uri, range(3))
    assert f"{folder} cannot be written" in str(refused.value.__notes__)
    assert service.calls == []


@needs_read_only
def test_what_was_answered_after_a_segment_failed_is_in_the_log(uri: str) -> None:
    """Of thousands of answers few more are called for again than were in flight."""
    service = Service(at=(1500, lambda: break_folder(uri)))
    with pytest.raises((OSError, RuntimeError), match=r"arrow\.tmp"):
        answers(service, uri, range(100_000))
    (folder,) = folders(uri)
    folder.unlink()
    Path(f"{uri}-aside").rename(folder)
    paid = len(service.calls)
    assert 1500 <= paid < 100_000
    service.at = None
    assert answers(service, uri, range(paid)) == [2 * k for k in range(paid)]
    # Those in flight, and a sixteenth of them, whose answers wait for the same record.
    assert len(service.calls) <= paid + 64 + 64 // 16


# -- clocks ----------------------------------------------------------------------------------------
AHEAD = """
import sys, time
import rstreams_fast as rsf

real = time.time_ns
time.time_ns = lambda: real() + 7200 * 10**9  # what others write looks old
print(flush=True)
while True:
    rsf.Journal(sys.argv[1], version="1").compact()
"""


@pytest.mark.parametrize("rows", [3_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_process_whose_clock_is_ahead_takes_no_segment_that_is_being_written(
    rows: int, uri: str
) -> None:
    calls: list[int] = []

    async def fn(k: int) -> str:
        calls.append(k)
        return str(k) * 1000

    def run(keys: range) -> int:
        stage = rs.lookup(rs.Policy(journal=rs.Journal(uri, version="1"))(fn), pa.string())
        return len(values(stage, keys))

    with OtherProcess(AHEAD, uri) as ahead:
        ahead.line()
        assert run(range(rows)) == rows
    assert run(range(rows)) == rows
    assert len(calls) == rows


@pytest.mark.parametrize("second", [Service, OtherService])
def test_a_clock_that_is_put_back_does_not_make_the_newest_answers_the_oldest(
    second: type[Service], uri: str
) -> None:
    most = {"max_bytes": 150_000}
    first, service = Service(), second()
    answers(first, uri, range(3000), **most)
    for file in files(uri):  # by the clock of then, a day ahead
        number, rest = file.name.split("-", 1)
        file.rename(file.with_name(f"{int(number) + 86_400 * 10**9:020d}-{rest}"))
    for _ in range(2):
        answers(service, uri, range(3000, 6000), **most)
    assert len(service.calls) == 3000  # the second time all were there
    answers(first, uri, range(3000), **most)
    assert len(first.calls) >= 6000  # these had made room


# -- files that are none of ours -------------------------------------------------------------------


KEYS = pa.array([of.to_bytes(16, "little") for of in range(3)], pa.binary(16))
TIMES = pa.array([0] * 3, pa.timestamp("ms", "UTC"))
SEGMENT = pa.table({"key": KEYS, "answer": pa.array(range(3), pa.int64()), "time": TIMES})
FOREIGN: dict[str, tuple[pa.Table, int]] = {
    "columns": (SEGMENT.rename_columns(["a", "b", "c"]), BATCH_ROWS),
    "order": (SEGMENT.select(["answer", "key", "time"]), BATCH_ROWS),
    "keys": (SEGMENT.set_column(0, "key", pa.array(["a"] * 3)), BATCH_ROWS),
    "answers": (SEGMENT.set_column(1, "answer", pa.array(["x"] * 3)), BATCH_ROWS),
    "batches": (SEGMENT, 2),
    "empty": (SEGMENT.slice(3), BATCH_ROWS),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_segment_of_something_else_is_named_and_left_alone(
    what: str, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service()
    answers(service, uri, range(5))
    (folder,) = folders(uri)
    table, rows = FOREIGN[what]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    content = sink.getvalue().to_pybytes()
    foreign = folder / f"{1:020d}-{zlib.crc32(content):08x}-0123456789ab.arrow"
    foreign.write_bytes(content)
    for _ in range(2):
        assert answers(service, uri, range(10)) == [2 * k for k in range(10)]
    assert len(service.calls) == 10
    (record,) = caplog.records
    assert foreign.name in record.getMessage()
    rs.Journal(uri, version="1").compact()
    assert answers(service, uri, range(10)) == [2 * k for k in range(10)]
    assert len(service.calls) == 10
