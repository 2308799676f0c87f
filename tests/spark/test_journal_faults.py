"""A journal whose disk, clock, neighbours or files are not as they should be loses no answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from rstreams_fast.spark.segments import BATCH_ROWS
from tests.spark.conftest import temporary_in
from tests.spark.journals import stage_of, values

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

ROOT = Path(__file__).parents[2]
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


# -- a directory that cannot be written ------------------------------------------------------------
@needs_read_only
def test_nobody_pays_before_it_is_known_that_answers_can_be_written(uri: str) -> None:
    answers(Service(), uri, range(3))
    (folder,) = folders(uri)
    folder.rename(f"{uri}-aside")
    folder.symlink_to(READ_ONLY)
    service = Service()
    with pytest.raises(OSError) as refused:
        answers(service, uri, range(3))
    assert f"{folder} cannot be written" in str(refused.value.__notes__)
    assert service.calls == []


@needs_read_only
def test_what_was_answered_after_a_segment_failed_is_in_the_log(uri: str) -> None:
    """Of thousands of answers those are called for again that were in flight."""

    def break_it() -> None:
        (folder,) = folders(uri)
        folder.rename(f"{uri}-aside")
        folder.symlink_to(READ_ONLY)

    service = Service(at=(1500, break_it))
    with pytest.raises((OSError, RuntimeError), match=r"arrow\.tmp"):
        answers(service, uri, range(100_000))
    (folder,) = folders(uri)
    folder.unlink()
    Path(f"{uri}-aside").rename(folder)
    paid = len(service.calls)
    assert 1500 <= paid < 100_000
    service.at = None
    assert answers(service, uri, range(paid)) == [2 * k for k in range(paid)]
    assert len(service.calls) <= paid + 64


# -- clocks ----------------------------------------------------------------------------------------
AHEAD = """
import sys, time
from rstreams_fast.spark.segments import bound

real = time.time_ns
time.time_ns = lambda: real() + 7200 * 10**9  # what others write looks old
print(flush=True)
while True:
    bound(sys.argv[1], None)
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
        stage = rs.lookup(fn, pa.string(), journal=rs.Journal(uri, version="1"))
        return len(values(stage, keys))

    with subprocess.Popen(
        [sys.executable, "-c", AHEAD, uri], cwd=ROOT, stdout=subprocess.PIPE
    ) as ahead:
        try:
            assert ahead.stdout is not None
            ahead.stdout.readline()
            assert run(range(rows)) == rows
        finally:
            ahead.kill()
    assert run(range(rows)) == rows
    assert len(calls) == rows


@pytest.mark.parametrize("second", [Service, OtherService])
def test_a_clock_that_is_put_back_does_not_make_the_newest_answers_the_oldest(
    second: type[Service], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = {"max_bytes": 150_000}
    first, now = Service(), time.time_ns
    answers(first, uri, range(3000), **most)
    monkeypatch.setattr(time, "time_ns", lambda: now() - 86_400 * 10**9)
    service = second()
    for _ in range(2):
        answers(service, uri, range(3000, 6000), **most)
    assert len(service.calls) == 3000  # the second time all were there
    answers(first, uri, range(3000), **most)
    assert len(first.calls) >= 6000  # these had made room


# -- files that are none of ours -------------------------------------------------------------------
def key(of: int) -> bytes:
    return of.to_bytes(16, "little")


def times(count: int) -> pa.Array:
    return pa.array([0] * count, pa.timestamp("ms", "UTC"))


KEYS = pa.array([key(of) for of in range(3)], pa.binary(16))
NUMBERS = pa.array(range(3), pa.int64())
FOREIGN: dict[str, tuple[pa.Table, int]] = {
    "columns": (pa.table({"a": [1, 2], "b": ["x", "y"]}), BATCH_ROWS),
    "order": (pa.table({"answer": NUMBERS, "key": KEYS, "time": times(3)}), BATCH_ROWS),
    "keys": (pa.table({"key": ["a"], "answer": [1], "time": times(1)}), BATCH_ROWS),
    "answers": (pa.table({"key": KEYS, "answer": ["x"] * 3, "time": times(3)}), BATCH_ROWS),
    "batches": (pa.table({"key": KEYS, "answer": NUMBERS, "time": times(3)}), 2),
    "empty": (pa.table({"key": KEYS, "answer": NUMBERS, "time": times(3)}).slice(3), BATCH_ROWS),
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
