"""Streams on executors that have a bound, and on those that are shut down in mid-run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.thread import BrokenThreadPool
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import AsyncSubscriber
from rstreams_fast.queues import BoundedExecutor
from tests.helpers import DEADLINE, run_python, start_thread, wait_for
from tests.streams.held import Hold

Call = Callable[[int], int]
#: Makes a stream of some of the numbers from 0, which calls ``fn`` on the pool with each.
Make = Callable[[Executor, Call], rsf.Stream[int]]


def _records(pool: Executor, fn: Call) -> rsf.Stream[int]:
    numpy = pytest.importorskip("numpy")
    numbers = rsf.from_numpy(numpy.arange(3000), chunk=1)
    arrays = numbers.publish_records_on("i8", pool, capacity=4, chunk=1)
    return arrays.map(lambda array: fn(int(array[0])))


ON_POOL: dict[str, Make] = {
    "publish_on": lambda pool, fn: rsf.range_(3000).publish_on(pool, prefetch=4).map(fn),
    "subscribe_on": lambda pool, fn: rsf.range_(3000).map(fn).subscribe_on(pool),
    "subscribe_on, with a layer": lambda pool, fn: (
        rsf.range_(3000).publish_on("caller").map(fn).subscribe_on(pool)
    ),
    "map_blocking": lambda pool, fn: rsf.range_(3000).map_blocking(fn, pool, concurrency=4),
    "map_blocking, any order": lambda pool, fn: rsf.range_(3000).map_blocking(
        fn, pool, concurrency=4, ordered=False
    ),
    "interval": lambda pool, fn: rsf.interval(
        1e-4, executor=pool, overflow=rsf.Overflow.LATEST
    ).map(fn),
    "publish_records_on": _records,
}


@pytest.mark.parametrize("name", ON_POOL)
def test_streams_work_on_a_pool_whose_queue_is_full(name: str) -> None:
    """Several at once, which submit from threads of the pool and from others."""
    with BoundedExecutor(1, max_queue_size=1) as pool:
        streams = [ON_POOL[name](pool, lambda n: n).take(300) for _ in range(6)]
        seen: list[list[int]] = [[] for _ in streams]
        runs = [one.for_each(mine.append) for one, mine in zip(streams, seen, strict=True)]
        for run in runs:
            run.result(DEADLINE)
        assert [len(mine) for mine in seen] == [300] * 6


def test_subscribers_work_on_a_pool_whose_queue_is_full() -> None:
    with BoundedExecutor(1, max_queue_size=1) as pool:
        seen: list[list[int]] = [[] for _ in range(6)]
        ends = [AsyncSubscriber(mine.append, pool, prefetch=2) for mine in seen]
        for end in ends:
            rsf.range_(300).subscribe(end)
        for end in ends:
            end.run.result(DEADLINE)
        assert seen == [list(range(300))] * 6


def test_the_places_of_others_are_left_alone_by_streams() -> None:
    hold = Hold()
    with BoundedExecutor(1, max_queue_size=2) as pool:
        pool.submit(hold)
        wait_for(hold.entered)
        runs = [rsf.range_(9).publish_on(pool).for_each(abs) for _ in range(5)]
        pool.submit(int)
        pool.submit(int)

        async def one_more() -> None:
            pool.submit(int)

        with pytest.raises(RuntimeError, match="2 calls wait already"):
            asyncio.run(one_more())
        hold.leave.set()
        for run in runs:
            run.result(DEADLINE)
        pool.submit(int).result(DEADLINE)


def test_calls_on_a_full_pool_may_need_the_loop_that_waits_for_them() -> None:
    async def main(pool: Executor) -> list[int]:
        loop = asyncio.get_running_loop()

        async def answer(n: int) -> int:
            await asyncio.sleep(0)
            return n

        def ask(n: int) -> int:
            return asyncio.run_coroutine_threadsafe(answer(n), loop).result(DEADLINE)

        calls = rsf.range_(50).map_blocking(ask, pool, concurrency=8)
        return await calls.publish_on(loop).to_list_async()

    with BoundedExecutor(2, max_queue_size=1) as pool:
        assert asyncio.run(main(pool)) == list(range(50))


def test_a_loop_is_told_that_the_pool_is_full_and_does_not_stand() -> None:
    async def main(pool: Executor) -> tuple[list[Any], list[int]]:
        loop = asyncio.get_running_loop()

        async def answer() -> int:
            return 1

        def ask() -> int:
            return asyncio.run_coroutine_threadsafe(answer(), loop).result(DEADLINE)

        calls = [loop.run_in_executor(pool, ask)]
        error = ""
        while not error:
            try:
                calls.append(loop.run_in_executor(pool, ask))
            except RuntimeError as refused:
                error = str(refused)
        assert "the event loop" in error
        assert "asyncio.Semaphore(1)" in error
        bound = asyncio.Semaphore(1)

        async def bounded() -> int:
            async with bound:
                return await loop.run_in_executor(pool, ask)

        async def in_a_thread() -> int:
            return await asyncio.wrap_future(await asyncio.to_thread(pool.submit, ask))

        first = await asyncio.gather(*calls)
        await asyncio.gather(*(in_a_thread() for _ in range(20)))
        return first, await asyncio.gather(*(bounded() for _ in range(20)))

    with BoundedExecutor(1, max_queue_size=1) as pool:
        first, bounded = asyncio.run(main(pool))
    assert set(first) == {1}
    assert bounded == [1] * 20


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, partial(BoundedExecutor, max_queue_size=9)])
@pytest.mark.parametrize("cancel", [True, False])
@pytest.mark.parametrize("name", ON_POOL)
def test_a_stream_ends_when_its_pool_is_shut_down_in_mid_run(
    name: str, cancel: bool, kind: Callable[[int], Executor]
) -> None:
    """With the error of the refusal, or, where work was accepted and dropped, with its own."""
    pool, hold = kind(1), Hold()
    seen: list[int] = []
    errors: list[BaseException] = []
    run = ON_POOL[name](pool, hold).for_each(seen.append, errors.append)
    wait_for(hold.entered)
    pool.shutdown(wait=False, cancel_futures=cancel)
    hold.leave.set()
    with suppress(RuntimeError):
        run.result(DEADLINE)
    if errors:  # else all that was asked for was there already
        (error,) = errors
        assert isinstance(error, rsf.WorkDroppedError) or "after shutdown" in str(error)
    else:
        assert name.startswith(("subscribe_on", "map_blocking"))
        assert len(seen) == 3000


@pytest.mark.parametrize("cancel", [True, False])
def test_a_subscriber_ends_when_its_pool_is_shut_down_in_mid_run(cancel: bool) -> None:
    pool, hold = ThreadPoolExecutor(1), Hold()
    end = AsyncSubscriber(hold, pool, prefetch=2, on_error=lambda _: None)
    rsf.range_(10**6).subscribe(end)
    wait_for(hold.entered)
    pool.shutdown(wait=False, cancel_futures=cancel)
    hold.leave.set()
    with pytest.raises(RuntimeError, match=r"after shutdown|the executor cancelled work"):
        end.run.result(DEADLINE)


class _InlineExecutor(Executor):
    """Runs work within ``submit``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _seen_by_subscriber(executor: Any) -> list[int]:
    seen: list[int] = []
    end = AsyncSubscriber(seen.append, executor)
    rsf.range_(2).subscribe(end)
    end.run.result(DEADLINE)
    return seen


