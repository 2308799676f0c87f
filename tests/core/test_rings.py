"""What both rings do, sentence by sentence: bounds, ends, threads, coroutines, wakers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from rstreams_fast.errors import OverlappingCallsError, RingClosed
from tests.helpers import DEADLINE, Problem, run_threads, start_thread, wait_gone

Call = Callable[[], Any]


class Objects:
    """An ``SpscRing`` of small ints, as the tests below use it."""

    def __init__(self, core: Any, capacity: int) -> None:
        self.ring = ring = core.SpscRing(capacity)
        self.offer, self.poll, self.put = ring.offer, ring.poll, ring.put
        self.get, self.aput, self.aget = ring.get, ring.aput, ring.aget

    def ways_in(self, n: int) -> dict[str, Call]:
        ring = self.ring
        return {
            "offer": lambda: ring.offer(n),
            "offer_many": lambda: ring.offer_many([n]),
            "put": lambda: ring.put(n, 0),
        }

    def ways_out(self) -> dict[str, Call]:
        ring = self.ring
        return {"poll": ring.poll, "poll_many": lambda: ring.poll_many(1), "get": ring.get}

    def touch_producer(self) -> None:
        self.ring.offer_many([])


class Numbers:
    """A ``RecordRing``, one record at a time."""

    def __init__(self, core: Any, capacity: int) -> None:
        self.ring = core.RecordRing("i8", capacity)

    def offer(self, n: int) -> bool:
        return self.ring.write(np.array([n])) == 1

    def poll(self) -> int | None:
        taken = self.ring.read(1)
        return int(taken[0]) if len(taken) else None

    def put(self, n: int, timeout: float | None = None) -> None:
        self.ring.put(np.array([n]), timeout)

    def get(self, timeout: float | None = None) -> int:
        return int(self.ring.get(1, timeout)[0])

    def aput(self, n: int) -> Awaitable[Any]:
        return self.ring.aput(np.array([n]))

    async def aget(self) -> int:
        return int((await self.ring.aget(1))[0])

    def ways_in(self, n: int) -> dict[str, Call]:
        ring, record = self.ring, np.array([n])

        def in_place() -> None:
            ring.reserve(1)[:] = n
            ring.commit(1)

        return {
            "write": lambda: ring.write(record),
            "put": lambda: ring.put(record, 0),
            "reserve": in_place,
        }

    def ways_out(self) -> dict[str, Call]:
        ring = self.ring

        def in_place() -> list[int]:
            taken = ring.peek(1).tolist()
            ring.release(1)
            return taken  # type: ignore[no-any-return]

        return {
            "read": lambda: ring.read(1),
            "read_into": lambda: ring.read_into(np.zeros(1, "i8")),
            "get": lambda: ring.get(1),
            "peek": in_place,
        }

    def touch_producer(self) -> None:
        self.ring.commit(0)


KINDS = {"objects": Objects, "records": Numbers}
WAYS = [
    *(("objects", name) for name in ("offer", "offer_many", "put", "close")),
    *(("records", name) for name in ("write", "put", "reserve", "close")),
]
WAYS_OUT = [
    *(("objects", name) for name in ("poll", "poll_many", "get", "close")),
    *(("records", name) for name in ("read", "read_into", "get", "peek", "close")),
]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, core: Any) -> Callable[[int], Any]:
    return lambda capacity: KINDS[request.param](core, capacity)


# -- threads --------------------------------------------------------------------------------------
def test_timeouts(make: Any) -> None:
    both, full = make(1), make(1)
    full.put(1, 0)
    for call, words in ((both.get, "stayed empty"), (lambda s: full.put(2, s), "stayed full")):
        for timeout in (0, 0.0, 0.03):
            begun = time.monotonic()
            with pytest.raises(TimeoutError, match=words):
                call(timeout)
            assert time.monotonic() - begun >= timeout
    assert full.get(float("inf")) == 1
    both.put(3, 1e300)
    assert both.get(10**30) == 3


def start_parked(call: Call, touch: Call) -> Any:
    """Start a thread that waits in ``call``; return when ``touch`` is refused therefore."""

    def insist() -> Any:
        while True:
            with contextlib.suppress(OverlappingCallsError):  # ``touch`` was in its way
                return call()

    thread = start_thread(insist)
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            touch()
        except OverlappingCallsError:
            return thread
    raise AssertionError("nobody waits")


@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_a_parked_get_is_woken(core: Any, kind: str, way: str) -> None:
    both = KINDS[kind](core, 2)
    getting = start_parked(both.get, both.poll)
    {**both.ways_in(1), "close": both.ring.close}[way]()
    if way == "close":
        with pytest.raises(RingClosed):
            getting.result()
    else:
        assert getting.result() == 1


@pytest.mark.parametrize(("kind", "way"), WAYS_OUT)
def test_a_parked_put_is_woken(core: Any, kind: str, way: str) -> None:
    both = KINDS[kind](core, 1)
    both.offer(1)
    putting = start_parked(lambda: both.put(2), both.touch_producer)
    if way == "close":
        both.ring.close()
        with pytest.raises(RingClosed):
            putting.result()
        assert both.get() == 1
        with pytest.raises(RingClosed):
            both.get()
    else:
        assert both.ways_out()[way]() in (1, [1])
        putting.result()
        assert both.poll() == 2


def test_a_get_that_timed_out_leaves_no_wake_behind(make: Any) -> None:
    both = make(1)
    for n in range(1, 20):
        with pytest.raises(TimeoutError):
            both.get(0.001)
        both.offer(n)
        assert both.get() == n


def test_overlapping_calls_on_one_side_are_refused(make: Any) -> None:
    both = make(1)
    getting = start_parked(both.get, both.poll)
    for call in (*both.ways_out().values(), lambda: both.ring.arm(pytest.fail)):
        with pytest.raises(OverlappingCallsError, match="consumer side"):
            call()
    both.offer(1)  # the other side is free
    assert getting.result() == 1
    both.offer(2)
    putting = start_parked(lambda: both.put(3), both.touch_producer)
    arm = both.ring.arm_producer
    for call in (*both.ways_in(4).values(), both.touch_producer, lambda: arm(pytest.fail)):
        with pytest.raises(OverlappingCallsError, match="producer side"):
            call()
    assert both.poll() == 2
    putting.result()
    assert both.poll() == 3


# -- coroutines: parked without a thread, cancelled without a loss --------------------------------
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


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("by", ["coroutine", "call", "thread"])
async def test_who_awaits_is_woken(make: Any, by: str) -> None:
    async def make_call(call: Callable[..., Any], twin: Callable[..., Any], *arguments: int) -> Any:
        if by == "coroutine":
            return await twin(*arguments)
        return call(*arguments) if by == "call" else await asyncio.to_thread(call, *arguments)

    both = make(1)
    getting = await parked(both.aget())
    await make_call(both.offer, both.aput, 1)
    assert await getting == 1
    both.offer(1)
    putting = await parked(both.aput(2))
    assert await make_call(both.poll, both.aget) == 1
    await putting
    assert both.poll() == 2


@pytest.mark.parametrize("error", [None, Problem()])
async def test_the_end_comes_after_what_was_put_in(make: Any, error: Any) -> None:
    both = make(4)
    both.offer(1)
    both.ring.close(error)
    assert await both.aget() == 1
    for _ in range(2):
        with pytest.raises(type(error) if error else RingClosed):
            await both.aget()
    with pytest.raises(RingClosed, match="aput on a closed ring"):
        await both.aput(2)


@pytest.mark.parametrize("where", ["here", "in a thread"])
async def test_close_wakes_both_sides(make: Any, where: str) -> None:
    empty, full = make(1), make(1)
    full.offer(1)
    tasks = [await parked(empty.aget()), await parked(full.aput(2))]
    for both in (empty, full):
        if where == "here":
            both.ring.close()
        else:
            await asyncio.to_thread(both.ring.close)
    for task in tasks:
        with pytest.raises(RingClosed):
            await task
    assert await full.aget() == 1
    with pytest.raises(RingClosed):
        await full.aget()


async def test_who_awaits_is_inside(make: Any) -> None:
    both = make(1)
    getting = await parked(both.aget())
    for call in (both.poll, lambda: both.ring.arm(pytest.fail), both.ring.get):
        with pytest.raises(OverlappingCallsError, match="consumer side"):
            call()
    with pytest.raises(OverlappingCallsError):
        await both.aget()
    both.offer(1)
    assert await getting == 1
    both.offer(1)
    putting = await parked(both.aput(2))
    for call in (lambda: both.offer(3), lambda: both.ring.arm_producer(pytest.fail)):
        with pytest.raises(OverlappingCallsError, match="producer side"):
            call()
    with pytest.raises(OverlappingCallsError):
        await both.aput(3)
    assert both.poll() == 1
    await putting
    assert both.poll() == 2


async def test_disarm_leaves_alone_who_awaits(make: Any) -> None:
    both = make(1)
    getting = await parked(both.aget())
    both.ring.disarm()
    both.offer(1)
    assert await getting == 1
    both.offer(2)
    putting = await parked(both.aput(3))
    both.ring.disarm_producer()
    assert both.poll() == 2
    await putting
    assert both.poll() == 3


@pytest.mark.parametrize("woken", [False, True])
async def test_a_cancelled_coroutine_takes_nothing_and_puts_nothing_in(
    make: Any, woken: bool
) -> None:
    both = make(1)
    for n in range(1, 5):
        getting = await parked(both.aget())
        if woken:
            both.offer(n)
        await cancelled(getting)
        assert len(both.ring) == woken
        if not woken:
            both.offer(n)
        putting = await parked(both.aput(99))
        if woken:
            assert both.poll() == n
        await cancelled(putting)
        assert (both.poll(), len(both.ring)) == (None if woken else n, 0)


async def test_after_a_cancelled_wait_a_thread_may_wait(make: Any) -> None:
    both = make(1)
    await cancelled(await parked(both.aget()))
    thread = start_thread(lambda: both.get(DEADLINE))
    await both.aput(1)
    assert await asyncio.to_thread(thread.result) == 1
    both.offer(1)
    await cancelled(await parked(both.aput(2)))
    assert both.poll() == 1
    assert both.offer(3)
    assert await both.aget() == 3


def test_a_coroutine_that_is_dropped_leaves_its_side(make: Any) -> None:
    both = make(1)
    waiting = both.aget()
    with asyncio.Runner() as runner:

        async def begin() -> None:
            assert isinstance(waiting.send(None), asyncio.Future)

        runner.run(begin())
        with pytest.raises(OverlappingCallsError):
            both.poll()
        waiting.close()
        assert both.poll() is None
    both.offer(1)  # whose loop is gone
    assert both.poll() == 1


def test_nothing_happens_before_it_is_awaited(make: Any) -> None:
    both = make(1)
    both.offer(1)
    waiting = both.aget()
    assert both.poll() == 1
    waiting.close()


def test_a_ring_is_not_kept_by_who_waited(core: Any) -> None:
    async def main() -> weakref.ref[Any]:
        ring = core.SpscRing(1)
        await cancelled(await parked(ring.aget()))
        return weakref.ref(ring)

    wait_gone(run(main()))


@pytest.mark.parametrize(("capacity", "total"), [(1, 300), (7, 3000), (1024, 5000)])
@pytest.mark.parametrize(
    "sides", ["thread to thread", "one loop", "two loops", "thread to loop", "loop to thread"]
)
def test_nothing_is_lost_and_nothing_doubled(
    make: Any, capacity: int, total: int, sides: str
) -> None:
    both = make(capacity)

    async def produce() -> None:
        for n in range(total):
            await both.aput(n)
        both.ring.close()

    async def consume() -> list[int]:
        seen = []
        with contextlib.suppress(RingClosed):
            while True:
                seen.append(await both.aget())
        return seen

    def produce_in_thread() -> None:
        for n in range(total):
            both.put(n, DEADLINE)
        both.ring.close()

    def consume_in_thread() -> list[int]:
        seen = []
        with contextlib.suppress(RingClosed):
            while True:
                seen.append(both.get(DEADLINE))
        return seen

    async def together() -> list[Any]:
        return await asyncio.gather(produce(), consume())

    if sides == "one loop":
        _, seen = run(together())
    else:
        first = produce_in_thread if sides.startswith("thread") else lambda: run(produce())
        second = consume_in_thread if "thread" in sides[4:] else lambda: run(consume())
        _, seen = run_threads([first, second], timeout=100)
    assert seen == list(range(total))


# -- a loop that was closed under a coroutine that waits ------------------------------------------
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
    task = abandon(both.aget)
    if not kept:
        del task
        gc.collect()
    assert brought or both.poll() is None
    assert both.offer(1)
    assert run(both.aget()) == 1
    if kept:
        task.get_coro().close()  # type: ignore[union-attr]
        del task
    waiting = start_thread(lambda: run(both.aget()))
    assert both.offer(2)
    assert waiting.result() == 2
    assert (both.offer(3), both.poll()) == (True, 3)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "garbage"])
def test_the_next_producer_is_served_after_a_closed_loop(make: Any, kept: bool) -> None:
    both = make(1)
    assert both.offer(1)
    task = abandon(lambda: both.aput(2))
    if not kept:
        del task
        gc.collect()
    assert both.poll() == 1
    run(both.aput(3))
    if kept:
        task.get_coro().close()  # type: ignore[union-attr]
    assert [both.poll(), both.poll()] == [3, None]


def test_a_coroutine_that_lost_its_side_does_not_leave_that_of_another(make: Any) -> None:
    both = make(2)
    lost = abandon(both.aget)

    async def main() -> None:
        waiting = await parked(both.aget())
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
        task = abandon(lambda both=both: both.aput(1))  # type: ignore[misc]
        assert both.poll() == 0
        put = list[bool]()

        def offer(both: Any = both, put: list[bool] = put) -> None:
            with contextlib.suppress(OverlappingCallsError):
                put.append(both.offer(2))

        run_threads([offer] * 4)
        assert put.count(True) == 1
        assert (both.poll(), both.poll()) == (2, None)
        task.get_coro().close()  # type: ignore[union-attr]


# -- wakers ---------------------------------------------------------------------------------------
class Waker:
    """What is armed, and must not be called."""

    def __call__(self) -> None:
        pytest.fail("it was disarmed")


def test_a_disarmed_waker_is_not_called_and_not_kept(make: Any) -> None:
    both = make(1)
    for arm, disarm, call in (
        (both.ring.arm, both.ring.disarm, lambda: both.offer(1)),
        (both.ring.arm_producer, both.ring.disarm_producer, both.poll),
    ):
        waker = Waker()
        gone = weakref.ref(waker)
        assert arm(waker)
        del waker
        disarm()
        assert gone() is None
        assert call() in (True, 1)


@pytest.mark.parametrize("drop", ["disarm", "arm", "disarm_producer", "arm_producer"])
def test_a_waker_whose_destructor_uses_the_ring(make: Any, drop: str) -> None:
    """The ring has forgotten it by then."""

    class Side(Waker):
        def __del__(self) -> None:
            both.ring.close()  # which wakes both sides

    both = make(1)
    if drop.endswith("producer"):
        both.offer(1)
        assert both.ring.arm_producer(Side().__call__)
    else:
        assert both.ring.arm(Side().__call__)
    getattr(both.ring, drop)(*[int] if drop.startswith("arm") else [])
    assert both.ring.closed


def test_get_and_put_disarm_and_park_in_place_of_an_armed_waker(make: Any) -> None:
    full = make(1)
    full.offer(1)
    assert full.ring.arm_producer(Waker())
    with pytest.raises(TimeoutError):
        full.put(2, 0)
    assert full.poll() == 1
    both = make(2)
    assert both.ring.arm(Waker())
    with pytest.raises(TimeoutError):
        both.get(0)
    both.offer(1)
    assert both.get() == 1
    assert both.ring.arm(int)  # called where the put is faster than the get
    consumer = start_thread(lambda: both.get(DEADLINE))
    both.put(2, DEADLINE)
    assert consumer.result() == 2


def test_what_a_waker_raises_leaves_through_the_offer(make: Any) -> None:
    def waker() -> None:
        raise Problem

    both = make(2)
    assert both.ring.arm(waker)
    with pytest.raises(Problem):
        both.offer(1)
    assert both.poll() == 1


@pytest.mark.parametrize("error", [Problem, KeyboardInterrupt])
def test_what_a_producers_waker_raises_keeps_no_element(
    make: Any, unraisable: list[Any], error: type[BaseException]
) -> None:
    """An interrupt leaves through the call, another error goes to the hook."""

    def waker() -> None:
        raise error

    both = make(1)
    for call in (both.poll, lambda: run(both.aget())):
        both.offer(1)
        assert both.ring.arm_producer(waker)
        with pytest.raises(error) if error is KeyboardInterrupt else contextlib.nullcontext():
            assert call() == 1
        assert len(both.ring) == 0
    assert [type(each.exc_value) for each in unraisable] == [Problem] * (2 * (error is Problem))
    assert both.offer(2)
    assert both.poll() == 2


@pytest.mark.parametrize("side", ["consumer", "producer"])
def test_no_wake_is_lost_between_two_threads(make: Any, side: str) -> None:
    """The armed thread arms again while the other one still calls its last waker."""
    both = make(3)
    total = 5000

    def wait(arm: Callable[[Call], bool], at: int) -> None:
        bell = threading.Event()
        if arm(bell.set):
            assert bell.wait(DEADLINE), f"woken no more after {at}"

    def produce() -> None:
        for n in range(1, total + 1):
            while side == "producer" and not both.offer(n):
                wait(both.ring.arm_producer, n)
            if side == "consumer":
                both.put(n, DEADLINE)

    def consume() -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            if side == "producer":
                seen.append(both.get(DEADLINE))
            elif (taken := both.poll()) is not None:
                seen.append(taken)
            else:
                wait(both.ring.arm, len(seen))
        return seen

    assert run_threads([produce, consume], timeout=100)[1] == list(range(1, total + 1))
