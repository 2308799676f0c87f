"""A host's permits, and its files, where somebody removes, closes or fills what they are in."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, run_python
from tests.spark.conftest import ROOT, temporary_in
from tests.spark.permits import Stage, is_not_granted, soon, stages
from tests.spark.processes import OtherProcess

NOT_GRANTED = 0.3
"""Seconds in which a permit that is free is granted many times over."""

OTHER = """
import asyncio, sys, time
import rstreams_fast.spark as rs
from tests.spark.permits import Stage

async def take(stage, count, seconds):
    taken = 0
    try:
        async with asyncio.timeout(seconds):
            while taken < count:
                await stage.begin()
                taken += 1
    except TimeoutError:
        pass
    print(taken, time.monotonic(), flush=True)

async def main():
    stages = []
    while words := (await asyncio.to_thread(sys.stdin.readline)).split():
        if words[0] == "end":
            while stages:
                await stages.pop().close()
            print("ended", flush=True)
            continue
        name, rate, count, seconds = words
        stages.append(Stage(rs.Limit(name, concurrency=3, rate=float(rate) or None)))
        await take(stages[-1], int(count), float(seconds))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The temporary directory of this process and the other one."""
    with temporary_in(tmp_path_factory.mktemp("host")) as place:
        yield place


class Other(OtherProcess):
    """Another process of the host, which takes permits as it is told."""

    def take(self, name: str, count: int, seconds: float, rate: float = 0) -> tuple[int, float]:
        """Return how many permits it has got in so many seconds, and when it had the last."""
        taken, at = self.tell(name, rate, count, seconds).split()
        return int(taken), float(at)


@pytest.fixture(scope="module")
def process(place: Path) -> Iterator[Other]:
    with Other(OTHER, TMPDIR=str(place)) as other:
        yield other


@pytest.fixture
def other(process: Other) -> Iterator[Other]:
    """The other process, whose permits come back after the test."""
    yield process
    process.tell("end")


def folder(place: Path) -> Path:
    return place / f"rstreams-limits-{os.getuid()}"


async def file_is_back(place: Path) -> None:
    async with asyncio.timeout(DEADLINE):
        while not (folder(place).is_dir() and any(folder(place).iterdir())):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_permits_of_a_file_that_is_removed_are_those_of_the_next(
    place: Path, other: Other, name: str
) -> None:
    async with stages(rs.Limit(name, concurrency=3)) as (stage,):
        first, _ = await stage.begin_all(2)
        shutil.rmtree(folder(place))
        await file_is_back(place)  # of the process that has permits, before anybody begins
        taken, _ = await asyncio.to_thread(other.take, name, 3, NOT_GRANTED)
        assert taken == 1
        first.end()
        await stage.close()
        taken, _ = await asyncio.to_thread(other.take, name, 2, DEADLINE)
        assert taken == 2


async def call_on(stage: Stage) -> None:
    while True:
        (await stage.begin()).end()


async def test_a_folder_that_others_may_use_for_a_moment_fails_no_later_call(
    place: Path, name: str
) -> None:
    async with stages(rs.Limit(name, concurrency=2)) as (stage,):
        running = await soon(stage.begin())
        shutil.rmtree(folder(place))
        folder(place).mkdir()
        folder(place).chmod(0o755)
        with pytest.raises((RuntimeError, OSError), match="others may use it"):
            await soon(call_on(stage))
        folder(place).chmod(0o700)
        await soon(stage.begin())
        waiting = stage.waiting()
        assert await is_not_granted(waiting)  # the call that began before has its permit
        running.end()
        await soon(waiting)


async def test_who_finds_its_permits_taken_in_a_new_file_gets_no_others(
    place: Path, other: Other, name: str
) -> None:
    """Its calls go on, which cannot be helped; their permits are not granted again."""
    async with stages(rs.Limit(name, concurrency=3)) as (stage,):
        calls = await stage.begin_all(3)
        shutil.rmtree(folder(place))
        taken, _ = other.take(name, 3, DEADLINE)  # the loop is not back before all are taken
        assert taken == 3
        await asyncio.sleep(NOT_GRANTED)
        for call in calls:
            call.end()
            await asyncio.sleep(0.05)  # a stage looks whether others want one once in a while
        waiting = stage.waiting()
        assert await is_not_granted(waiting, NOT_GRANTED)
        other.tell("end")
        await soon(waiting)


async def test_the_times_of_a_file_that_is_removed_hold_in_the_next(
    place: Path, other: Other, name: str
) -> None:
    async with stages(rs.Limit(name, concurrency=3, rate=2)) as (stage,):
        await stage.begin_all(1)
        first = monotonic()
        second = stage.waiting()
        await asyncio.sleep(0.1)
        shutil.rmtree(folder(place))
        await file_is_back(place)
        taken, at = await asyncio.to_thread(other.take, name, 1, DEADLINE, 2)
        assert taken == 1
        assert at > first + 0.9  # after the second one
        await soon(second)


async def test_the_numbers_of_a_new_file_hold_if_they_were_made_later(
    place: Path, other: Other, name: str
) -> None:
    async with stages(rs.Limit(name, concurrency=7)) as (stage,):
        await stage.begin_all(1)
        shutil.rmtree(folder(place))
        taken, _ = other.take(name, 3, DEADLINE)
        assert taken == 3
        fourth = stage.waiting()
        assert await is_not_granted(fourth)
        other.tell("end")
        await soon(fourth)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere locks are the process's")
async def test_a_file_that_is_closed_elsewhere_in_the_process_keeps_its_locks(
    place: Path, other: Other, name: str
) -> None:
    async with stages(rs.Limit(name, concurrency=3)) as (stage,):
        await stage.begin_all(3)
        for file in folder(place).iterdir():
            file.read_bytes()
        taken, _ = await asyncio.to_thread(other.take, name, 3, NOT_GRANTED)
        assert taken == 0


# -- folders ---------------------------------------------------------------------------------------
async def use(name: str) -> None:
    async with stages(rs.Limit(name, concurrency=3)) as (stage,):
        await stage.begin_all(1)


@pytest.mark.parametrize("kind", ["link", "file", "open to all", "not there"])
def test_a_folder_that_is_not_this_users_alone_is_refused(
    kind: str, tmp_path: Path, name: str
) -> None:
    place = tmp_path / "not there" if kind == "not there" else tmp_path
    path, elsewhere = folder(place), tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "file":
        path.touch(0o700)
    elif kind == "open to all":
        path.mkdir()
        path.chmod(0o755)
    error = OSError if kind == "not there" else PermissionError
    with temporary_in(place), pytest.raises(error, match=str(path)):
        asyncio.run(use(name))
    assert not any(elsewhere.iterdir())


FULL = """
import logging, resource, sys
import pyarrow as pa
import rstreams_fast.spark as rs

