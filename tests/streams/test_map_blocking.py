"""``map_blocking``: real threads, a real process pool, order, bounds and ends."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from multiprocessing import get_context
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import DEADLINE, Counted, NoMoreThreads, Problem, wait_for, wait_until
from tests.rules.probes import ManualPublisher, Recorder, send, subscribed
from tests.streams.held import Hold

#: Seconds of a call after which a burst of calls goes on no longer.
LONG = 0.006


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No burst with a call that takes long ends by itself."""
    monkeypatch.setattr("rstreams_fast.streams.operators.map_blocking.MAX_BURST_SECONDS", DEADLINE)


def square(n: int) -> int:
    return n * n


def where(_: int) -> int:
    return os.getpid()


def test_a_pool_of_processes_takes_it_elsewhere() -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert rsf.range_(50).map_blocking(square, pool).to_list() == [n * n for n in range(50)]
        assert os.getpid() not in rsf.range_(5).map_blocking(where, pool).to_list()
        with pytest.raises(Exception, match=r"pickle|local object"):
            rsf.range_(5).map_blocking(lambda n: n, pool).to_list()


def test_calls_overlap_up_to_the_concurrency_and_a_slow_one_keeps_its_place() -> None:
    running, at_once = Counted(), list[int]()
    first, last = threading.Event(), threading.Event()

    def call(n: int) -> int:
        at_once.append(running.add())
        if n == 0:
            first.set()
            assert last.wait(DEADLINE)  # so it overlaps with all that follow
        else:
            assert first.wait(DEADLINE)
        if n == 99:
            last.set()
        running.add(-1)
        return n

    assert rsf.range_(100).map_blocking(call, concurrency=3).to_list() == list(range(100))
    assert 2 <= max(at_once) <= 3


def test_a_bounded_number_is_taken_while_the_first_call_takes_its_time() -> None:
    taken: list[int] = []
    hold, full = Hold(), threading.Event()

    def take(n: int) -> None:
        taken.append(n)
        if n == 7:
            full.set()

    source = rsf.range_(1000).do_on_next(take)
    seen: list[int] = []
    calls = source.map_blocking(lambda n: n or hold(n), concurrency=2, prefetch=8)
    run = calls.for_each(seen.append)
    assert full.wait(DEADLINE)
    assert len(taken) == 8
    assert seen == []
    hold.leave.set()
    run.result(DEADLINE)
    assert seen == list(range(1000))


@pytest.mark.parametrize("error", [LookupError("no"), StopIteration("no")])
@pytest.mark.parametrize("own", [True, False])
def test_what_a_call_raises_ends_the_stream(error: Exception, own: bool) -> None:
    def call(n: int) -> int:
        if n == 3:
            raise error
        return n

    with ThreadPoolExecutor(2) as pool:
        stream = rsf.range_(100).map_blocking(call, pool if own else None)
        with pytest.raises((LookupError, RuntimeError), match=r"no|StopIteration"):
            stream.to_list()


@pytest.mark.parametrize("taken", [False, True], ids=["kept", "taken"])
def test_a_call_that_a_pool_keeps_though_it_starts_no_thread_is_made_once(taken: bool) -> None:
    called: list[int] = []
    discarded: list[int] = []
    blocked, leave = threading.Event(), threading.Event()
    below = Recorder(request=2)
    with NoMoreThreads(1, taken=taken) as pool:
        pool.submit(lambda: (blocked.set(), taken or leave.wait(DEADLINE)))
        wait_for(blocked)
        pool.full = True
        calls = rsf.range_(7, 8).map_blocking(lambda n: called.append(n) or n, pool)
        calls.on_discard(discarded.append).subscribe(below)
        below.wait_terminal()
        leave.set()
    below.check()
    assert (called, below.elements, discarded) == (([7], [7], []) if taken else ([], [], [7]))
    assert isinstance(below.error, RuntimeError) is not taken


def test_results_come_on_the_running_loop_or_on_one_thread_of_the_streams_own() -> None:
    threads: set[str] = set()

    def see(_: object) -> None:
        threads.add(threading.current_thread().name)

    stream = rsf.range_(50).map_blocking(square, concurrency=4).do_on_next(see)
    stream.to_list()
    assert len(threads) == 1
    assert next(iter(threads)).startswith("rstreams-fast-map-blocking")

    async def within() -> None:
        threads.clear()
        await stream.to_list_async()
        assert threads == {threading.current_thread().name}

    asyncio.run(within())


def fails_at_300(n: int) -> int:
    if n == 300:
        raise LookupError("no")
    return n


class OneThread(ThreadPoolExecutor):
    """Counts what is submitted."""

    def __init__(self) -> None:
        super().__init__(1)
        self.submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


