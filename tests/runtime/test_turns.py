"""Threads get to run beside a loop that streams keep busy: when, for whom, and what it costs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import rstreams_fast as rsf
from rstreams_fast.runtime import turns
from rstreams_fast.runtime.parking import HAS_GIL
from rstreams_fast.runtime.turns import KEEP_SECONDS, let_threads_in
from tests.helpers import run_python, start_thread, wait_for

needs_gil = pytest.mark.skipif(not HAS_GIL, reason="there is no GIL to be let go of")


class Clocks:
    """Both clocks, moved by hand, and a sleep that is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.worked = 50.0
        self.sleeps = 0
        monkeypatch.setattr(turns, "perf_counter", lambda: self.now)
        monkeypatch.setattr(turns, "thread_time", lambda: self.worked)
        monkeypatch.setattr(turns, "sleep", self._sleep)
        monkeypatch.setattr(turns, "_kept", turns._Kept())

    def _sleep(self, seconds: float) -> None:
        assert 0 < seconds < KEEP_SECONDS / 100
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
def test_who_works_all_the_time_lets_threads_in_once_per_share(clocks: Clocks) -> None:
    turn = KEEP_SECONDS / 64
    for n in range(1, 6400):
        clocks.work(turn)
        let_threads_in()
        assert abs(clocks.sleeps - n // 64) <= 1
    assert 98 <= clocks.sleeps <= 100


@needs_gil
def test_turns_longer_than_that_let_threads_in_once_each(clocks: Clocks) -> None:
    for n in range(1, 10):
        clocks.work(3 * KEEP_SECONDS)
        let_threads_in()
        assert clocks.sleeps == n


@needs_gil
def test_waiting_is_no_work(clocks: Clocks) -> None:
    for _ in range(99):
        clocks.work(KEEP_SECONDS / 100)
        clocks.wait(KEEP_SECONDS)
        let_threads_in()
    assert clocks.sleeps == 0
    clocks.work(KEEP_SECONDS / 50)
    clocks.wait(KEEP_SECONDS)
    let_threads_in()
    assert clocks.sleeps == 1


@needs_gil
def test_in_the_child_of_a_fork_the_clock_of_work_begins_anew(clocks: Clocks) -> None:
    clocks.work(KEEP_SECONDS)
    clocks.worked = 0.0
    let_threads_in()
    clocks.work(2 * KEEP_SECONDS)
    let_threads_in()
    assert clocks.sleeps == 2


def test_python_may_have_been_built_without_a_clock_for_each_thread() -> None:
    code = (
        "import time; del time.thread_time\n"
        "import rstreams_fast.runtime.turns as turns\n"
        "turns.let_threads_in()\n"
        "print(turns.thread_time is time.perf_counter)"
    )
    assert run_python("-c", code).stdout.strip() == "True"


@needs_gil
def test_each_thread_counts_its_own_work(clocks: Clocks) -> None:
    clocks.work(2 * KEEP_SECONDS)
    start_thread(let_threads_in).result()  # which has done nothing yet
    assert clocks.sleeps == 0
    let_threads_in()
    assert clocks.sleeps == 1


def test_without_a_gil_nobody_sleeps(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "HAS_GIL", False)
    clocks.work(10 * KEEP_SECONDS)
    let_threads_in()
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


async def publish_on(endless: Endless) -> None:
    await endless.numbers().publish_on(asyncio.get_running_loop()).for_each(ignore)


async def subscribe_on(endless: Endless) -> None:
    await endless.numbers().subscribe_on(asyncio.get_running_loop()).for_each(ignore)


async def boundaries_in_a_row(endless: Endless) -> None:
    """None of them ever works for a whole turn: each waits for the next one's demand."""
    loop = asyncio.get_running_loop()
    stream = endless.numbers().subscribe_on(loop)
    for _ in range(3):
        stream = stream.publish_on(loop, prefetch=8)
    await stream.for_each(ignore)


async def map_async(endless: Endless) -> None:
    await endless.numbers().map_async(same).for_each(ignore)


async def async_source(endless: Endless) -> None:
    await rsf.from_async_iterable(endless.later).for_each(ignore)


async def async_for(endless: Endless) -> None:
    async for element in endless.numbers().iterate():
        ignore(element)


@needs_gil
@pytest.mark.parametrize(
    "keep",
    [publish_on, subscribe_on, boundaries_in_a_row, map_async, async_source, async_for],
    ids=lambda keep: keep.__name__,
)
def test_who_keeps_a_loop_busy_lets_threads_in(
    keep: Callable[[Endless], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless()
    often = threading.Event()
    threads: list[int] = []
    really_sleep = turns.sleep

    def sleep(seconds: float) -> None:
        threads.append(threading.get_ident())
        if len(threads) == 3:
            often.set()
        really_sleep(seconds)

    async def main() -> None:
        await keep(endless)

    def run() -> int:
        asyncio.run(main())
        return threading.get_ident()

    monkeypatch.setattr(turns, "sleep", sleep)
    thread = start_thread(run)
    try:
        wait_for(often)
    finally:
        endless.over.set()
    assert set(threads) == {thread.result()}
