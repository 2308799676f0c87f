"""A stream that keeps a loop busy yields the GIL: when, in which thread, and what it costs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

import rstreams_fast as rsf
from rstreams_fast.runtime import gil_yield
from rstreams_fast.runtime.gil_yield import WORK_SECONDS, yield_gil
from rstreams_fast.runtime.parking import HAS_GIL
from tests.helpers import run_python, start_thread, wait_for

needs_gil = pytest.mark.skipif(not HAS_GIL, reason="there is no GIL to yield")


class Clocks:
    """Both clocks, moved by hand, and a sleep that is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.worked = 50.0
        self.sleeps = 0
        for name, value in {
            "perf_counter": lambda: self.now,
            "thread_time": lambda: self.worked,
            "sleep": self._sleep,
        }.items():
            monkeypatch.setattr(gil_yield, name, value)
        times = gil_yield._WorkTimes()  # it looks at the clocks
        monkeypatch.setattr(gil_yield, "_work_times", times)

    def _sleep(self, seconds: float) -> None:
        assert 0 < seconds < WORK_SECONDS / 100
        self.sleeps += 1
        self.now += seconds

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@needs_gil
def test_a_thread_that_works_all_the_time_yields_once_per_share(clocks: Clocks) -> None:
    turn = WORK_SECONDS / 64
    for n in range(1, 6400):
        clocks.work(turn)
        yield_gil()
        assert abs(clocks.sleeps - n // 64) <= 1
    assert 98 <= clocks.sleeps <= 100


@needs_gil
def test_waiting_is_no_work(clocks: Clocks) -> None:
    for _ in range(99):
        clocks.work(WORK_SECONDS / 100)
        clocks.wait(WORK_SECONDS)
        yield_gil()
    assert clocks.sleeps == 0
    clocks.work(WORK_SECONDS / 50)
    clocks.wait(WORK_SECONDS)
    yield_gil()
    assert clocks.sleeps == 1


@needs_gil
def test_in_the_child_of_a_fork_the_clock_of_work_begins_anew(clocks: Clocks) -> None:
    clocks.work(WORK_SECONDS)
    clocks.worked = 0.0
    yield_gil()
    clocks.work(2 * WORK_SECONDS)
    yield_gil()
    assert clocks.sleeps == 2


def test_python_may_have_been_built_without_a_clock_for_each_thread() -> None:
    code = (
        "import time; del time.thread_time\n"
        "from rstreams_fast.runtime import gil_yield\n"
        "gil_yield.yield_gil()\n"
        "print(gil_yield.thread_time is time.perf_counter)"
    )
    assert run_python("-c", code).stdout.strip() == "True"


@needs_gil
def test_each_thread_counts_its_own_work(clocks: Clocks) -> None:
    clocks.work(2 * WORK_SECONDS)
    start_thread(yield_gil).result()  # which has done nothing yet
    assert clocks.sleeps == 0
    yield_gil()
    assert clocks.sleeps == 1


def test_without_a_gil_nobody_sleeps(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gil_yield, "HAS_GIL", False)
    clocks.work(10 * WORK_SECONDS)
    yield_gil()
    assert clocks.sleeps == 0


# -- every way in which a stream keeps a loop ------------------------------------------------------
class Endless:
    """A stream without an end, until it is told."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def numbers(self) -> rsf.Stream[int]:
        return rsf.range_(10**15).take_while(lambda _: not self.over.is_set())

    async def later(self) -> AsyncIterator[int]:
        while not self.over.is_set():
            yield 1


async def same(element: int) -> int:
    return element


def ignore(_element: object) -> None:
    pass


def boundaries_in_a_row(endless: Endless) -> rsf.Stream[int]:
    """None of them ever works for a whole turn: each waits for the next one's demand."""
    loop = asyncio.get_running_loop()
    stream = endless.numbers().subscribe_on(loop)
    for _ in range(3):
        stream = stream.publish_on(loop, prefetch=8)
    return stream


KEEPING: dict[str, Callable[[Endless], rsf.Stream[int]]] = {
    "publish_on": lambda endless: endless.numbers().publish_on(asyncio.get_running_loop()),
    "subscribe_on": lambda endless: endless.numbers().subscribe_on(asyncio.get_running_loop()),
    "boundaries in a row": boundaries_in_a_row,
    "map_async": lambda endless: endless.numbers().map_async(same),
    "async source": lambda endless: rsf.from_async_iterable(endless.later),
    "async for": Endless.numbers,
}


@needs_gil
@pytest.mark.parametrize("keep", KEEPING)
def test_a_stream_that_keeps_a_loop_busy_yields(keep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    often = threading.Event()
    threads: list[int] = []
    really_sleep = gil_yield.sleep

    def sleep(seconds: float) -> None:
        threads.append(threading.get_ident())
        if len(threads) == 3:
            often.set()
        really_sleep(seconds)

    async def main() -> None:
        stream = KEEPING[keep](endless)
        if keep == "async for":
            async for element in stream.iterate():
                ignore(element)
        else:
            await stream.for_each(ignore)

    def run() -> int:
        asyncio.run(main())
        return threading.get_ident()

    monkeypatch.setattr(gil_yield, "sleep", sleep)
    thread = start_thread(run)
    try:
        wait_for(often)
    finally:
        endless.over.set()
    assert set(threads) == {thread.result()}