def test_short_calls_are_submitted_together_and_long_ones_one_by_one() -> None:
    counts: dict[int, int] = {}

    def call(n: int) -> int:
        counts[n] = pool.submitted
        if n >= 1000:
            time.sleep(LONG)
        return n

    with OneThread() as pool:
        stream = rsf.range_(1100).map_blocking(call, pool, concurrency=2)
        assert stream.to_list() == list(range(1100))
    assert len(counts) == 1100
    assert pool.submitted < 800
    # One waits behind the call that takes its time; what was left by that one is submitted anew.
    assert counts[1099] - counts[1000] >= 98


class Telling(Executor):
    """A thread for each submission; ``over`` counts those of which all has been told."""

    def __init__(self) -> None:
        self.over = threading.Semaphore(0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            future.set_result(fn(*args, **kwargs))
            self.over.release()

        threading.Thread(target=run).start()
        return future


def test_without_an_order_a_failure_holds_no_result_of_others_back() -> None:
    pool = Telling()
    may_end = [threading.Event() for _ in range(3)]
    seen: list[int] = []

    def call(n: int) -> int:
        assert may_end[n].wait(DEADLINE)
        if n == 1:
            raise LookupError("no")
        return n

    def see(n: int) -> None:
        seen.append(n)
        if n == 0:
            assert pool.over.acquire(timeout=DEADLINE)
            for other in (1, 2):
                may_end[other].set()
                assert pool.over.acquire(timeout=DEADLINE)

    run = rsf.range_(3).map_blocking(call, pool, concurrency=3, ordered=False).for_each(see)
    may_end[0].set()
    with pytest.raises(LookupError):
        run.result(DEADLINE)
    assert seen == [0, 2]


@pytest.mark.parametrize("processes", [False, True])
def test_what_came_before_a_failure_is_delivered_and_what_follows_it_is_not_called(
    processes: bool,
) -> None:
    called: list[int] = []

    def call(n: int) -> int:
        called.append(n)
        return fails_at_300(n)

    seen: list[int] = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) if processes else OneThread() as p:
        stream = rsf.range_(1000).map_blocking(
            fails_at_300 if processes else call, p, concurrency=1
        )
        with pytest.raises(LookupError, match="no") as raised:
            stream.for_each(seen.append).result(DEADLINE)
    assert seen == list(range(300))
    if processes:
        told = "".join(raised.value.__notes__)
    else:
        told = str(raised.traceback[-1])
        assert called == list(range(301))
    assert "fails_at_300" in told


class Thing:
    def __init__(self, n: int) -> None:
        self.n = n


@pytest.mark.parametrize("fails_at", [0, 300])
def test_the_error_keeps_no_other_element(fails_at: int) -> None:
    alive: list[weakref.ref[Thing]] = []

    def make(n: int) -> Thing:
        thing = Thing(n)
        alive.append(weakref.ref(thing))
        return thing

    def call(thing: Thing) -> int:
        if thing.n == fails_at:
            raise LookupError("no")
        return thing.n

    with OneThread() as pool:
        stream = rsf.range_(1000).map(make).map_blocking(call, pool, concurrency=2)
        with pytest.raises(LookupError) as raised:
            stream.to_list()
        wait_until(lambda: {a.n for ref in alive if (a := ref())} <= {fails_at}, "their end")
    assert raised.value.__traceback__ is not None


def test_a_cancel_within_a_burst_of_calls_ends_it() -> None:
    called: list[int] = []
    below = Recorder()

    def call(n: int) -> int:
        called.append(n)
        if n == 300:
            below.subscription.cancel()
        return n

    taken: list[int] = []
    discarded: list[int] = []
    with OneThread() as pool:
        source = rsf.range_(1000).do_on_next(taken.append)
        stream = source.map_blocking(call, pool, concurrency=2, prefetch=400)
        stream.on_discard(discarded.append).subscribe(below)
        below.subscription.request(2000)
        wait_until(lambda: 300 in discarded, "the result of the last call to be discarded")
        wait_until(
            lambda: len(below.elements + discarded) == len(taken), "the rest to be discarded"
        )
    assert called == list(range(301))
    assert sorted(below.elements + discarded) == taken


