"""The window of overlapping calls, sentence by sentence."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import gc
import logging
import math
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

from rstreams_fast.errors import RingClosed
from tests.helpers import DEADLINE, Counted, Element, Problem, wait_gone

HOUR = 3600.0

# Without a GIL the collector of another thread may hold anything for a moment: a task, which then
# has one call only, or what a call leaves, which is then dropped too late to be seen.
one_collector = pytest.mark.thread_unsafe

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Harness:
    """A window in its loop: everything happens in callbacks of the loop, as it must."""

    def __init__(self, core: Any, fn: Callable[..., Any], **options: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.ready_calls = 0
        options = {"concurrency": 4, "capacity": 8} | options
        self.on_ready: Callable[[], None] = self.changed.set
        self.window = core.CallWindow(fn, loop=self.loop, on_ready=self._on_ready, **options)

    def _on_ready(self) -> None:
        self.ready_calls += 1
        self.on_ready()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run ``function`` in a callback of the loop, outside of any task."""
        outcome: asyncio.Future[Any] = self.loop.create_future()

        def run() -> None:
            try:
                outcome.set_result(function(*arguments))
            except Exception as raised:
                outcome.set_exception(raised)

        self.loop.call_soon(run)
        return await outcome

    async def submit(self, *items: Any) -> int:
        return int(await self.call(self.window.submit_many, list(items)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def run(self, items: list[Any]) -> list[Any]:
        """Submit everything, take everything."""
        done: asyncio.Future[list[Any]] = self.loop.create_future()
        results: list[Any] = []
        position = 0

        def pump() -> None:
            nonlocal position
            while True:
                taken = self.window.take(3)
                results.extend(taken)
                count = self.window.submit_many(items, position)
                position += count
                if self.window.failure is not None:
                    if not done.done():
                        done.set_exception(self.window.failure[1])
                    return
                if not taken and not count:
                    break
            if len(results) == len(items) and not done.done():
                done.set_result(results)

        self.on_ready = pump
        self.loop.call_soon(pump)
        async with asyncio.timeout(DEADLINE):
            return await done

    async def failure(self, *items: Any) -> Any:
        """Submit all; return the first item whose call failed, and its error."""
        await self.submit(*items)
        await self.until(lambda: self.window.failure is not None)
        return self.window.failure

    async def idle(self) -> None:
        """Wait until no call runs."""
        await self.until(lambda: self.window.running == 0)

    async def cancel(self) -> None:
        """Cancel, and wait for the ends of all calls."""
        await self.call(self.window.cancel)
        await self.idle()

    @property
    def figures(self) -> tuple[int, int, int, int]:
        window = self.window
        return window.running, window.pending, window.ready, window.permits.pending


@pytest.fixture(autouse=True)
def _no_complaint(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A complaint of the loop or of asyncio fails the test."""
    yield
    gc.collect()
    said = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert [record for record in said if record.levelno >= logging.ERROR] == []


class Gates:
    """An async function whose calls wait, each for its own gate."""

    def __init__(self) -> None:
        self.gates: dict[Any, asyncio.Future[Any]] = {}
        self.calls: list[Any] = []

    async def __call__(self, item: Any) -> Any:
        self.calls.append(item)
        gate = asyncio.get_running_loop().create_future()
        self.gates[item] = gate
        return await gate

    def open(self, *items: Any) -> None:
        for item in items:
            self.gates.pop(item).set_result(f"r{item}")


async def echo(item: Any) -> Any:
    return item


async def steps(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def later(item: Any) -> Any:
    await steps(1)
    return item


async def mixed(item: Any) -> Any:
    await steps(item % 3)
    return item


# -- results --------------------------------------------------------------------------------------
async def test_ordered_results_wait_for_the_first(core: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates)
    assert await harness.submit(1, 2, 3) == 3
    assert harness.figures == (3, 3, 0, 1)
    gates.open(3, 2)
    await harness.until(lambda: harness.window.running == 1)
    assert harness.figures == (1, 3, 0, 3)
    assert harness.window.take(9) == []
    gates.open(1)
    await harness.until(lambda: harness.window.ready == 3)
    assert harness.window.take(2) == ["r1", "r2"]
    assert harness.figures == (0, 1, 1, 4)
    assert harness.window.take(2) == ["r3"]
    assert harness.figures == (0, 0, 0, 4)


async def test_spread_gives_positional_arguments(core: Any) -> None:
    async def call(*arguments: Any) -> Any:
        return arguments

    harness = Harness(core, call, spread=True)
    await harness.submit((1, 2), (), [3])
    assert harness.window.take(5) == [(1, 2), (), (3,)]


async def test_what_cannot_be_awaited_is_a_type_error_that_names_the_function(core: Any) -> None:
    def not_async(item: Any) -> Any:
        return item

    harness = Harness(core, not_async)
    assert await harness.submit(1, 2) == 1
    item, error = harness.window.failure
    assert (item, type(error)) == (1, TypeError)
    assert "not_async returned int" in str(error)


# -- ends -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("ahead", [0, 2])
async def test_the_end_of_each_call_is_told_once(core: Any, ahead: int, keeps: bool) -> None:
    kept: list[Any] = []

    async def fn(item: int) -> int:
        if keeps:
            kept.append(asyncio.current_task())
        await steps(item % 4)
        return item

    harness, ends = Harness(core, fn, ahead=ahead), Counted()
    harness.window.call_with(fn, ends.add)
    assert await harness.run(list(range(100))) == list(range(100))
    assert ends.value == 100


@pytest.mark.parametrize("when", ["at once", "later", "before there is a coroutine"])
async def test_the_end_of_a_call_that_fails_is_told(core: Any, when: str) -> None:
    async def fails(item: str) -> None:
        await steps(item == "later")
        raise Problem(item)

    def fn(item: str) -> Awaitable[None]:
        if item == "before there is a coroutine":
            raise Problem(item)
        return fails(item)

    harness, ends = Harness(core, fn), Counted()
    harness.window.call_with(fn, ends.add)
    await harness.failure(when)
    assert await harness.submit(when) == 0
    assert ends.value == 1


async def test_the_end_of_cancelled_calls_is_told_and_nothing_of_those_in_line(core: Any) -> None:
    gates, ends = Gates(), Counted()
    harness = Harness(core, gates, concurrency=2, ahead=2)
    harness.window.call_with(gates, ends.add)
    await harness.submit(1, 2, 3, 4)
    harness.window.cancel()
    await harness.idle()
    assert (ends.value, gates.calls, harness.window.pending) == (2, [1, 2], 0)


@pytest.mark.parametrize("ahead", [0, 4])
async def test_calls_go_on_with_another_function_and_those_that_run_with_theirs(
    core: Any, ahead: int
) -> None:
    first, ends = Gates(), Counted()
    harness = Harness(core, first, concurrency=2, ahead=ahead)
    window = harness.window
    await harness.submit(1, 2, 3)

    async def exchange(item: int) -> str:
        window.call_with(echo, ends.add)  # while it is called itself
        return f"last {item}"

    window.call_with(exchange)
    first.open(1)
    await harness.until(lambda: window.running == 1)
    if window.started == 2:  # none was ahead
        await harness.submit(3)
    before = ends.value
    first.open(2)
    await harness.until(lambda: window.ready == 3)
    assert window.take(3) == ["r1", "r2", "last 3"]
    assert ends.value == before + 1
    await harness.submit(4)
    assert (window.take(1), ends.value) == ([4], before + 2)
    with pytest.raises(TypeError, match="fn must be callable"):
        window.call_with(None)


# -- from ring to ring ----------------------------------------------------------------------------
def filled(core: Any, capacity: int, *elements: Any) -> Any:
    ring = core.SpscRing(capacity)
    assert ring.offer_many(list(elements)) == len(elements)
    return ring


async def test_elements_leave_the_ring_as_there_is_room_for_their_calls(core: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates, concurrency=2, capacity=3)
    ring = filled(core, 16, *range(10))

    def submit(most: int) -> Any:
        return harness.call(harness.window.submit_from, ring, most)

    assert await submit(0) == 0
    assert await submit(1) == 1
    assert await submit(9) == 1  # concurrency
    assert (gates.calls, len(ring)) == ([0, 1], 8)
    gates.open(1)
    await harness.until(lambda: harness.window.running == 1)
    assert await submit(9) == 1
    gates.open(2)
    await harness.until(lambda: harness.window.running == 1)
    assert await submit(9) == 0  # capacity
    assert (harness.figures, len(ring)) == ((1, 3, 0, 1), 7)
    gates.open(0)
    await harness.until(lambda: harness.window.ready == 3)
    assert harness.window.take(9) == ["r0", "r1", "r2"]
    harness.window.cancel()
    assert await submit(9) == 0
    assert len(ring) == 7


async def test_an_element_that_has_no_place_in_line_stays_in_the_ring(core: Any) -> None:
    kept = []
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fn(item: int) -> int:
        kept.append(asyncio.current_task())  # so that no other call can have it
        await gate
        return item

    harness = Harness(core, fn, concurrency=1, capacity=8, ahead=1)
    ring = filled(core, 16, *range(3))
    await harness.call(harness.window.submit_from, ring, 2)
    gate.set_result(None)
    await harness.call(harness.window.submit_from, ring, 9)  # the end has not been told yet
    for ready in (1, 2, 3):
        await harness.until(lambda ready=ready: harness.window.ready >= ready)
        await harness.call(harness.window.submit_from, ring, 9)
    assert harness.window.take(9) == [0, 1, 2]


async def test_after_a_failure_the_rest_stays_in_the_ring(core: Any) -> None:
    async def fn(item: Any) -> Any:
        if item == 3:
            raise Problem
        return item

    harness = Harness(core, fn)
    ring = filled(core, 16, *range(10))
    assert await harness.call(harness.window.submit_from, ring, 10) == 4
    assert (harness.window.failure[0], len(ring)) == (3, 6)


@pytest.mark.parametrize("ordered", [True, False])
async def test_results_move_into_a_ring_as_far_as_they_fit_and_are_no_none(
    core: Any, ordered: bool
) -> None:
    async def fn(item: Any) -> Any:
        return None if item == 4 else item

    harness = Harness(core, fn, ordered=ordered)
    await harness.submit(*range(6))
    below = core.SpscRing(2)

    def moved(*most: int) -> list[Any]:
        """How many are moved each time, and what there is then."""
        return [*(harness.window.take_into(below, n) for n in most), below.poll_many(9)]

    assert moved(0, 1, 9) == [0, 1, 1, [0, 1]]
    assert moved(2**70) == [2, [2, 3]]
    assert (moved(9), harness.figures) == ([0, []], (0, 2, 2, 4))
    assert harness.window.take(1) == [None]
    assert (moved(9), harness.figures) == ([1, [5]], (0, 0, 0, 4))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("words", [{}, {"dedupe": True}, {"key": lambda k: k % 3}, {"ahead": 3}])
async def test_results_come_with_the_numbers_of_their_items(
    core: Any, ordered: bool, words: dict[str, Any]
) -> None:
    async def fn(item: int) -> int:
        if item % 3:
            await asyncio.sleep(0.001 * (item % 5))
        return -item

    items = [k * 7 % 50 for k in range(100)]
    harness = Harness(core, fn, ordered=ordered, **words)
    found: dict[int, int] = {}
    given = 0
    while len(found) < len(items):
        given += await harness.call(harness.window.submit_many, items, given)
        numbers, results = harness.window.take_numbered(3)
        assert len(numbers) == len(results) <= 3
        found.update(zip(numbers, results, strict=True))
        if not numbers:
            await harness.until(lambda: harness.window.ready > 0)
    assert [found[number] for number in range(100)] == [-item for item in items]
    assert not ordered or list(found) == sorted(found)
    assert harness.window.take_numbered(9) == ([], [])
    with pytest.raises(ValueError, match="max"):
        harness.window.take_numbered(-1)


async def test_one_that_waits_at_the_ring_may_cancel_the_window(core: Any) -> None:
    harness = Harness(core, echo)
    await harness.submit(1, 2, 3)
    below = core.SpscRing(8)
    assert below.arm(harness.window.cancel)
    assert harness.window.take_into(below, 2) == 2
    assert below.poll_many(9) == [1, 2]
    assert harness.window.pending == 0
    harness = Harness(core, echo)
    above = filled(core, 2, 1, 2)
    assert above.arm_producer(harness.window.cancel)
    assert await harness.call(harness.window.submit_from, above, 9) == 1
    assert harness.window.started == 0


async def test_rings_and_counts_are_checked(core: Any) -> None:
    harness = Harness(core, echo)
    ring = core.SpscRing(2)
    for call in (harness.window.submit_from, harness.window.take_into):
        for most in (-1, 1.0, True, "1"):
            with pytest.raises((TypeError, ValueError), match="max"):
                await harness.call(call, ring, most)
        for wrong in (None, [1, 2]):
            with pytest.raises(TypeError):
                await harness.call(call, wrong, 1)
    await harness.submit(1)
    ring.close()
    with pytest.raises(RingClosed):
        harness.window.take_into(ring, 1)
    assert harness.window.take(1) == [1]
    with pytest.raises(RuntimeError, match="submit_from must be called outside of tasks"):
        harness.window.submit_from(ring, 1)


async def test_a_call_takes_its_permit_when_it_first_suspends(core: Any) -> None:
    opened = asyncio.get_running_loop().create_future()
    seen: list[int] = []

    async def call(item: int) -> int:
        seen.append(harness.window.permits.pending)
        if item < 0:
            raise ValueError(item)
        return item if item % 2 else await opened

    harness = Harness(core, call, concurrency=3)
    await harness.submit(1, 2, 3, 4, -1)
    assert (seen, harness.window.permits.pending) == ([3, 3, 2, 2, 1], 1)
    opened.set_result(7)
    await harness.idle()
    assert harness.window.permits.pending == 3


async def test_arguments_are_checked(core: Any) -> None:
    loop = asyncio.get_running_loop()

    def make(fn: Any = echo, **options: Any) -> Any:
        options = {"concurrency": 1, "capacity": 1} | options
        return core.CallWindow(fn, loop=loop, on_ready=print, **options)

    for options, raises, word in [
        ({"fn": 3}, TypeError, "fn must be callable"),
        ({"concurrency": 0}, ValueError, "concurrency"),
        ({"concurrency": True}, TypeError, "concurrency"),
        ({"capacity": 0}, ValueError, "capacity"),
        ({"capacity": 2.0}, TypeError, "capacity"),
        ({"capacity": 2**31 + 1}, ValueError, "capacity"),
        ({"key": "id"}, TypeError, "key must be callable, got str"),
        *(({"patience": n}, ValueError, "patience must be") for n in (-1, math.nan, math.inf)),
        *(({"patience": n}, TypeError, "patience must be") for n in (True, "1", None)),
    ]:
        with pytest.raises(raises, match=word):
            make(**options)
    harness = Harness(core, echo)
    for items in ({1}, "ab", iter([1])):
        with pytest.raises(TypeError, match="items must be a list or tuple"):
            await harness.call(harness.window.submit_many, items)
    for start, raises in [(-1, ValueError), (1.0, TypeError)]:
        with pytest.raises(raises, match="start"):
            await harness.call(harness.window.submit_many, [1], start)
    for count, raises in [(-1, ValueError), ("1", TypeError)]:
        with pytest.raises(raises, match="max"):
            harness.window.take(count)
    with pytest.raises(TypeError, match="live object"):
        copy.copy(harness.window)


async def test_it_is_for_callbacks_of_its_loop(core: Any) -> None:
    harness = Harness(core, echo)
    with pytest.raises(RuntimeError, match="outside of tasks"):
        harness.window.submit_many([1])
    with pytest.raises(RuntimeError, match="thread of the running loop"):
        await harness.loop.run_in_executor(None, harness.window.submit_many, [1])
    assert harness.window.pending == 0

    async def nested(_: Any) -> Any:
        try:
            harness.window.submit_many([2])
        except RuntimeError as refused:
            return str(refused)

    harness = Harness(core, nested)
    await harness.submit(1)
    assert "outside of tasks" in harness.window.take(1)[0]


# -- dedupe ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("ordered", [True, False])
async def test_equal_items_in_flight_share_a_call(core: Any, ordered: bool) -> None:
    gates = Gates()
    harness = Harness(core, gates, dedupe=True, ordered=ordered, concurrency=2, capacity=6)
    window = harness.window
    assert await harness.submit("a", "b", "a", "a", "c", "b") == 4
    assert gates.calls == ["a", "b"]
    assert harness.figures == (2, 4, 0, 0)
    gates.open("a")
    await harness.until(lambda: window.running == 1)
    assert window.take(9) == (["ra"] if ordered else ["ra"] * 3)
    gates.open("b")
    await harness.idle()
    assert window.take(9) == (["rb", "ra", "ra"] if ordered else ["rb"])
    assert await harness.submit("a") == 1  # no longer in flight: a new call
    assert (gates.calls, window.started) == (["a", "b", "a"], 3)
    await harness.cancel()


async def test_items_without_hash_or_comparison_have_no_equals(core: Any) -> None:
    class Odd:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise Problem("comparison")

    harness = Harness(core, later, dedupe=True)
    items = [[1], [1], Odd(), Odd(), {}]
    taken = await harness.run(items)
    assert [x is y for x, y in zip(taken, items, strict=True)] == [True] * 5
    assert harness.window.started == 5
    assert harness.window.failure is None


async def test_an_item_whose_hash_begins_to_raise_holds_nobody_up(core: Any) -> None:
    hashes = True

    class Odd:
        def __hash__(self) -> int:
            if not hashes:
                raise Problem("hash")
            return id(self)

    async def fn(item: Any) -> Any:
        nonlocal hashes
        await asyncio.sleep(0)
        hashes = False
        return item

    harness = Harness(core, fn, dedupe=True)
    items = [Odd(), Odd(), Odd()]
    taken = await harness.run(items)
    assert [x is y for x, y in zip(taken, items, strict=True)] == [True] * 3
    assert harness.figures == (0, 0, 0, 4)


async def test_a_hash_that_submits_is_refused(core: Any) -> None:
    """It is called between the look at what room there is and its use."""
    refused: list[str] = []

    class Submitting:
        def __hash__(self) -> int:
            with pytest.raises(RuntimeError, match="outside of tasks and of calls") as raised:
                harness.window.submit_many([1, 2, 3])
            refused.append(str(raised.value))
            return 1

    harness = Harness(core, echo, concurrency=2, capacity=2, dedupe=True)
    assert await harness.submit(Submitting(), 7) == 2
    assert refused
    assert len(harness.window.take(9)) == 2


# -- failures -------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("error", [Problem("x"), StopIteration("x"), ValueError("x")])
async def test_the_first_failure_is_kept_and_nothing_more_is_started(
    core: Any, at: int, error: Exception
) -> None:
    async def fn(item: Any) -> Any:
        if item == 3:
            await steps(at)
            raise error
        return item

    harness = Harness(core, fn)
    window = harness.window
    count = await harness.submit(1, 2, 3, 4)
    assert count == (3 if at == 0 else 4)
    await harness.call(lambda: None)
    if at:
        await harness.until(lambda: window.failure is not None)
    item, kept = window.failure
    # No coroutine can raise a StopIteration.
    assert type(kept) is RuntimeError if isinstance(error, StopIteration) else kept is error
    assert (item, await harness.submit(5)) == (3, 0)
    assert (window.running, window.permits.pending) == (0, 4)
    assert window.take(9) == [1, 2]  # what came before it may still be taken
    window.cancel()


@pytest.mark.parametrize("cancels", [False, True])
async def test_further_failures_are_handed_on(core: Any, cancels: bool) -> None:
    errors = [Problem(n) for n in range(4)]
    errors[3] = errors[0]
    further: list[BaseException] = []

    async def fails(n: int) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await fail.wait()
        raise errors[n]

    fail = asyncio.Event()
    harness = Harness(core, fails)
    window = harness.window
    assert window.on_further_failure is None
    window.on_further_failure = further.append
    await harness.submit(*range(4))
    if cancels:
        await harness.call(window.cancel)
    else:
        fail.set()
    await harness.idle()
    if cancels:
        assert (window.failure, further) == (None, errors)
    else:  # one error that two calls raise is one failure
        assert (window.failure, further) == ((0, errors[0]), errors[1:3])


async def test_a_stop_iteration_of_a_plain_function_is_a_failure(core: Any) -> None:
    def fn(item: Any) -> Any:
        raise StopIteration(item)

    harness = Harness(core, fn)
    await harness.submit(1)
    assert isinstance(harness.window.failure[1], StopIteration)
    assert harness.window.ready == 0


# -- cancellation ---------------------------------------------------------------------------------
async def test_cancel_drops_results_and_cancels_what_runs(core: Any) -> None:
    ended = []

    async def fn(item: Any) -> Any:
        if item == 1:
            return item
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # the end takes its time
            ended.append(item)
            raise
        return None

    harness = Harness(core, fn)
    window = harness.window
    assert await harness.submit(1, 2, 3) == 3
    await harness.call(window.cancel)
    assert (window.pending, window.ready, window.take(9)) == (0, 0, [])
    assert await harness.submit(4) == 0
    await harness.until(lambda: window.running == 0 and harness.ready_calls > 0)
    assert (ended, window.failure, window.permits.pending) == ([2, 3], None, 4)
    window.cancel()


async def test_a_result_whose_destructor_takes_from_the_window(core: Any) -> None:
    seen: list[Any] = []

    class Taking:
        def __del__(self) -> None:
            window = harness.window
            seen.append((window.pending, window.ready, window.take(9), window.take_into(ring, 9)))

    async def fn(_: Any) -> Any:
        return Taking()

    ring = core.SpscRing(4)
    for ordered in (True, False):
        harness = Harness(core, fn, ordered=ordered)
        await harness.submit(1, 2, 3)
        harness.window.cancel()
        assert seen == [(0, 0, [], 0)] * 3
        assert harness.window.pending == 0
        seen.clear()


async def test_cancel_before_the_task_has_made_a_step(core: Any) -> None:
    """The function has begun, so it learns of its cancellation as it would from any task."""
    seen = []

    async def fn(item: Any) -> None:
        inner = asyncio.ensure_future(asyncio.get_running_loop().create_future())
        try:
            if item == "sleep":
                await asyncio.sleep(60)
            elif item == "bare":
                await asyncio.sleep(0)
            else:
                await inner
        except asyncio.CancelledError:
            seen.append((item, inner.cancelled()))
            raise

    harness = Harness(core, fn)

    def submit_and_cancel() -> None:
        harness.window.submit_many(["sleep", "future", "bare"])
        harness.window.cancel()

    await harness.call(submit_and_cancel)
    await harness.idle()
    assert sorted(seen) == [("bare", False), ("future", True), ("sleep", False)]


# -- tasks and contexts ---------------------------------------------------------------------------
async def test_asyncio_timeout_works_from_the_first_step_on(core: Any) -> None:
    async def fn(item: Any) -> str:
        try:
            async with asyncio.timeout(item):
                if item > 10:
                    return "in time"
                await asyncio.sleep(60)
        except TimeoutError:
            return "timed out"
        return "never"

    results = await Harness(core, fn).run([60, 0.01, 0, -1, 60])
    assert results == ["in time", *["timed out"] * 3, "in time"]


async def test_task_groups_work_from_the_first_step_on(core: Any) -> None:
    async def fn(item: Any) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(later(item + n)) for n in range(2)]
        return [part.result() for part in parts]

    assert await Harness(core, fn).run([1, 10]) == [[1, 2], [10, 11]]

    async def fails(item: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(later(1))
            raise Problem

    _, error = await Harness(core, fails).failure(1)
    assert isinstance(error, ExceptionGroup)


async def test_a_future_that_several_calls_wait_for(core: Any) -> None:
    shared: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def fn(item: Any) -> tuple[Any, str]:
        return item, await shared

    harness = Harness(core, fn)
    await harness.submit(1, 2, 3)
    await asyncio.sleep(0)
    harness.loop.call_later(0.001, shared.set_result, "shared")
    await harness.until(lambda: harness.window.ready == 3)
    assert harness.window.failure is None
    assert harness.window.take(3) == [(n, "shared") for n in (1, 2, 3)]


async def test_what_only_looks_like_a_future_is_a_failure(core: Any) -> None:
    class Strange:
        __slots__ = ()
        _asyncio_future_blocking = True

        def __await__(self) -> Generator[Any, None, None]:
            yield self

    async def fn(item: Any) -> Any:
        if item == 2:
            await Strange()
        return item

    harness = Harness(core, fn)
    assert await harness.submit(1, 2, 3) == 2
    item, error = harness.window.failure
    assert (item, type(error), harness.figures) == (2, AttributeError, (0, 2, 1, 4))


async def test_a_future_that_is_done_before_the_task_waits_for_it(core: Any) -> None:
    async def fn(item: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, item)
        return await future

    assert await Harness(core, fn).run([1, 2, 3]) == [1, 2, 3]


async def test_every_question_to_the_task_has_an_answer_in_the_first_step(core: Any) -> None:
    """The task is only allocated then; asking for more than its identity makes it a full one."""
    loop = asyncio.get_running_loop()
    callbacks: list[Any] = []

    def refuses(call: Callable[[], object]) -> bool:
        with pytest.raises(asyncio.InvalidStateError):
            call()
        return True

    questions: dict[str, Callable[[Any], bool]] = {
        "get_coro": lambda task: "fn" in task.get_coro().__qualname__,
        "send": lambda task: hasattr(task.get_coro(), "send"),
        "get_loop": lambda task: task.get_loop() is loop,
        "get_name": lambda task: task.set_name("named") or task.get_name() == "named",
        "done": lambda task: not task.done() and not task.cancelled(),
        "cancelling": lambda task: task.cancelling() == task.uncancel() == 0,
        "result": lambda task: refuses(task.result),
        "exception": lambda task: refuses(task.exception),
        "repr": lambda task: "pending" in repr(task),
        "get_stack": lambda task: isinstance(task.get_stack(), list),
        "weak": lambda task: weakref.ref(task)() is task,
        "callback": lambda task: task.add_done_callback(callbacks.append) is None,
        "all": lambda task: len({task: 1}) == 1,
    }

    async def fn(question: str) -> bool:
        task = asyncio.current_task()
        assert task is not None
        return question not in questions or questions[question](task)

    harness = Harness(core, fn)
    for question in questions:
        assert await harness.run([question, "none"]) == [True, True], question
    await asyncio.sleep(0)
    assert [task.result() for task in callbacks] == [True]


async def test_a_task_that_somebody_keeps_comes_to_its_end(core: Any) -> None:
    kept: list[asyncio.Task[Any]] = []

    async def fn(item: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        kept.append(task)
        if item == "fail":
            raise Problem
        return item

    harness = Harness(core, fn)
    await harness.submit(1, 2, "fail")
    assert len(set(kept)) == 3
    assert await kept[0] == 1
    await asyncio.wait(kept)
    assert kept[1].result() == 2
    assert isinstance(kept[2].exception(), Problem)


async def test_a_call_that_cancels_itself_in_its_first_step(core: Any) -> None:
    async def fn(item: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            task.uncancel()
            return "cancelled"

    assert await Harness(core, fn).run([1, 2]) == ["cancelled"] * 2


async def test_what_one_call_does_to_its_context_no_other_one_sees(core: Any) -> None:
    kept: list[Any] = []

    async def fn(item: Any) -> str:
        before = variable.get()
        match item:
            case "set":
                variable.set("by a call")
            case "set equal":
                variable.set("OUTSIDE".lower())
            case "set and reset":
                variable.reset(variable.set("for a while"))
            case "keep a token":
                kept.append(variable.set("by a call"))
            case "keep a copy":
                kept.append(contextvars.copy_context())
                variable.set("by a call")
            case "fail":
                variable.set("by a call")
                await later(item)
        return before

    items = ["none", "set", "none", "set equal", "none", "set and reset", "none", "keep a token"]
    items += ["none", "keep a copy", "none", "fail", "none"]
    token = variable.set("outside")
    harness = Harness(core, fn, concurrency=20, capacity=20)
    for _ in range(2):
        assert await harness.run(items) == ["outside"] * len(items)
    assert variable.get() == "outside"
    copies = [each for each in kept if isinstance(each, contextvars.Context)]
    assert [each[variable] for each in copies] == ["outside"] * 2
    variable.reset(token)


async def test_contexts_follow_the_submitters(core: Any) -> None:
    async def fn(_: Any) -> str:
        return variable.get()

    harness = Harness(core, fn)

    def submit_in_between(value: str) -> None:
        variable.set(value)
        harness.window.submit_many([1, 2])
        variable.set("afterwards")

    await harness.call(submit_in_between, "first")
    await harness.call(submit_in_between, "second")
    assert harness.window.take(4) == ["first", "first", "second", "second"]


# -- calls that wait for a call's end, and take over its task -------------------------------------
def shares_tasks(core: Any) -> bool:
    return bool(core.CallWindow.__module__.endswith("_cython.window"))


@pytest.mark.parametrize("ordered", [True, False])
async def test_items_ahead_are_called_as_others_end(core: Any, ordered: bool) -> None:
    running = most = 0
    tasks: Counter[str] = Counter()

    async def fn(item: int) -> tuple[int, str]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen = variable.get()
        variable.set(f"by {item}")
        await asyncio.sleep(0)  # a task that is asked for before is that call's alone
        before = asyncio.current_task()
        assert before is not None
        tasks[before.get_name()] += 1
        await steps(item % 3)
        async with asyncio.timeout(DEADLINE):
            await asyncio.sleep(0)
        assert asyncio.current_task() is before
        assert variable.get() == f"by {item}"
        running -= 1
        return item, seen

    token = variable.set("outside")
    harness = Harness(core, fn, concurrency=4, capacity=64, ahead=8, ordered=ordered)
    results = await harness.run(list(range(200)))
    assert sorted(results) == [(item, "outside") for item in range(200)]
    assert not ordered or results == sorted(results)
    assert most == harness.window.max_running == 4
    assert (harness.window.started, harness.figures[:2]) == (200, (0, 0))
    assert len(tasks) <= 100 or not shares_tasks(core)
    variable.reset(token)


async def test_items_ahead_hold_places(core: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates, concurrency=2, capacity=5, ahead=10)
    taken = await harness.submit(*range(8))
    assert taken == (5 if shares_tasks(core) else 2)
    assert harness.window.pending == taken
    assert harness.window.running == harness.window.started == 2


# -- keys -----------------------------------------------------------------------------------------
async def test_who_waits_for_its_turn_holds_a_place_and_no_permit(core: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates, concurrency=2, capacity=6, key=lambda item: item[0])
    window = harness.window
    assert await harness.submit("a1", "a2", "a3", "b1", "a4", "c1", "d1") == 6
    assert gates.calls == ["a1", "b1"]
    assert (harness.figures, window.started) == ((2, 6, 0, 0), 2)
    gates.open("b1")
    await harness.until(lambda: gates.calls[2:] == ["c1"])
    gates.open("a1")
    await harness.until(lambda: gates.calls[3:] == ["a2"])
    assert window.take(9) == ["ra1"]
    await harness.cancel()
    assert gates.calls == ["a1", "b1", "c1", "a2"]


async def test_none_is_a_key_and_so_is_what_a_ring_gives(core: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates, concurrency=3, capacity=8, key=lambda _: None)
    ring = filled(core, 8, 1, 2, 3)
    assert await harness.call(harness.window.submit_from, ring, 8) == 3
    for item in (1, 2, 3):
        await harness.until(lambda: gates.calls[-1] == item)  # noqa: B023
        assert gates.calls == list(range(1, item + 1))
        gates.open(item)
    await harness.idle()
    assert harness.window.take(8) == ["r1", "r2", "r3"]


@pytest.mark.parametrize("key", [lambda item: [item], lambda item: item + 1 // (item - 3)])
async def test_a_key_that_cannot_be_had_is_the_failure_of_its_item(core: Any, key: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates, concurrency=3, capacity=8, key=key)
    await harness.submit(*range(6))
    item, error = harness.window.failure
    assert (item, type(error)) in [(0, TypeError), (3, ZeroDivisionError)]
    assert gates.calls == list(range(item))
    await harness.cancel()


@pytest.mark.parametrize("later", [ZeroDivisionError, RuntimeError])
async def test_a_key_that_changes_while_its_call_runs_is_a_failure(
    core: Any, later: type[Exception]
) -> None:
    class Key:
        changed = False

        def __hash__(self) -> int:
            if self.changed and later is ZeroDivisionError:
                raise later
            return 1 + self.changed

    gates = Gates()
    harness = Harness(core, gates, key=lambda _: key)
    key = Key()
    await harness.submit("a")
    key.changed = True
    gates.open("a")
    await harness.until(lambda: harness.window.failure is not None)
    item, error = harness.window.failure
    assert (item, type(error)) == ("a", later)
    assert (harness.window.running, harness.window.permits.value) == (0, 4)


async def test_the_function_of_keys_is_called_in_no_call(core: Any) -> None:
    seen = []

    def key(item: int) -> int:
        seen.append((variable.get(), asyncio.current_task()))
        return item

    async def fn(item: int) -> int:
        variable.set(f"by {item}")
        return item

    harness = Harness(core, fn, key=key)
    await harness.run(list(range(5)))
    assert seen == [("unset", None)] * 5


async def test_what_waits_for_a_call_is_forgotten_before_that_has_ended(core: Any) -> None:
    leave = asyncio.Event()

    async def fn(_: Element) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(HOUR)
        await leave.wait()

    harness = Harness(core, fn, key=lambda _: "one")
    items = [Element() for _ in range(3)]
    lost = [weakref.ref(item) for item in items[1:]]
    await harness.submit(*items)
    await asyncio.sleep(0)
    await harness.call(harness.window.cancel)
    items.clear()
    for each in lost:
        wait_gone(each)
    leave.set()
    await harness.idle()


@pytest.mark.parametrize("at", ["key", "first step", "later"])
async def test_who_cancels_while_items_wait_for_their_turn(core: Any, at: str) -> None:
    calls = []

    def key(item: int) -> str:
        if (at, item) == ("key", 2):
            harness.window.cancel()
        return "one"

    async def fn(item: int) -> int:
        calls.append(item)
        if at == "first step":
            harness.window.cancel()
        await asyncio.sleep(0)
        harness.window.cancel()
        await asyncio.sleep(HOUR)
        return item

    harness = Harness(core, fn, key=key)
    waiting = [Element() for _ in range(3)]
    lost = [weakref.ref(element) for element in waiting]
    await harness.submit(1, 2, *waiting)
    del waiting
    await harness.idle()
    assert (calls, harness.window.pending) == ([1], 0)
    assert await harness.submit(5) == 0
    for each in lost:
        wait_gone(each)


async def test_equal_items_share_a_call_and_others_of_their_key_wait_for_it(core: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates, dedupe=True, concurrency=2, key=lambda item: item[0])
    window = harness.window
    assert await harness.submit("a1", "a1", "a2", "b1", "a2") == 5
    assert gates.calls == ["a1", "b1"]
    gates.open("a1")
    await harness.until(lambda: gates.calls[2:] == ["a2"])
    assert await harness.submit("a2") == 1  # now it runs, and can be shared
    gates.open("a2")
    await harness.until(lambda: gates.calls[3:] == ["a2"])  # that of the one which waited
    gates.open("a2", "b1")
    await harness.idle()
    assert window.take(9) == ["ra1", "ra1", "ra2", "rb1", "ra2", "ra2"]
    assert window.permits.value == 2


async def test_spec313_nothing_keeps_the_key_of_a_call_that_is_over(core: Any) -> None:
    keys: list[weakref.ref[Element]] = []

    def key(_: int) -> Element:
        element = Element()
        keys.append(weakref.ref(element))
        return element

    harness = Harness(core, mixed, key=key)
    await harness.run(list(range(20)))
    assert len(keys) == 20
    for each in keys:
        wait_gone(each)


@one_collector
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("patience", [0.0, HOUR])
async def test_results_wait_with_patience_while_enough_items_are_in_line(
    core: Any, patience: float, kept: bool
) -> None:
    gates, tasks = Gates(), []

    async def fn(item: int) -> Any:
        if kept:  # so that no other call may have the task
            tasks.append(asyncio.current_task())
        return await gates(item)

    harness = Harness(core, fn, concurrency=1, capacity=16, ahead=8, patience=patience)
    waits = patience > 0 and shares_tasks(core)
    taken = await harness.submit(*range(9))
    for item in range(taken):
        gates.open(item)
        await steps(5)
        assert harness.window.ready == item + 1
        # Who ends a task of its own is counted when the next in line has left it.
        assert harness.ready_calls == (max(item - 4 + kept, 0) if waits else item + 1)


@pytest.mark.parametrize("options", [{"dedupe": True}, {"ahead": 0}, {"ahead": 1}])
async def test_no_result_waits_where_no_item_is_in_line(core: Any, options: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates, concurrency=2, patience=HOUR, **options)
    await harness.submit(0, 1)
    for item in range(2):
        gates.open(item)
        await harness.until(lambda: harness.ready_calls == item + 1)  # noqa: B023


async def test_results_wait_no_longer_than_patience(core: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates, concurrency=1, capacity=16, ahead=8, patience=0.001)
    await harness.submit(*range(9))
    gates.open(0)
    await harness.until(lambda: harness.window.ready == 1)


async def test_who_knows_a_task_finds_one_call_on_it(core: Any) -> None:
    by_task: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
    kept = []

    async def fn(item: int) -> Any:
        task: Any = asyncio.current_task()
        await asyncio.sleep(0)
        match item % 4:
            case 0:
                by_task.setdefault(task, []).append(item)
                return by_task[task]
            case 1:
                task.left = [*getattr(task, "left", ()), item]
                return task.left
            case 2:
                assert all(task is not other for other in kept)
                kept.append(task)
        return [item]

    harness = Harness(core, fn, concurrency=3, capacity=64, ahead=8)
    assert await harness.run(list(range(60))) == [[item] for item in range(60)]


@one_collector
async def test_what_is_left_on_a_task_between_two_calls_is_not_found_by_the_second(
    core: Any,
) -> None:
    left: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    session: contextvars.ContextVar[Any] = contextvars.ContextVar("session")

    class Session:
        def __init__(self, item: int) -> None:
            self.item = item

        def __del__(self) -> None:
            task = asyncio.current_task()
            if task is not None:
                left[task] = self.item

    async def fn(item: int) -> Any:
        found = left.get(asyncio.current_task())
        session.set(Session(item))
        await asyncio.sleep(0)
        return found

    harness = Harness(core, fn, concurrency=2, capacity=64, ahead=12)
    assert await harness.run(list(range(12))) == [None] * 12


async def test_a_cancellation_that_nobody_took_back_is_no_other_calls(core: Any) -> None:
    async def fn(item: int) -> int:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        if item % 2:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        if item % 4 == 3:
            await asyncio.sleep(0)
        return item

    harness = Harness(core, fn, concurrency=2, capacity=64, ahead=8)
    assert await harness.run(list(range(40))) == list(range(40))


async def test_a_failure_in_line_names_its_item_and_starts_no_more(core: Any) -> None:
    started = []

    async def fn(item: int) -> int:
        started.append(item)
        if item == 7:
            raise Problem
        await asyncio.sleep(0)
        return item

    harness = Harness(core, fn, concurrency=2, capacity=64, ahead=30)
    with pytest.raises(Problem):
        await harness.run(list(range(30)))
    harness.on_ready = harness.changed.set
    await harness.idle()
    assert harness.window.failure[0] == 7
    assert started in ([*range(8)], [*range(9)])


async def test_a_failed_coroutine_that_is_dropped_may_still_ask_for_its_task(core: Any) -> None:
    asked: list[Any] = []

    class Failing(Coroutine[Any, Any, Any]):
        # No frame of Python in the traceback, which would keep it.
        send: Any = staticmethod(int)
        throw: Any = None

        def __await__(self) -> Any:
            return self

        def __del__(self) -> None:
            task = asyncio.current_task() if asyncio._get_running_loop() else None
            if task is not None:
                asked.append(task.get_name())

    harness = Harness(core, lambda _: Failing())
    assert await harness.submit(1, 2) == 1
    await steps(2)
    assert harness.window.failure is not None
    if core.__name__.endswith("_cython"):  # elsewhere the traceback keeps it for longer
        assert len(asked) == 1


async def test_a_call_that_is_over_cannot_be_introduced_again(core: Any) -> None:
    calls: list[Any] = []

    async def fn(item: Any) -> Any:
        task: Any = asyncio.current_task()
        calls.append(task.get_coro())
        await asyncio.sleep(0)

    harness = Harness(core, fn)
    await harness.run([1])
    if core.__name__.endswith("_cython"):
        for call in (calls[0], type(calls[0])()):
            with pytest.raises(RuntimeError, match="does not run"):
                call.introduce(None)


async def test_a_coroutine_that_is_dropped_may_still_ask_for_its_task(core: Any) -> None:
    """Its weak references are called when the call is over, and it is still the current one's."""
    asked: list[Any] = []
    watching: list[Any] = []

    def watched(item: Any) -> Any:
        def dropped(_: Any) -> None:
            task = asyncio.current_task()
            if task is not None:
                asked.append(task)
                task.set_name("asked")

        coroutine = echo(item)
        watching.append(weakref.ref(coroutine, dropped))
        return coroutine

    harness = Harness(core, watched)
    assert await harness.run([1, 2, 3]) == [1, 2, 3]
    await steps(2)
    assert all(task.done() for task in asked)
    assert len(set(asked)) == len(asked)


async def test_on_ready_comes_once_for_a_turn_and_again_without_a_take(core: Any) -> None:
    gates = Gates()
    harness = Harness(core, gates)
    await harness.submit(1, 2, 3)
    gates.open(1, 2)
    await harness.until(lambda: harness.window.running == 1)
    assert harness.ready_calls == 1
    gates.open(3)
    await harness.until(lambda: harness.window.ready == 3)
    assert harness.ready_calls == 2
    assert harness.window.take(3) == ["r1", "r2", "r3"]


async def test_calls_that_finish_at_once_need_no_turn_of_the_loop(core: Any) -> None:
    harness = Harness(core, echo)

    def submit_and_take() -> Any:
        return harness.window.submit_many([1, 2, 3]), harness.window.take(9)

    assert await harness.call(submit_and_take) == (3, [1, 2, 3])
    assert harness.ready_calls == 0


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_window_and_its_results_are_collected(core: Any, ordered: bool) -> None:
    harness, element = Harness(core, echo, ordered=ordered), Element()
    element.window = harness.window  # type: ignore[attr-defined]
    watched = [weakref.ref(element), weakref.ref(harness.window)]
    await harness.submit(element, element)
    assert harness.window.ready == 2
    del element, harness
    for each in watched:
        wait_gone(each)


@pytest.mark.parametrize("fn", [echo, later])
async def test_spec313_nothing_keeps_what_was_called_and_taken(core: Any, fn: Any) -> None:
    harness, element = Harness(core, fn), Element()
    watched = weakref.ref(element)
    await harness.submit(element)
    await harness.until(lambda: harness.window.ready == 1)
    await steps(2)
    assert harness.window.take(1) == [element]
    del element
    wait_gone(watched)


async def test_a_cancel_within_a_garbage_collection_leaves_numbers_and_results_equal(
    core: Any,
) -> None:
    async def take_numbered(threshold: int) -> tuple[list[int], list[Any]]:
        harness = Harness(core, echo)
        window = harness.window
        await harness.submit(*range(8))

        def cancel(*_: Any) -> None:
            window.cancel()

        def take() -> Any:
            gc.callbacks.append(cancel)
            gc.set_threshold(threshold)
            try:
                return window.take_numbered(9)
            finally:
                gc.callbacks.remove(cancel)

        taken: tuple[list[int], list[Any]] = await harness.call(take)
        return taken

    before = gc.get_threshold()
    try:
        for threshold in range(1, 20):  # the collection comes at another allocation each time
            numbers, results = await take_numbered(threshold)
            assert numbers == results
    finally:
        gc.set_threshold(*before)


# -- recovery --------------------------------------------------------------------------------------
@pytest.mark.parametrize("ahead", [0, 8])
@pytest.mark.parametrize("when", ["first step", "suspended", "future"])
async def test_a_failed_call_may_be_recovered(core: Any, when: str, ahead: int) -> None:
    failed = list[tuple[int, str]]()

    async def fn(n: int) -> int:
        await steps(when == "suspended")
        if when == "future":
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_exception, Problem())
            await future
        if n % 3 != 2:
            raise Problem(str(n))
        return n

    def recover(n: int, error: Exception) -> Coroutine[Any, Any, int] | None:
        failed.append((n, type(error).__name__))
        return again(n) if isinstance(error, Problem) else None

    async def again(n: int) -> int:
        assert asyncio.current_task() is not None
        await asyncio.sleep(0)
        return -n

    harness = Harness(core, fn, ahead=ahead, recover=recover)
    results = await harness.run(list(range(12)))
    kept = [] if when == "future" else [2, 5, 8, 11]
    assert results == [n if n in kept else -n for n in range(12)]
    assert sorted(failed) == [(n, "Problem") for n in range(12) if n not in kept]
    assert (harness.window.started, harness.figures) == (12, (0, 0, 0, 4))


@pytest.mark.parametrize("when", ["at once", "later", "before there is a coroutine"])
async def test_a_recovery_that_fails_is_not_recovered(core: Any, when: str) -> None:
    failure = KeyError("again")
    asked = list[int]()

    async def fn(n: int) -> int:
        raise Problem("first")

    def recover(n: int, error: Exception) -> Coroutine[Any, Any, int]:
        asked.append(n)
        if when == "before there is a coroutine":
            raise failure
        return again(n)

    async def again(n: int) -> int:
        await steps(when == "later")
        raise failure

    assert await Harness(core, fn, recover=recover).failure(7) == (7, failure)
    assert asked == [7]


@pytest.mark.parametrize("ahead", [0, 8])
@pytest.mark.parametrize("fn", [echo, later, mixed])
async def test_each_result_is_told_once(core: Any, fn: Callable[..., Any], ahead: int) -> None:
    told = list[tuple[int, int]]()

    async def fails_at_first(n: int) -> int:
        if n % 4 == 3:
            raise Problem
        return await fn(n) * 2

    def recover(n: int, error: Exception) -> Coroutine[Any, Any, int]:
        return fn(-n)

    def on_result(n: int, result: int) -> None:
        told.append((n, result))

    harness = Harness(core, fails_at_first, ahead=ahead, recover=recover, on_result=on_result)
    expected = [-n if n % 4 == 3 else 2 * n for n in range(40)]
    assert await harness.run(list(range(40))) == expected
    assert sorted(told) == list(enumerate(expected))


async def test_after_a_cancel_results_are_told_and_errors_neither_told_nor_recovered(
    core: Any,
) -> None:
    told = list[tuple[str, str]]()

    def recover(item: str, error: Exception) -> None:
        pytest.fail("recovered after the cancel")

    async def fn(item: str) -> str:
        try:
            await asyncio.sleep(HOUR)
        except asyncio.CancelledError:
            if item == "returns":
                return "paid"
            raise Problem if item == "fails" else asyncio.CancelledError from None
        return "late"

    harness = Harness(core, fn, recover=recover, on_result=lambda *pair: told.append(pair))
    await harness.submit("returns", "obeys", "fails")
    await harness.cancel()
    assert told == [("returns", "paid")]
    assert harness.window.failure is None