async def fn(k):
    raise AssertionError("paid for")

async def answers(k):
    return k

def run(fn, metrics=None, **words):
    batch = pa.RecordBatch.from_pydict({"k": pa.array([1, 2])})
    stage = rs.lookup(rs.Policy(**words)(fn), pa.int64(), metrics=metrics)
    return list(stage.as_map_fn()(iter([batch])))

logging.basicConfig(stream=sys.stdout)
metrics, journal = rs.Metrics(sys.argv[1] + "/metrics"), rs.Journal(sys.argv[1], version="1")
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))  # as on a disk that is full
for words in ({"journal": journal}, {"limit": rs.Limit("full", concurrency=1)}):
    try:
        run(fn, **words)
    except OSError as error:
        print(error)
for _ in range(2):
    run(answers, metrics=metrics)
"""


@pytest.mark.slow
def test_a_disk_that_is_full_is_named_before_the_first_call(tmp_path: Path) -> None:
    told = run_python("-c", FULL, str(tmp_path), cwd=ROOT, env={"TMPDIR": str(tmp_path)}).stdout
    journal, limit, metrics = told.splitlines()
    assert f"{tmp_path}/rstreams-journal-" in journal
    assert f"{tmp_path}/rstreams-limits-" in limit
    assert f"{tmp_path}/metrics cannot be written" in metrics