@pytest.mark.usefixtures("patient")
def test_no_call_begins_after_a_cancel_that_the_drain_has_seen_first() -> None:
    called: list[int] = []
    below = Recorder()
    fed, over, cancelled = threading.Event(), threading.Event(), threading.Event()

    class Slow(ManualPublisher):
        def cancel(self) -> None:
            super().cancel()
            over.set()  # another burst ends, and enters the drain
            wait_until(lambda: below.subscription._window is None, "the end of the drain")

    def call(n: int) -> int:
        called.append(n)
        if n == 0:
            assert fed.wait(DEADLINE)  # then there are bursts of many
        elif n == 1:
            assert over.wait(DEADLINE)
        elif n == 100:
            below.subscription.cancel()
            cancelled.set()
        return n

    above = Slow()
    with ThreadPoolExecutor(2) as pool:
        calls = rsf.from_publisher(above).map_blocking(call, pool, concurrency=2, prefetch=400)
        calls.subscribe(below)
        below.subscription.request(400)
        above.wait_requested(400)
        send(above, *range(200))
        fed.set()
        assert cancelled.wait(DEADLINE)
    assert sorted(called) == list(range(101))


@pytest.mark.usefixtures("patient")
def test_no_call_begins_after_the_loop_of_the_stream_is_closed() -> None:
    called: list[int] = []
    above, below = ManualPublisher(), Recorder()
    fed, hold = threading.Event(), Hold()

    def call(n: int) -> int:
        called.append(n)
        if n == 0:
            assert fed.wait(DEADLINE)  # then there are bursts of many
        return hold(n) if n == 100 else n

    async def feed() -> None:
        calls = rsf.from_publisher(above).map_blocking(call, pool, concurrency=1, prefetch=400)
        calls.subscribe(below)
        below.subscription.request(400)
        await asyncio.to_thread(above.wait_requested, 400)
        send(above, *range(200))
        fed.set()
        await asyncio.to_thread(wait_for, hold.entered)

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(feed())
        above.subscriber.on_next(200)  # which finds the loop closed
        below.wait_terminal()
        hold.leave.set()
    assert isinstance(below.error, RuntimeError)
    assert called == list(range(101))


async def test_errors_of_calls_that_end_together_are_signalled_or_reported(
    dropped: list[BaseException],
) -> None:
    errors = [Problem(n) for n in range(3)]
    begun, go_on = list[int](), threading.Event()

    def fails(n: int) -> None:
        begun.append(n)
        assert go_on.wait(DEADLINE)
        raise errors[n]

    pool = ThreadPoolExecutor(3)
    below = subscribed(rsf.range_(3).map_blocking(fails, executor=pool, concurrency=3), 3)
    await asyncio.to_thread(wait_until, lambda: len(begun) == 3, "the calls")
    go_on.set()
    pool.shutdown()  # the loop, which delivers, waits for all calls
    await asyncio.to_thread(below.wait_terminal)
    assert {below.error, *dropped} == set(errors)
    assert len(dropped) == 2


def test_a_call_that_fails_after_the_loop_is_closed_is_reported(
    dropped: list[BaseException],
) -> None:
    boom = ValueError("boom")
    below, hold = Recorder(), Hold()

    def call(_: int) -> int:
        hold()
        raise boom

    async def begin() -> None:
        rsf.range_(3).map_blocking(call, concurrency=1).subscribe(below)
        below.subscription.request(1)
        await asyncio.to_thread(wait_for, hold.entered)

    asyncio.run(begin())
    hold.leave.set()  # the call tells the stream of its end, and finds the loop closed
    below.wait_terminal()
    assert isinstance(below.error, rsf.WorkDroppedError)
    wait_until(lambda: dropped == [boom], "the report of the failure")


@pytest.mark.parametrize("ordered", [True, False])
def test_the_last_call_that_fails_while_a_result_is_delivered_is_not_overlooked(
    ordered: bool,
) -> None:
    delivering = threading.Event()

    def call(n: int) -> int:
        if n == 1:
            assert delivering.wait(DEADLINE)
            raise LookupError("no")
        return n

    with ThreadPoolExecutor(1) as pool:

        def see(_: int) -> None:
            delivering.set()
            pool.submit(int).result(DEADLINE)  # after all that call 1 does

        stream = rsf.range_(2).map_blocking(call, pool, concurrency=2, ordered=ordered)
        with pytest.raises(LookupError):
            stream.for_each(see).result(DEADLINE)


@pytest.mark.parametrize("workers", [0, 2])
def test_calls_see_the_context_of_subscribe(workers: int) -> None:
    request: ContextVar[str] = ContextVar("request", default="none")
    pool = ThreadPoolExecutor(workers) if workers else None
    request.set("mine")
    stream = rsf.range_(20).map_blocking(lambda _: request.get(), pool, concurrency=2)
    assert set(stream.to_list()) == {"mine"}
    if pool is not None:
        pool.shutdown()


@pytest.mark.parametrize("ordered", [False, True])
def test_the_refusal_of_a_pool_is_raised_and_not_reported(
    ordered: bool, dropped: list[BaseException]
) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        rsf.range_(9).map_blocking(abs, pool, concurrency=3, ordered=ordered).to_list()
    assert dropped == []
