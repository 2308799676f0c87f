"""Rings in coroutines: parked without a thread, woken from anywhere, cancelled without a loss."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from rstreams_fast.errors import NoneSignalError, OverlappingCallsError, RingClosed
from tests.helpers import DEADLINE, Problem, run_threads, start_thread


class Objects:
    """An ``SpscRing`` of small ints, as the tests below use it."""

    def __init__(self, core: Any, capacity: int) -> None:
        self.ring = core.SpscRing(capacity)

    def put(self, n: int) -> Awaitable[Any]:
        return self.ring.aput(n)

    async def get(self) -> int:
        return await self.ring.aget()

    def offer(self, n: int) -> bool:
        return self.ring.offer(n)

    def poll(self) -> int | None:
        return self.ring.poll()


class Numbers:
    """A ``RecordRing``, one record at a time."""

    def __init__(self, core: Any, capacity: int) -> None:
        self.ring = core.RecordRing("i8", capacity)

    def put(self, n: int) -> Awaitable[Any]:
        return self.ring.aput(np.array([n]))

    async def get(self) -> int:
        return int((await self.ring.aget(1))[0])

    def offer(self, n: int) -> bool:
        return self.ring.write(np.array([n])) == 1

    def poll(self) -> int | None:
        taken = self.ring.read(1)
        return int(taken[0]) if len(taken) else None


@pytest.fixture(params=[Objects, Numbers], ids=["objects", "records"])
def make(request: pytest.FixtureRequest, core: Any) -> Callable[[int], Any]:
    return lambda capacity: request.param(core, capacity)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(DEADLINE):
            return await main

    return asyncio.run(limited())


async def parked(call: Awaitable[Any]) -> asyncio.Task[Any]:
    """Start ``call`` in a task, and let it run to where it waits."""
    task = asyncio.ensure_future(call)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_what_is_there_needs_no_waiting(make: Any) -> None:
    both = make(2)
    await both.put(1)
    await both.put(2)
    assert [await both.get(), await both.get()] == [1, 2]


@pytest.mark.parametrize("by", ["put", "offer", "thread"])
async def test_aget_is_woken(make: Any, by: str) -> None:
    both = make(2)
    getting = await parked(both.get())
    if by == "put":
        await both.put(1)
    elif by == "offer":
        both.offer(1)
    else:
        await asyncio.to_thread(both.offer, 1)
    assert await getting == 1


@pytest.mark.parametrize("by", ["get", "poll", "thread"])
async def test_aput_is_woken(make: Any, by: str) -> None:
    both = make(1)
    both.offer(1)
    putting = await parked(both.put(2))
    if by == "get":
        assert await both.get() == 1
    elif by == "poll":
        assert both.poll() == 1
    else:
        assert await asyncio.to_thread(both.poll) == 1
    await putting
    assert both.poll() == 2


@pytest.mark.parametrize("error", [None, Problem()])
async def test_the_end_comes_after_what_was_put_in(make: Any, error: Any) -> None:
    both = make(4)
    both.offer(1)
    both.ring.close(error)
    assert await both.get() == 1
    for _ in range(2):
        with pytest.raises(type(error) if error else RingClosed):
            await both.get()
    with pytest.raises(RingClosed, match="aput on a closed ring"):
        await both.put(2)


@pytest.mark.parametrize("where", ["here", "in a thread"])
async def test_close_wakes_both_sides(make: Any, where: str) -> None:
    empty, full = make(1), make(1)
    full.offer(1)
    getting = await parked(empty.get())
    putting = await parked(full.put(2))
    for both in (empty, full):
        if where == "here":
            both.ring.close()
        else:
            await asyncio.to_thread(both.ring.close)
    with pytest.raises(RingClosed):
        await getting
    with pytest.raises(RingClosed):
        await putting
    assert await full.get() == 1
    with pytest.raises(RingClosed):
        await full.get()


async def test_who_waits_is_inside(make: Any) -> None:
    both = make(1)
    getting = await parked(both.get())
    for call in (both.poll, lambda: both.ring.arm(pytest.fail), both.ring.get):
        with pytest.raises(OverlappingCallsError, match="consumer side"):
            call()
    with pytest.raises(OverlappingCallsError):
        await both.get()
    both.offer(1)
    assert await getting == 1
    both.offer(1)
    putting = await parked(both.put(2))
    for call in (lambda: both.offer(3), lambda: both.ring.arm_producer(pytest.fail)):
        with pytest.raises(OverlappingCallsError, match="producer side"):
            call()
    with pytest.raises(OverlappingCallsError):
        await both.put(3)
    assert both.poll() == 1
    await putting
    assert both.poll() == 2


async def test_disarm_leaves_alone_who_awaits(make: Any) -> None:
    both = make(1)
    getting = await parked(both.get())
    both.ring.disarm()
    both.offer(1)
    assert await getting == 1
    both.offer(2)
    putting = await parked(both.put(3))
    both.ring.disarm_producer()
    assert both.poll() == 2
    await putting
    assert both.poll() == 3
    assert both.ring.arm(lambda: pytest.fail("it was disarmed"))
    both.ring.disarm()
    both.offer(4)


async def test_a_cancelled_aget_takes_nothing(make: Any) -> None:
    both = make(2)
    for n in range(1, 5):
        getting = await parked(both.get())
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        # and one that is cancelled when it has been woken already
        getting = await parked(both.get())
        both.offer(n)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        assert len(both.ring) == 1
        assert await both.get() == n


async def test_a_cancelled_aput_puts_nothing_in(make: Any) -> None:
    both = make(1)
    for n in range(1, 5):
        await both.put(n)
        putting = await parked(both.put(99))
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        putting = await parked(both.put(99))
        assert both.poll() == n
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert len(both.ring) == 0


async def test_after_a_cancelled_wait_a_thread_may_wait(make: Any) -> None:
    both = make(1)
    getting = await parked(both.get())
    getting.cancel()
    await asyncio.wait([getting])
    thread = start_thread(lambda: both.ring.get(timeout=DEADLINE))
    await both.put(1)
    taken = await asyncio.to_thread(thread.result)
    assert np.ravel(taken).tolist() == [1]
    both.offer(1)
    putting = await parked(both.put(2))
    putting.cancel()
    await asyncio.wait([putting])
    assert both.poll() == 1
    assert both.offer(3)
    assert await both.get() == 3


def test_a_coroutine_that_is_dropped_leaves_its_side(make: Any) -> None:
    both = make(1)
    waiting = both.get()
    with asyncio.Runner() as runner:

        async def begin() -> None:
            future = waiting.send(None)
            assert isinstance(future, asyncio.Future)

        runner.run(begin())
        with pytest.raises(OverlappingCallsError):
            both.poll()
        waiting.close()
        assert both.poll() is None
    both.offer(1)  # whose loop is gone
    assert both.poll() == 1


def test_a_loop_that_has_ended_is_in_nobodys_way(make: Any) -> None:
    both = make(1)

    async def begin() -> None:
        both.task = asyncio.ensure_future(both.get())
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    both.offer(1)  # nobody wakes, nobody is hurt
    both.task._log_destroy_pending = False  # it is; that is the point
    del both.task
    gc.collect()
    assert both.poll() == 1


@pytest.mark.parametrize(("capacity", "total"), [(1, 300), (7, 3000), (1024, 5000)])
@pytest.mark.parametrize("sides", ["one loop", "two loops", "thread to loop", "loop to thread"])
def test_nothing_is_lost(make: Any, capacity: int, total: int, sides: str) -> None:
    both = make(capacity)

    async def produce() -> None:
        for n in range(total):
            await both.put(n)
        both.ring.close()

    async def consume() -> list[int]:
        seen = []
        try:
            while True:
                seen.append(await both.get())
        except RingClosed:
            return seen

    def produce_in_thread() -> None:
        for n in range(total):
            both.ring.put(np.array([n]) if isinstance(both, Numbers) else n, timeout=DEADLINE)
        both.ring.close()

    def consume_in_thread() -> list[int]:
        seen = []
        try:
            while True:
                taken = both.ring.get(timeout=DEADLINE)
                seen.extend(taken.tolist() if isinstance(both, Numbers) else [taken])
        except RingClosed:
            return seen

    async def together() -> list[int]:
        _, seen = await asyncio.gather(produce(), consume())
        return seen

    if sides == "one loop":
        seen = run(together())
    else:
        first = produce_in_thread if sides == "thread to loop" else lambda: run(produce())
        second = consume_in_thread if sides == "loop to thread" else lambda: run(consume())
        _, seen = run_threads([first, second], timeout=100)
    assert seen == list(range(total))


def test_cancelled_again_and_again_nothing_is_lost(make: Any) -> None:
    both = make(3)
    total = 500

    def produce() -> None:
        for n in range(total):
            both.ring.put(np.array([n]) if isinstance(both, Numbers) else n, timeout=DEADLINE)

    async def consume() -> list[int]:
        seen = []
        while len(seen) < total:
            getting = asyncio.ensure_future(both.get())
            await asyncio.sleep(0)
            getting.cancel()
            await asyncio.wait([getting])
            if not getting.cancelled():
                seen.append(getting.result())
        return seen

    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)  # a thread that finds the ring full waits for the other
    try:
        _, seen = run_threads([produce, lambda: run(consume())], timeout=100)
    finally:
        sys.setswitchinterval(before)
    assert seen == list(range(total))


async def test_arguments_are_checked(core: Any) -> None:
    async def take(ring: Any, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            taken += (await ring.aget()).tolist()
        return taken

    with pytest.raises(NoneSignalError):
        await core.SpscRing(1).aput(None)
    ring = core.RecordRing("i8", 2)
    with pytest.raises(TypeError, match="dtype"):
        await ring.aput(np.zeros(1))
    with pytest.raises(ValueError, match="max"):
        await ring.aget(0)
    with pytest.raises(TimeoutError) as late:
        async with asyncio.timeout(0.01):
            await ring.aput(np.arange(5))
    assert late.value.__cause__ is not None
    assert late.value.__cause__.__notes__ == ["aput: 2 of 5 records were put in"]
    view = ring.peek(1)
    with pytest.raises(BufferError, match="aget while a view"):
        await ring.aget()
    del view
    assert (await ring.aget()).tolist() == [0, 1]
    await ring.aput(np.arange(0))
    both = asyncio.gather(ring.aput(np.arange(5)), take(ring, 5))
    assert (await both)[1] == [0, 1, 2, 3, 4]


def test_nothing_happens_before_it_is_awaited(make: Any) -> None:
    both = make(1)
    both.offer(1)
    waiting = both.get()
    assert both.poll() == 1
    waiting.close()


def test_a_ring_is_not_kept_by_who_waited(core: Any) -> None:
    async def main() -> weakref.ref[Any]:
        ring = core.SpscRing(1)
        getting = await parked(ring.aget())
        getting.cancel()
        await asyncio.wait([getting])
        return weakref.ref(ring)

    gone = run(main())
    gc.collect()
    assert gone() is None


def test_what_a_producers_waker_raises_keeps_no_element(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)

    def waker() -> None:
        raise Problem

    both = make(1)
    both.offer(1)
    assert both.ring.arm_producer(waker)
    assert both.poll() == 1
    assert [type(each.exc_value) for each in raised] == [Problem]


def test_an_interrupt_in_a_producers_waker_leaves_through_the_call(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.unraisablehook", pytest.fail)

    def waker() -> None:
        raise KeyboardInterrupt

    both = make(1)
    for call in (both.poll, lambda: run(both.get())):
        both.offer(1)
        assert both.ring.arm_producer(waker)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert len(both.ring) == 0
    assert both.offer(2)
    assert both.poll() == 2


def test_a_disarmed_producer_is_not_called(make: Any) -> None:
    both = make(1)
    both.offer(1)
    assert both.ring.arm_producer(lambda: pytest.fail("it was disarmed"))
    both.ring.disarm_producer()
    assert both.poll() == 1
    assert both.ring.arm_producer(lambda: pytest.fail("there is room")) is False
    for n in (2, 3):
        assert both.offer(n)
        assert both.poll() == n


def test_no_wake_is_lost_between_an_armed_producer_and_a_consumer(make: Any) -> None:
    both = make(2)
    total = 5000

    def produce() -> None:
        sent = 0
        while sent < total:
            if both.offer(sent):
                sent += 1
                continue
            bell = threading.Event()
            if both.ring.arm_producer(bell.set):
                assert bell.wait(DEADLINE), f"woken no more after {sent}"

    def consume() -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            taken = both.ring.get(timeout=DEADLINE)
            seen.extend(taken.tolist() if isinstance(both, Numbers) else [taken])
        return seen

    assert run_threads([produce, consume], timeout=100)[1] == list(range(total))


# -- a loop that was closed under a coroutine that waits -------------------------------------------


def abandon(call: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
    """Let a task wait in ``call`` on a loop, and close the loop; return the task."""

    async def wait() -> asyncio.Task[Any]:
        return await parked(call())

    loop = asyncio.new_event_loop()
    try:
        task = loop.run_until_complete(wait())
    finally:
        loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "garbage"])
@pytest.mark.parametrize("brought", [True, False], ids=["brought", "nothing"])
def test_the_next_consumer_is_served_after_a_closed_loop(
    make: Any, kept: bool, brought: bool
) -> None:
    both = make(2)
    task = abandon(both.get)
    if not kept:
        del task
        gc.collect()
    if brought:
        assert both.offer(1)
    else:
        assert both.poll() is None
        assert both.offer(1)
    assert run(both.get()) == 1
    if kept:
        task.get_coro().close()  # type: ignore[union-attr]
        del task
    waiting = start_thread(lambda: run(both.get()))
    assert both.offer(2)
    waiting.join()
    assert both.offer(3)
    assert both.poll() == 3


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "garbage"])
def test_the_next_producer_is_served_after_a_closed_loop(make: Any, kept: bool) -> None:
    both = make(1)
    assert both.offer(1)
    task = abandon(lambda: both.put(2))
    if not kept:
        del task
        gc.collect()
    assert both.poll() == 1
    run(both.put(3))
    if kept:
        task.get_coro().close()  # type: ignore[union-attr]
    assert both.poll() == 3
    assert both.poll() is None


def test_a_coroutine_that_lost_its_side_does_not_leave_that_of_another(make: Any) -> None:
    both = make(2)
    lost = abandon(both.get)

    async def main() -> None:
        waiting = await parked(both.get())
        lost.get_coro().close()  # type: ignore[union-attr]
        with pytest.raises(OverlappingCallsError):
            both.poll()
        both.offer(1)
        assert await waiting == 1

    run(main())


def test_one_of_several_takes_the_place_after_a_closed_loop(make: Any) -> None:
    for _ in range(50):
        both = make(1)
        both.offer(0)
        task = abandon(lambda both=both: both.put(1))  # type: ignore[misc]
        assert both.poll() == 0
        put = list[bool]()

        def offer(both: Any = both, put: list[bool] = put) -> None:
            with contextlib.suppress(OverlappingCallsError):
                put.append(both.offer(2))

        run_threads([offer] * 4)
        assert put.count(True) == 1
        assert (both.poll(), both.poll()) == (2, None)
        task.get_coro().close()  # type: ignore[union-attr]