#: Lists the numbers 0 and 1 by means of a stream on an executor.
LISTS: dict[str, Callable[[Any], list[int]]] = {
    "publish_on": lambda executor: rsf.range_(2).publish_on(executor).to_list(),
    "subscribe_on": lambda executor: rsf.range_(2).subscribe_on(executor).to_list(),
    "subscribe_on, with a layer": lambda executor: (
        rsf.range_(2).merge(rsf.empty()).subscribe_on(executor).to_list()
    ),
    "a loop": lambda executor: list(rsf.range_(2).publish_on(executor)),
    "a subscriber": _seen_by_subscriber,
}


@pytest.mark.parametrize("inner", ["caller", _InlineExecutor()], ids=["caller", "inline"])
@pytest.mark.parametrize("outer", ["caller", _InlineExecutor(), None], ids=["caller", "inline", ""])
@pytest.mark.parametrize("name", LISTS)
def test_work_on_the_calling_thread_may_wait_for_a_stream_there(
    name: str, outer: Any, inner: Any
) -> None:
    lists = rsf.range_(2).publish_on(outer).map(lambda _: LISTS[name](inner))
    assert start_thread(lists.to_list).result() == [[0, 1], [0, 1]]


# A pool whose initializer fails does not look whether a call has been cancelled meanwhile.
@pytest.mark.filterwarnings(
    "ignore:(?s).*InvalidState:pytest.PytestUnhandledThreadExceptionWarning"
)
@pytest.mark.parametrize("name", [*ON_POOL, "a subscriber"])
def test_a_stream_fails_with_the_error_of_a_pool_that_cannot_start(name: str) -> None:
    def initialize() -> None:
        raise OSError

    with ThreadPoolExecutor(1, initializer=initialize) as pool:
        if name == "a subscriber":
            end = AsyncSubscriber(abs, pool, on_error=lambda _: None)
            rsf.range_(3).subscribe(end)
            run = end.run
        else:
            run = ON_POOL[name](pool, abs).for_each(abs)
        with pytest.raises(BrokenThreadPool):
            run.result(DEADLINE)


def _never(_: object) -> bool:
    return False


#: Streams whose sources work without end, while no element comes out.
QUIET: dict[str, Callable[[rsf.Stream[int], Any], rsf.Stream[Any]]] = {
    "publish_on": lambda source, executor: source.publish_on(executor),
    "publish_on, merged": lambda source, executor: source.merge(source).publish_on(executor),
    "map_blocking": lambda source, _: source.map_blocking(abs),
    "subscribe_on": lambda source, executor: source.subscribe_on(executor),
}


@pytest.mark.parametrize("name", [name for name in QUIET if name != "map_blocking"])
def test_a_stream_that_delivers_nothing_leaves_its_pool_to_others(name: str) -> None:
    numbers = itertools.count()
    with ThreadPoolExecutor(1) as pool:
        source = rsf.generate(0, lambda n: (n, n)).filter(_never)
        quiet = QUIET[name](source, pool).for_each(abs)
        try:
            other = rsf.range_(3).publish_on(pool).for_each(lambda _: next(numbers))
            other.result(DEADLINE)
        finally:
            quiet.cancel()
    assert next(numbers) == 3


@pytest.mark.parametrize("name", QUIET)
def test_a_stream_that_delivers_nothing_does_not_keep_the_interpreter_from_exiting(
    name: str,
) -> None:
    code = (
        "from tests.streams.test_executors import *\n"
        "from tests.streams.test_executors import _never\n"
        "source = rsf.range_(10**15).filter(_never)\n"
        f"run = QUIET[{name!r}](source, None).for_each(abs, lambda e: print(type(e).__name__))"
    )
    assert run_python("-c", code).stdout.strip() == "WorkDroppedError"
